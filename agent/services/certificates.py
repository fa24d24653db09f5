"""Certificate authority of the secured servers on this host, and the certificate of the servers."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from flafka.agent.services.cluster import HOST
from flafka.plugins import require

LIFE_DAYS = 3650


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(file)


def create_certificates(authority: Path, server: Path, name: str) -> None:
    """Write the certificate of a new authority, and the key and certificate of servers that it has signed, as PEM.

    No effect if both files exist. The servers listen on `localhost` and 127.0.0.1. `name` is the common name of
    their certificate, which is also for clients. The authority's key is not kept: it signs nothing else. Both
    certificates are valid for ten years. Raises MissingExtra without the package cryptography.
    """
    if authority.exists() and server.exists():
        return
    x509 = require("cryptography.x509", "sandbox")
    hashes = require("cryptography.hazmat.primitives.hashes", "sandbox")
    serialization = require("cryptography.hazmat.primitives.serialization", "sandbox")
    elliptic = require("cryptography.hazmat.primitives.asymmetric.ec", "sandbox")
    now = datetime.datetime.now(datetime.UTC)

    def named(common_name: str) -> object:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])

    authority_key, server_key = (elliptic.generate_private_key(elliptic.SECP256R1()) for _ in range(2))
    issuer = named("Flafka sandbox")
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=LIFE_DAYS))
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    key_usage = {
        name: name in ("key_cert_sign", "crl_sign")
        for name in (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        )
    }
    authority_certificate = (
        builder.subject_name(issuer)
        .public_key(authority_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**key_usage), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    uses = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    server_certificate = (
        builder.subject_name(named(name))
        .public_key(server_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )  # Python 3.13 refuses certificates without it
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(server, (key + server_certificate.public_bytes(pem)).decode())
    authority.write_bytes(authority_certificate.public_bytes(pem))

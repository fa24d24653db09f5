"""Reader of Java's keystores (JKS and PKCS12) and of PEM files, detected by content.

No maintained Python library reads JKS.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flafka.plugins.component import require

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_RC2 = bytes.fromhex("2a864886f70d010c0106")
"""Object identifier pbeWithSHAAnd40BitRC2-CBC (RFC 7292, appendix C), the default of Java before 8u301."""
_SALT = b"Mighty Aphrodite"
"""Salt of the digest of a JKS keystore (sun.security.provider.JavaKeyStore)."""


@dataclass(frozen=True)
class Keystore:
    """Key and certificates of a keystore, in PEM without password."""

    key: bytes = b""
    """First private key; empty if there is none."""
    chain: list[bytes] = field(default_factory=list)
    """Certificates of the key, its own first."""
    trusted: list[bytes] = field(default_factory=list)
    """Other certificates, of authorities."""

    @property
    def expiry(self) -> float | None:
        """Earliest expiry of a certificate of the chain, in seconds since the epoch; None without a chain."""
        x509 = require("cryptography.x509", "tls")
        expiries = (x509.load_pem_x509_certificate(certificate).not_valid_after_utc for certificate in self.chain)
        return min((expiry.timestamp() for expiry in expiries), default=None)


def read_keystore(path: str, password: str | None, key_password: str | None = None) -> Keystore:
    """Return the content of a keystore. `key_password` is that of its key; None if both passwords are the same.

    A PKCS12 file has one password. Raises OSError, or ValueError with a message for the user, such as for a wrong
    password or an unknown format.
    """
    data = Path(path).read_bytes()
    if b"-----BEGIN " in data:
        return _pem(data, key_password or password)
    if data[:4] == _JCEKS:
        raise ValueError("it is a JCEKS keystore; convert it: keytool -importkeystore -deststoretype PKCS12")
    if data[:4] == _JKS:
        return _jks(data, password or "", key_password or password or "")
    return _pkcs12(data, password or "")


def _serialization() -> Any:
    return require("cryptography.hazmat.primitives.serialization", "tls")


def _pem(data: bytes, password: str | None) -> Keystore:
    """Return the key and certificates of a PEM file. Raises ValueError for a wrong or missing password.

    Without a key all certificates are trusted ones.
    """
    serialization, x509 = _serialization(), require("cryptography.x509", "tls")
    certificates = (
        [_certificate(certificate) for certificate in x509.load_pem_x509_certificates(data)]
        if b"CERTIFICATE" in data
        else []
    )
    if b"PRIVATE KEY-----" not in data:
        return Keystore(trusted=certificates)
    secret = password.encode() if password and b"ENCRYPTED" in data else None
    try:
        key = serialization.load_pem_private_key(data, secret)
    except TypeError:
        raise ValueError("its key is encrypted and no password is given") from None
    return Keystore(_key(key), certificates)


def _pkcs12(data: bytes, password: str) -> Keystore:
    """Return the content of a PKCS12 file. Raises ValueError for a wrong password, or an unsupported cipher."""
    pkcs12 = require("cryptography.hazmat.primitives.serialization.pkcs12", "tls")
    try:
        store = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError:
        if _RC2 in data:
            raise ValueError(
                "the password is wrong, or this host's OpenSSL has no RC2, which encrypts it; convert it: keytool "
                "-importkeystore -srckeystore OLD -destkeystore NEW -deststoretype PKCS12"
            ) from None
        raise ValueError("the password is wrong, or it is no PKCS12, JKS or PEM file") from None
    additional = [_certificate(entry.certificate) for entry in store.additional_certs]
    if store.key is None:
        return Keystore(trusted=additional)
    chain = [_certificate(store.cert.certificate)] if store.cert else []
    return Keystore(_key(store.key), chain + additional)


def _jks(data: bytes, password: str, key_password: str) -> Keystore:
    """Return the content of a JKS file: its first key with its chain, and all trusted certificates.

    Raises ValueError for a wrong password or a damaged file.
    """
    content, secret = data[:-20], password.encode("utf-16-be")
    if hashlib.sha1(secret + _SALT + content).digest() != data[-20:]:  # noqa: S324  # required by the format
        raise ValueError("the password is wrong, or the file is damaged")
    reader = _DataInput(content, 4)
    version, entries = reader.number(), reader.number()
    key, chain, trusted = b"", [], []
    for _ in range(entries):
        kind = reader.number()
        reader.text()  # alias
        reader.take(8)  # time
        if kind == 1:
            protected = reader.take(reader.number())
            certificates = [reader.certificate(version) for _ in range(reader.number())]
            if not key:
                key, chain = _unlock(protected, key_password.encode("utf-16-be")), certificates
        elif kind == 2:
            trusted.append(reader.certificate(version))
        else:
            raise ValueError(f"it holds an entry of the unknown kind {kind}")
    return Keystore(key, chain, trusted)


class _DataInput:
    """Reader of Java's DataInput. The content must have been verified by its digest."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset

    def take(self, size: int) -> bytes:
        start, self.offset = self.offset, self.offset + size
        return self.data[start : self.offset]

    def number(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def text(self) -> bytes:
        return self.take(struct.unpack(">H", self.take(2))[0])

    def certificate(self, version: int) -> bytes:
        if version == 2:
            self.text()  # its type, always X.509
        x509 = require("cryptography.x509", "tls")
        return _certificate(x509.load_der_x509_certificate(self.take(self.number())))


def _unlock(protected: bytes, secret: bytes) -> bytes:
    """Return a private key of a JKS keystore in PEM, decrypted by XOR with a stream of SHA-1 digests.

    Raises ValueError for a wrong password.
    """
    serialization = _serialization()
    # The last part of EncryptedPrivateKeyInfo is a salt, the encrypted key, and a digest of both.
    content = _octet_string(protected)
    salt, encrypted, digest = content[:20], content[20:-20], content[-20:]
    stream, last = b"", salt
    while len(stream) < len(encrypted):
        last = hashlib.sha1(secret + last).digest()  # noqa: S324  # required by the format
        stream += last
    plain = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if hashlib.sha1(secret + plain).digest() != digest:  # noqa: S324  # required by the format
        raise ValueError(
            "the password of its key is wrong: it must be that of the keystore, or Kafka's ssl.key.password"
        )
    return _key(serialization.load_der_private_key(plain, None))


def _octet_string(data: bytes) -> bytes:
    """Return the octet string at the end of a DER sequence of two elements."""
    offset = _der_content(data, 0)[0]
    start, size = _der_content(data, offset)
    start, size = _der_content(data, start + size)
    return data[start : start + size]


def _der_content(data: bytes, offset: int) -> tuple[int, int]:
    """Return offset and length of the content of the DER element at `offset`."""
    size = data[offset + 1]
    if size < 0x80:
        return offset + 2, size
    width = size & 0x7F
    return offset + 2 + width, int.from_bytes(data[offset + 2 : offset + 2 + width], "big")


def _key(key: Any) -> bytes:
    """Return a key of `cryptography` in PEM, unencrypted."""
    s = _serialization()
    return bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))


def _certificate(certificate: Any) -> bytes:
    return bytes(certificate.public_bytes(_serialization().Encoding.PEM))

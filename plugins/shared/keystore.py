"""Java's keystores: JKS, which Python has no library for, PKCS12, and PEM files; told apart by their content."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flafka.plugins.component import require

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_SALT = b"Mighty Aphrodite"
"""What Java puts between the password and the content when it signs a keystore."""


@dataclass(frozen=True)
class Keystore:
    """All in PEM, without a password."""

    key: bytes = b""
    """The first private key; empty where there is none."""
    chain: list[bytes] = field(default_factory=list)
    """Its certificates, its own first."""
    trusted: list[bytes] = field(default_factory=list)
    """The other certificates: those of authorities."""

    @property
    def expiry(self) -> float | None:
        """When the first certificate of the chain is no longer valid, in seconds since the epoch."""
        x509 = require("cryptography.x509", "tls")
        ends = (x509.load_pem_x509_certificate(one).not_valid_after_utc for one in self.chain)
        return min((end.timestamp() for end in ends), default=None)


def read_keystore(path: str, password: str | None, key_password: str | None = None) -> Keystore:
    """Return the keystore in that file, whose key may have a password of its own.

    Raises OSError, or ValueError in words for the user: a wrong password, an unknown kind.
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
    serialization, x509 = _serialization(), require("cryptography.x509", "tls")
    certificates = [_certificate(c) for c in x509.load_pem_x509_certificates(data)] if b"CERTIFICATE" in data else []
    if b"PRIVATE KEY-----" not in data:
        return Keystore(trusted=certificates)
    secret = password.encode() if password and b"ENCRYPTED" in data else None
    try:
        key = serialization.load_pem_private_key(data, secret)
    except TypeError:
        raise ValueError("its key is encrypted and no password is given") from None
    return Keystore(_key(key), certificates)


def _pkcs12(data: bytes, password: str) -> Keystore:
    pkcs12 = require("cryptography.hazmat.primitives.serialization.pkcs12", "tls")
    try:
        store = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError:
        raise ValueError("the password is wrong, or it is no PKCS12, JKS or PEM file") from None
    others = [_certificate(c.certificate) for c in store.additional_certs]
    if store.key is None:
        return Keystore(trusted=others)
    chain = [_certificate(store.cert.certificate)] if store.cert else []
    return Keystore(_key(store.key), chain + others)


def _jks(data: bytes, password: str, key_password: str) -> Keystore:
    content, secret = data[:-20], password.encode("utf-16-be")
    if hashlib.sha1(secret + _SALT + content).digest() != data[-20:]:  # noqa: S324  # what the format says
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
    """Java's DataInput; the content was checked by its digest before."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        return self.data[start : self.at]

    def number(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def text(self) -> bytes:
        return self.take(struct.unpack(">H", self.take(2))[0])

    def certificate(self, version: int) -> bytes:
        if version == 2:
            self.text()  # its kind, always X.509
        x509 = require("cryptography.x509", "tls")
        return _certificate(x509.load_der_x509_certificate(self.take(self.number())))


def _unlock(protected: bytes, secret: bytes) -> bytes:
    """A private key out of Sun's own protection: a stream of SHA-1 digests, laid over the key."""
    serialization = _serialization()
    # Of EncryptedPrivateKeyInfo the last part counts: a salt, the key, and a digest of both.
    box = _octets(protected)
    salt, hidden, digest = box[:20], box[20:-20], box[-20:]
    stream, last = b"", salt
    while len(stream) < len(hidden):
        last = hashlib.sha1(secret + last).digest()  # noqa: S324  # what the format says
        stream += last
    plain = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if hashlib.sha1(secret + plain).digest() != digest:  # noqa: S324  # what the format says
        raise ValueError(
            "the password of its key is wrong: it must be that of the keystore, or Kafka's ssl.key.password"
        )
    return _key(serialization.load_der_private_key(plain, None))


def _octets(data: bytes) -> bytes:
    """The octet string at the end of a DER sequence of two."""
    at = _content(data, 0)[0]
    start, size = _content(data, at)
    start, size = _content(data, start + size)
    return data[start : start + size]


def _content(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the DER element at that place begins, and its length."""
    size = data[at + 1]
    if size < 0x80:
        return at + 2, size
    width = size & 0x7F
    return at + 2 + width, int.from_bytes(data[at + 2 : at + 2 + width], "big")


def _key(key: Any) -> bytes:
    s = _serialization()
    return bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))


def _certificate(certificate: Any) -> bytes:
    return bytes(certificate.public_bytes(_serialization().Encoding.PEM))

"""TLS of sources and sinks, with Flume's options."""

from __future__ import annotations

import os
import re
import selectors
import ssl
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pydantic
from pydantic import SecretStr

from flafka.plugins.errors import Retry
from flafka.plugins.net.keystore import Keystore, read_keystore
from flafka.plugins.options import Config, cross_field_validator, option
from flafka.plugins.problems import Problem, missing_library

_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_NEVER_ALLOWED = {"SSLv2Hello", "SSLv3"}
"""Versions that are never used, whatever the options say."""
_TYPE_WITHOUT_EFFECT = "the type is detected from the file's content"


class _TlsConfig(Config):
    section = "TLS"
    tls: bool = option(False, name="ssl", description="Use TLS for connections.")
    exclude_protocols: list[str] = option(
        ["SSLv3"],
        name="exclude-protocols",
        description="Versions of TLS that are not allowed. SSLv3 is never allowed.",
    )
    include_protocols: list[str] = option(
        [],
        name="include-protocols",
        description="Versions of TLS that are allowed, except those in exclude-protocols. If unset, TLSv1.2 and "
        "TLSv1.3.",
    )
    exclude_cipher_suites: list[str] = option(
        [],
        name="exclude-cipher-suites",
        description="Cipher suites of TLS 1.2 that are not allowed, by Java's names.",
    )
    include_cipher_suites: list[str] = option(
        [],
        name="include-cipher-suites",
        description="Cipher suites of TLS 1.2 that are allowed, by Java's names. If unset, Python's default.",
    )

    @pydantic.field_validator("exclude_protocols", "include_protocols")
    @classmethod
    def _check_versions(cls, value: list[str]) -> list[str]:
        for name in value:
            if name not in _VERSIONS and name not in _NEVER_ALLOWED:
                raise ValueError(f"must be some of {' '.join(_VERSIONS)}, not {name!r}")
        return value

    @cross_field_validator(
        "include_protocols", "exclude_protocols", "include_cipher_suites", "exclude_cipher_suites", "tls"
    )
    def _check_restrictions(self) -> None:
        if self.tls:
            self._restrict(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _restrict(self, context: ssl.SSLContext) -> None:
        """Set the versions and cipher suites of a context by the options.

        Raises ValueError if none is left, or if the versions have a gap.
        """
        included = set(self.include_protocols) or {"TLSv1.2", "TLSv1.3"}
        versions = sorted(_VERSIONS[name] for name in included - set(self.exclude_protocols) - _NEVER_ALLOWED)
        if not versions:
            raise ValueError("include-protocols and exclude-protocols leave no version of TLS")
        known = list(_VERSIONS.values())
        if versions != known[known.index(versions[0]) : known.index(versions[-1]) + 1]:
            raise ValueError("include-protocols and exclude-protocols must leave consecutive versions, without a gap")
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        if self.include_cipher_suites or self.exclude_cipher_suites:
            names = [str(cipher["name"]) for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
            if self.include_cipher_suites:
                allowed = {_openssl_name(name) for name in self.include_cipher_suites}
                names = [name for name in names if name in allowed]
            excluded = {_openssl_name(name) for name in self.exclude_cipher_suites}
            names = [name for name in names if name not in excluded]
            if names:
                context.set_ciphers(":".join(names))
            elif versions[-1] < ssl.TLSVersion.TLSv1_3:
                raise ValueError("include-cipher-suites and exclude-cipher-suites leave no cipher suite")
            else:
                context.minimum_version = ssl.TLSVersion.TLSv1_3


class TlsServerConfig(_TlsConfig):
    """TLS options of a source."""

    section = "TLS"
    options_without_effect = MappingProxyType({"keystore-type": _TYPE_WITHOUT_EFFECT})
    keystore: str | None = option(
        None,
        name="keystore",
        must_exist=True,
        path="flume",
        description="File with the private key and its certificates: a Java keystore (JKS, PKCS12) or PEM. If unset, "
        "the environment variable FLUME_SSL_KEYSTORE_PATH names it.",
    )
    keystore_password: SecretStr | None = option(
        None,
        name="keystore-password",
        description="Password of the keystore. If unset, the environment variable FLUME_SSL_KEYSTORE_PASSWORD.",
    )
    truststore: str | None = option(
        None,
        name="truststore",
        must_exist=True,
        path="flume",
        description="File with certificate authorities: a Java keystore (JKS, PKCS12) or PEM. If it is set, each "
        "client must show a certificate that one of them has signed.",
    )
    truststore_password: SecretStr | None = option(
        None, name="truststore-password", description="Password of the truststore."
    )

    @cross_field_validator("keystore", "tls")
    def _check_keystore(self) -> None:
        if self.tls and not self._keystore:
            raise ValueError("ssl = true needs a keystore with a private key")

    @cross_field_validator("truststore", "tls")
    def _check_truststore(self) -> None:
        if self.truststore and not self.tls:
            raise ValueError("needs ssl = true: clients show certificates only over TLS")

    def warnings(self) -> Iterator[Problem]:
        """Yield a problem if TLS is on, and the library that reads keystores is missing."""
        yield from super().warnings()
        if self.tls:
            yield from missing_library("keystore", "cryptography", "tls")

    @property
    def _keystore(self) -> str | None:
        return self.keystore or os.environ.get("FLUME_SSL_KEYSTORE_PATH")

    def certificate(self) -> str:
        """Return the certificate of the keystore's private key, in PEM. Raises Retry if there is none."""
        try:
            store = self._read()
            if not store.chain:
                raise ValueError("it holds no certificate")
        except (OSError, ValueError) as e:
            raise self._unusable(e) from e
        return store.chain[0].decode()

    def _read(self) -> Keystore:
        """Return the content of the keystore. Raises OSError, and ValueError if it has no private key."""
        assert self._keystore is not None
        store = read_keystore(self._keystore, _password(self.keystore_password, "KEYSTORE"))
        if not store.key:
            raise ValueError("it holds no private key")
        return store

    def _unusable(self, error: OSError | ValueError) -> Retry:
        """Return the error for a keystore that cannot be read or used."""
        return Retry(f"cannot use the keystore {self._keystore}: {getattr(error, 'strerror', None) or error}")

    def context(self) -> ssl.SSLContext | None:
        """Return the context for `asyncio` or a socket; None without TLS.

        Raises Retry if the keystore or truststore cannot be used.
        """
        return self.context_and_expiry()[0]

    def context_and_expiry(self) -> tuple[ssl.SSLContext | None, float | None]:
        """Return `context` and the earliest expiry of its certificates, in seconds since the epoch.

        Both are None without TLS. Raises Retry if the keystore or truststore cannot be used.
        """
        if not self.tls:
            return None, None
        try:
            store = self._read()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # Session tickets stay unread by a client that never reads. Its TCP then resets the connection when it
            # closes, and its last data is lost.
            context.num_tickets = 0
            self._restrict(context)
            _load_key(context, store)
        except (OSError, ValueError) as e:
            raise self._unusable(e) from e
        if self.truststore is not None:
            # Without FLUME_SSL_TRUSTSTORE_PATH as default: it names authorities of servers, for sinks.
            password = self.truststore_password
            try:
                _trust(context, self.truststore, password.get_secret_value() if password else None)
            except (OSError, ValueError) as e:
                raise Retry(
                    f"cannot use the truststore {self.truststore}: {getattr(e, 'strerror', None) or e}"
                ) from e
            context.verify_mode = ssl.CERT_REQUIRED
        return context, store.expiry


class TlsClientConfig(_TlsConfig):
    """TLS options of a sink."""

    section = "TLS"
    options_without_effect = MappingProxyType({"truststore-type": _TYPE_WITHOUT_EFFECT})
    trust_all_certs: bool = option(
        False,
        name="trust-all-certs",
        description="Accept any certificate of the server. Whoever controls the network between the two can then "
        "read and change the events.",
    )
    truststore: str | None = option(
        None,
        name="truststore",
        must_exist=True,
        path="flume",
        description="File with the certificate authorities to trust: a Java keystore (JKS, PKCS12) or PEM. If unset, "
        "the one that the environment variable FLUME_SSL_TRUSTSTORE_PATH names, or else those of this machine.",
    )
    truststore_password: SecretStr | None = option(
        None,
        name="truststore-password",
        description="Password of the truststore. If unset, the environment variable FLUME_SSL_TRUSTSTORE_PASSWORD.",
    )
    check_hostname: bool = option(
        True,
        name="check-hostname",
        description="Require that the server's certificate is for the name or address in `hostname`. Flume does not "
        "check that.",
    )

    def warnings(self) -> Iterator[Problem]:
        """Yield a problem if a truststore is set, and the library that reads it is missing."""
        yield from super().warnings()
        if self.tls and self.truststore:
            yield from missing_library("truststore", "cryptography", "tls")

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a socket; None without TLS. Raises Retry if the truststore cannot be used."""
        if not self.tls:
            return None
        path = self.truststore or os.environ.get("FLUME_SSL_TRUSTSTORE_PATH")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._restrict(context)
            context.check_hostname = self.check_hostname and not self.trust_all_certs
            if self.trust_all_certs:
                context.verify_mode = ssl.CERT_NONE
            elif path:
                _trust(context, path, _password(self.truststore_password, "TRUSTSTORE"))
            else:
                context.load_default_certs()
        except (OSError, ValueError) as e:
            raise Retry(f"cannot use the truststore {path}: {getattr(e, 'strerror', None) or e}") from e
        return context


def continue_handshake(connection: ssl.SSLSocket) -> int:
    """Continue a TLS handshake on a non-blocking socket.

    Return 0 when it is complete, or else the event of `selectors` to wait for. Raises OSError if it fails.
    """
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return selectors.EVENT_READ
    except ssl.SSLWantWriteError:
        return selectors.EVENT_WRITE
    return 0


def connection_error_reason(error: OSError) -> str:
    """Return the reason for a failed connection, in a few words for the end of a sentence."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reasons: dict[Any, str] = {
        "WRONG_VERSION_NUMBER": "it does not speak TLS",
        "HTTP_REQUEST": "it does not speak TLS",
        "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
        "CERTIFICATE_VERIFY_FAILED": f"its certificate is refused: {getattr(error, 'verify_message', '')}",
        "UNSUPPORTED_PROTOCOL": "it speaks a version of TLS that is not allowed here",
        "NO_SHARED_CIPHER": "there is no cipher suite in common",
    }
    return reasons.get(error.reason, (error.reason or str(error)).lower().replace("_", " "))


def _password(option_value: SecretStr | None, store: str) -> str | None:
    """Return the option's value, else the environment variable FLUME_SSL_<store>_PASSWORD, else None."""
    return option_value.get_secret_value() if option_value else os.environ.get(f"FLUME_SSL_{store}_PASSWORD")


def truststore_context(path: str, password: str | None) -> ssl.SSLContext:
    """Return the context of a client that trusts the certificates of a truststore, and checks host names.

    Raises OSError or ValueError if it cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, path, password)
    return context


def _trust(context: ssl.SSLContext, path: str, password: str | None) -> None:
    """Trust all certificates of a file, whatever their issuers.

    Raises OSError or ValueError if it cannot be used.
    """
    store = read_keystore(path, password)
    if not (authorities := store.trusted + store.chain):
        raise ValueError("it holds no certificate")
    context.load_verify_locations(cadata=b"".join(authorities).decode())
    # As in Java, a certificate in the truststore is trusted whatever its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _load_key(context: ssl.SSLContext, store: Keystore) -> None:
    """Load key and chain of a keystore, from a file in memory. Raises OSError or ValueError.

    OpenSSL reads keys only from files, and this one must not be on a disk.
    """
    fd = os.memfd_create("key")
    try:
        os.write(fd, b"".join([store.key, *store.chain]))
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _openssl_name(java: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2, from Java's name."""
    name = re.sub(r"^(TLS|SSL)_", "", java).replace("_WITH_", "_").replace("_CBC_", "_")
    name = re.sub(r"^RSA_", "", name)
    name = re.sub(r"AES_(\d+)", r"AES\1", name)
    if "CHACHA20" in name:
        name = name.removesuffix("_SHA256")
    return name.replace("_", "-")

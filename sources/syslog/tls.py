"""TLS for syslog over TCP (RFC 5425): the options of Flume's sources, and certificates that senders must show."""

from __future__ import annotations

import ssl
from typing import Any, Self

import pydantic
from pydantic import SecretStr

from plugins import Retry, option
from plugins.keystore import read_keystore
from plugins.tls import TlsServerConfig


class SyslogTlsConfig(TlsServerConfig):
    """Options of sources that can speak TLS to senders."""

    truststore: str | None = option(
        None,
        name="truststore",
        description="File with authorities, a Java keystore (JKS, PKCS12) or PEM: each sender must then show a "
        "certificate that one of them signed.",
    )
    truststore_password: SecretStr | None = option(None, name="truststore-password", description="Its password.")
    handshake_timeout: float = option(
        10.0,
        name="handshakeTimeout",
        description="A connection that has not agreed on TLS after so long is closed.",
        unit="s",
        gt=0,
    )

    @pydantic.model_validator(mode="after")
    def _needs_tls(self) -> Self:
        if self.truststore and not self.tls:
            raise ValueError("truststore asks senders for certificates, which needs ssl = true")
        return self

    def context(self) -> ssl.SSLContext | None:
        """What connections are wrapped with; None without TLS. Retry says what is wrong with which file."""
        context = super().context()
        if context is None or self.truststore is None:
            return context
        password = self.truststore_password
        try:
            store = read_keystore(self.truststore, password.get_secret_value() if password else None)
            if not (authorities := store.trusted + store.chain):
                raise ValueError("it holds no certificate")
            context.load_verify_locations(cadata=b"".join(authorities).decode())
        except (OSError, ValueError) as e:
            raise Retry(f"cannot use the truststore {self.truststore}: {getattr(e, 'strerror', None) or e}") from e
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def refusal(error: OSError) -> str:
    """Why a connection has not come about, in a few words."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reasons: dict[Any, str] = {
        "WRONG_VERSION_NUMBER": "it does not speak TLS",
        "HTTP_REQUEST": "it does not speak TLS",
        "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
        "CERTIFICATE_VERIFY_FAILED": f"its certificate is refused: {getattr(error, 'verify_message', '')}",
        "UNSUPPORTED_PROTOCOL": "it speaks a version of TLS that is not spoken here",
        "NO_SHARED_CIPHER": "there is no cipher suite in common",
    }
    return reasons.get(error.reason, (error.reason or str(error)).lower().replace("_", " "))

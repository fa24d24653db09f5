"""Kerberos for kafka-python, which by itself needs the package `gssapi`, and so a compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism

from flafka.plugins.kafka.kerberos import KafkaLogin
from flafka.plugins.net.gssapi import Credential, KerberosError, SecurityContext

_NO_LAYER = b"\x01"
"""Security layer of RFC 4752 that neither signs nor encrypts, the only one of Kafka."""


@contextlib.contextmanager
def failing_login(*errors: type[Exception]) -> Iterator[None]:
    """Raise these errors as SaslAuthenticationFailedError: kafka-python hides the text of others, and tries again."""
    try:
        yield
    except errors as e:
        raise SaslAuthenticationFailedError(str(e)) from e


class KerberosMechanism(SaslMechanism):  # type: ignore[misc]  # kafka-python has no types
    """SASL mechanism GSSAPI by the system's library. A new instance logs in once."""

    def __init__(self, login: KafkaLogin, *, host: str, **config: Any) -> None:
        """`config` has the options of the connection. Raises SaslAuthenticationFailedError without a ticket."""
        is_own = login.keytab is not None and login.kinit is None
        self._is_last = self._is_done = False
        with failing_login(KerberosError), contextlib.ExitStack() as failure:
            credential = Credential(login.principal, login.keytab) if is_own else Credential()
            failure.callback(credential.close)
            self._context = SecurityContext(credential, f"{config['sasl_kerberos_service_name']}@{host}")
            failure.callback(self._context.close)
            self._token = self._context.step()
            failure.pop_all()

    def auth_bytes(self) -> bytes:
        """Return the next token for the broker."""
        self._is_done = self._is_last
        return self._token

    def receive(self, auth_bytes: bytes) -> None:
        """Process a token of the broker. Raises SaslAuthenticationFailedError."""
        if self._is_done:
            return
        with failing_login(KerberosError), contextlib.ExitStack() as failure:
            failure.callback(self._context.close)
            if not self._context.is_complete:
                self._token = self._context.step(auth_bytes)
                failure.pop_all()
                return
            # The broker offers security layers and its maximum size; an empty name acts for the principal itself.
            offer = self._context.unwrap(auth_bytes)
            self._token, self._is_last = self._context.wrap(_NO_LAYER + offer[1:4]), True

    def is_done(self) -> bool:
        """Return True once the last token was sent."""
        return self._is_done

    def is_authenticated(self) -> bool:
        """Return True once the broker is authenticated; it closes the connection of a client that is not."""
        return self._is_last


def use_login(login: KafkaLogin) -> None:
    """Let all clients of kafka-python in this process use this login for GSSAPI."""
    register_sasl_mechanism("GSSAPI", partial(KerberosMechanism, login), overwrite=True)

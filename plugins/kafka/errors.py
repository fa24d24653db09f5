"""Errors of Kafka clients, as sentences that name the problem, the broker and the remedy."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from flafka.plugins.component import require
from flafka.plugins.errors import Retry, Unreachable
from flafka.plugins.kafka.clients import BROKER_CONNECT_SECONDS, QUERY, new_admin
from flafka.plugins.kafka.kerberos import explain_refusal, find_login
from flafka.plugins.kafka.logins import (
    CLIENT_ID,
    CLIENT_SECRET,
    ENDPOINT,
    SCOPE,
    load_authorities,
    mechanism_of,
    uses_tokens,
)
from flafka.plugins.kafka.rights import Kind, describe_missing_right

EXPLANATION_SECONDS = 1.0
"""Time without an answer after which the connections to the brokers are diagnosed."""
TOKEN_ERROR_SECONDS = 60.0
"""Time for which the failure to get a token is reported: a client does not report that it has a token again."""
_CORRELATION = 0x464C4146
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
"""Request ApiVersions, version 0, which every broker since 0.10 answers before a login."""
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_TOKENLESS = "Failed to acquire SASL OAUTHBEARER token: "
"""Beginning of librdkafka's error about a token endpoint."""
_RESOURCES: Mapping[int, Kind] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
FATAL_EXCEPTIONS = (KafkaException, SystemError)
"""Exceptions that `poll` and `flush` of a producer raise once after a fatal error.

Python raises SystemError if the client's exception occurs during a delivery callback."""
UNREACHABLE_ERRORS = frozenset(
    (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
    )
)
"""Error codes for brokers that do not answer, or for too few brokers."""
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Error codes of records that the client has dropped itself, as it does after the failure of a transaction."""
RECORD_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""Error codes for one refused record. They fail every record of the same request batch."""
UNSUPPORTED_ERRORS = frozenset({KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION})
"""Error codes for brokers that are too old for a request."""


class BrokerFailure(NamedTuple):
    """Reason why a client cannot use a broker."""

    text: str
    """Sentence whose subject is the broker."""
    is_unreachable: bool
    """True if no process answers at the address; False if the broker answers and refuses."""


class UnexplainedTimeout(Unreachable):
    """Lack of an answer from brokers although the connections to them work."""


class ReportedErrors:
    """Errors that a client has reported. An instance is the client's `error_cb`."""

    def __init__(self) -> None:
        self._refusals: dict[str, str] = {}
        self._token_error = "", -math.inf

    def __call__(self, error: KafkaError) -> None:
        """Record a broker's refusal of the login, or the failure to get a token."""
        if error.code() in _REFUSED and error.str().startswith(_TOKENLESS):
            self._token_error = error.str(), time.monotonic()
        elif error.code() in _REFUSED and (match := re.match(r"(?:\w+://)?(.+?)/\w+: (.+)", error.str())):
            self._refusals[match[1]] = re.sub(r" \(after .*", "", match[2])

    def refusal(self, server: str = "") -> str:
        """Return the latest refusal of the login by the broker `server`, or that of any broker if empty.

        A client without a token tries no login: the failure to get one counts for all brokers, for
        `TOKEN_ERROR_SECONDS`. The result is empty if there is none.
        """
        text, reported = self._token_error
        token_error = text if time.monotonic() - reported < TOKEN_ERROR_SECONDS else ""
        if not server:
            return next(iter(self._refusals.values()), token_error)
        return self._refusals.get(server, token_error)


def fetch_metadata(client: Mapping[str, Any], seconds: float, prefix: str = "") -> Any:
    """Return the cluster's metadata. Raises Unreachable if no broker answers within `seconds`, otherwise Retry.

    `client` are librdkafka's properties. `prefix` begins the text of the exception, such as `channel c1: `.
    """
    reported = ReportedErrors()
    properties: dict[str, Any] = {**client, "error_cb": reported}
    try:
        admin = new_admin(QUERY, properties)
    except KafkaException as e:
        raise Retry(prefix + explain_error(e)) from e
    deadline = time.monotonic() + seconds
    while True:
        remaining = deadline - time.monotonic()
        try:
            return admin.list_topics(timeout=max(0.1, min(remaining, EXPLANATION_SECONDS)))
        except KafkaException as e:
            admin.poll(0)  # calls `error_cb`
            error = connection_error(client, e, reported, prefix)
            if remaining <= EXPLANATION_SECONDS or not isinstance(error, UnexplainedTimeout):
                raise error from e


def connection_error(
    client: Mapping[str, Any], error: Exception, reported: ReportedErrors, prefix: str = "", **resources: Any
) -> Retry:
    """Return the exception to raise after an error of a client with these properties; diagnoses each broker.

    `resources` are the keyword arguments of `explain_error`. Blocks for up to several `BROKER_CONNECT_SECONDS`.
    """
    servers = str(client.get("bootstrap.servers") or "")
    code = error.args[0].code() if isinstance(error, KafkaException) else None
    if code is not None and code not in UNREACHABLE_ERRORS:
        return Retry(prefix + explain_error(error, client=client, **resources))
    brokers = servers.replace(",", " ").split()
    with ThreadPoolExecutor(max(1, min(len(brokers), 8))) as threads:
        results = dict(
            zip(brokers, threads.map(lambda server: diagnose_broker(client, server, reported), brokers), strict=True)
        )
    failures = {server: failure for server, failure in results.items() if failure is not None}
    if not failures:
        return UnexplainedTimeout(f"{prefix}no Kafka broker answers at {servers}: {explain_error(error)}")
    texts = [failure.text for failure in failures.values()]
    by_server = "; ".join(f"{server}: {failure.text}" for server, failure in failures.items())
    reason = texts[0] if len({*texts}) == 1 else by_server
    if all(failure.is_unreachable for failure in failures.values()):
        return Unreachable(f"{prefix}no Kafka broker answers at {servers}: {reason}")
    return Retry(f"{prefix}no Kafka broker at {servers} takes this client: {reason}")


def explain_error(
    error: Any,
    *,
    topic: str | Collection[str] = "",
    group: str = "",
    transactional_id: str = "",
    right: str | Collection[str] = "",
    client: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a KafkaException, a KafkaError or a TimeoutError, and `str(error)` for any other object.

    For a missing right, the text names the resource: `topic`, `group` or `transactional_id`, the user in `client`,
    the properties of the client, and the command that grants the right. `right` are the operations that the client
    needs on the topic. With several topics, brokers have refused one of them. The text has one line.
    """
    if isinstance(error, TimeoutError):
        return "no answer in time"
    known = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(known, KafkaError):
        return str(known)
    if (kind := _RESOURCES.get(known.code())) is not None:
        reason = known.str()
        if kind == "cluster" and topic:
            # A right on the topic suffices: to create it, and since Kafka 2.8 (KIP-679) to write it.
            kind = "topic"
            if "Write" in _collection(right):
                reason += "; brokers before Kafka 2.8 want IdempotentWrite on the cluster as well"
        named, operations = {
            "topic": (topic, right),
            "group": (group, "Read"),
            "transactional id": (transactional_id, "Write"),
            "cluster": ("", "IdempotentWrite"),
        }[kind]
        return describe_missing_right(kind, _collection(named), _collection(operations), client, reason)
    if known.code() in UNSUPPORTED_ERRORS:
        return f"the brokers are too old for this ({known.str()})"
    return str(known.str())


def _collection(values: str | Collection[str]) -> Collection[str]:
    """Return a collection unchanged, and a text as a collection of one; of none if it is empty."""
    return [values] * bool(values) if isinstance(values, str) else values


def diagnose_broker(client: Mapping[str, Any], server: str, reported: ReportedErrors) -> BrokerFailure | None:
    """Connect to a broker as a client with these properties, and return the failure; None if the connection works.

    `reported` has refusals of the login. Blocks for up to several `BROKER_CONNECT_SECONDS`.
    """
    protocol = str(client.get("security.protocol", "PLAINTEXT")).upper()
    address = server.rpartition("://")[2]
    host, _, port = address.rpartition(":") if ":" in address else (address, ":", "9092")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        return BrokerFailure("it must be written as host:port", False)
    try:
        connection = socket.create_connection((host, int(port)), timeout=BROKER_CONNECT_SECONDS)
    except socket.gaierror as e:
        return BrokerFailure(f"unknown host ({e.strerror})", True)
    except ValueError:  # UnicodeError: a label of the name is empty or too long (RFC 1034, section 3.1)
        return BrokerFailure(f"{host} is no name of a host", True)
    except TimeoutError:
        return BrokerFailure(f"no connection within {BROKER_CONNECT_SECONDS:.0f} s; is a firewall between?", True)
    except (OSError, OverflowError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        return BrokerFailure(
            f"{reason}; is it running? For the cluster of `agent cluster start`, see `agent cluster status`", True
        )
    with connection:
        connection.settimeout(BROKER_CONNECT_SECONDS)
        failure = (
            _check_tls(client, connection, (host, int(port)))
            if "SSL" in protocol
            else _check_plain_text(connection, host, int(port))
        )
    if failure is not None:
        return failure
    if text := reported.refusal(address):
        return BrokerFailure(describe_login_error(text, client), False)
    if "SASL" not in protocol:
        secure = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
        if _requires_login(client, host, int(port), "SSL" in protocol):
            return BrokerFailure(
                f"it wants a login: set security.protocol = {secure}, with sasl.mechanism and a user", False
            )
    return None


def describe_login_error(text: str, client: Mapping[str, Any]) -> str:
    """Return a sentence, with the remedy, for a broker's refusal of this client's login, or for a missing token."""
    mechanism = mechanism_of(client)
    if "Request not valid in current SASL state" in text or "Disconnected" in text:
        return "it takes no logins there: name the port of its SASL listener, or set security.protocol without SASL"
    if match := re.search(r"failed: (.+): broker's supported mechanisms: \(n/a\)", text):
        return f"it breaks off the login ({mechanism}): {match[1]}"  # such as a timeout
    if match := re.search("supported mechanisms: *(.+)", text):
        return f"it does not take sasl.mechanism = {mechanism}; it takes {match[1].replace(',', ', ')}"
    if find_login(client) is not None:
        return explain_refusal(text, client)
    if text.startswith(_TOKENLESS):
        return _explain_missing_token(text.removeprefix(_TOKENLESS), client)
    reason = text.removeprefix("SASL authentication error: ").removeprefix("Authentication failed: ")
    if uses_tokens(client):
        status = re.search(r'"status": *"([^"]+)"', reason)
        return (
            f"it refuses the token of client {client.get(CLIENT_ID, '')} (OAUTHBEARER): "
            f"{status[1] if status else reason}; its log has the reason, such as another issuer, audience or clock"
        )
    return (
        f"it refuses user {client.get('sasl.username', '')}: {reason} ({mechanism}; check sasl.username and "
        "sasl.password)"
    )


def _explain_missing_token(text: str, client: Mapping[str, Any]) -> str:
    """Return a sentence, with the remedy, for the reason why a token endpoint gave no token."""
    url = client.get(ENDPOINT, "")
    if "verify result" in text or "certificate" in text or "trust anchors" in text:
        reason = re.sub(r".*verify result: | \(\d+\)$", "", text)
        return (
            f"the certificate of the token endpoint {url} is not trusted ({reason}): name its authority with "
            "https.ca.location, as that of the brokers is not used there"
        )
    if '"error"' in text:
        fields = dict(re.findall(r'"(error|error_description)": *"([^"]*)"', text))
        reason = ", ".join(filter(None, [fields.get("error"), fields.get("error_description")]))
        return (
            f"the token endpoint {url} refuses client {client.get(CLIENT_ID, '')} (OAUTHBEARER): {reason}; check "
            f"{CLIENT_ID}, {CLIENT_SECRET} and {SCOPE}"
        )
    return f"the token endpoint {url} gives no token for client {client.get(CLIENT_ID, '')}: {text}"


def _request_versions(connection: socket.socket) -> bytes:
    """Return the beginning of the answer to ApiVersions; empty if the peer closes the connection."""
    connection.sendall(_API_VERSIONS)
    data = b""
    while len(data) < 8 and (more := connection.recv(512)):
        data += more
        if not _is_kafka(data) and len(data) >= 4 and data[:2] != b"\0\0":
            break
    return data


def _is_kafka(data: bytes) -> bool:
    """Return True if bytes begin like an answer to `_API_VERSIONS`."""
    return len(data) >= 8 and struct.unpack(">i", data[4:8])[0] == _CORRELATION


def _check_plain_text(connection: socket.socket, host: str, port: int) -> BrokerFailure | None:
    """Return the failure of a connection without TLS on which no broker of Kafka answers; None if one does."""
    try:
        data = _request_versions(connection)
    except TimeoutError:
        return _diagnose_silence(host, port)
    except OSError:
        data = b""
    if _is_kafka(data):
        return None
    if data.startswith((b"HTTP/", b"<")):
        return BrokerFailure(_HTTP, False)
    if data[:2] == b"\x15\x03" or (not data and _speaks_tls(host, port)):  # TLS alert
        return _TLS_REQUIRED
    if data:
        return BrokerFailure("what answers is no Kafka broker", False)
    return BrokerFailure("it ends the connection without an answer; is it a Kafka broker?", False)


_HTTP = "an HTTP server answers, and no Kafka broker"
_TLS_REQUIRED = BrokerFailure(
    "it speaks TLS, and this client does not: set security.protocol = SSL, or SASL_SSL", False
)


def _diagnose_silence(host: str, port: int) -> BrokerFailure:
    """Return the failure of a peer that accepts the connection and does not answer a request of Kafka."""
    if _speaks_tls(host, port):
        return _TLS_REQUIRED
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), timeout=BROKER_CONNECT_SECONDS) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if connection.recv(5) == b"HTTP/":
            return BrokerFailure(_HTTP, False)
    return BrokerFailure("it takes the connection and answers nothing; is it a Kafka broker?", True)


def _speaks_tls(host: str, port: int) -> bool:
    """Return True if a TLS handshake with the peer succeeds, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=BROKER_CONNECT_SECONDS) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:
        return False


def _requires_login(client: Mapping[str, Any], host: str, port: int, tls: bool) -> bool:
    """Return True if the broker closes the connection at a request that needs a login; False if it is silent."""
    request = struct.pack(">hhihi", 3, 0, _CORRELATION, -1, 0)  # Metadata, of all topics
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=BROKER_CONNECT_SECONDS))
            if tls:
                connection = stack.enter_context(tls_context(client).wrap_socket(connection, server_hostname=host))
            connection.sendall(struct.pack(">i", len(request)) + request)
            return not connection.recv(8)
    except TimeoutError:
        return False
    except (OSError, ValueError):
        return True


def _check_tls(
    client: Mapping[str, Any], connection: socket.socket, address: tuple[str, int]
) -> BrokerFailure | None:
    """Return the failure of a TLS connection to a broker; None if it works.

    None also if the client's own files cannot be used, as the client reports that.
    """
    try:
        context = tls_context(client)
    except (OSError, ValueError):
        return None  # the client has reported the error in its properties
    try:
        with context.wrap_socket(connection, server_hostname=address[0]) as secured:
            _request_versions(secured)  # TLS 1.3 verifies the client's certificate after the handshake
    except ssl.SSLCertVerificationError as e:
        return BrokerFailure(_explain_untrusted(e, address), False)
    except TimeoutError:
        return BrokerFailure("it takes the connection and does not answer over TLS", True)
    except ssl.SSLError as e:
        return BrokerFailure(_explain_handshake(e, client), False)
    except OSError:
        return BrokerFailure(_NO_TLS, False)
    return None


_NO_TLS = "it does not speak TLS, and this client does: name its TLS port, or set security.protocol without SSL"


def _explain_handshake(error: ssl.SSLError, client: Mapping[str, Any]) -> str:
    """Return a sentence, with the remedy, for a failed TLS handshake."""
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    if "CERTIFICATE_REQUIRED" in reason or ("ALERT" in reason and "CERTIFICATE" in reason):
        if not any(
            client.get(name) for name in ("ssl.certificate.pem", "ssl.certificate.location", "ssl.keystore.location")
        ):
            return (
                "it wants a certificate of this client, which has none: set ssl.keystore.location, or "
                "ssl.certificate.location and ssl.key.location"
            )
        alert = reason.rpartition("ALERT_")[2].lower().replace("_", " ")
        return f"it refuses this client's certificate ({alert}): is its authority in the broker's truststore?"
    if reason in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "UNEXPECTED_EOF_WHILE_READING",
        "RECORD_LAYER_FAILURE",
    ) or isinstance(error, ssl.SSLEOFError):
        return _NO_TLS
    return f"no TLS connection comes about ({reason.lower().replace('_', ' ')})"


def _explain_untrusted(error: ssl.SSLCertVerificationError, address: tuple[str, int]) -> str:
    """Return a sentence, with the remedy, for a broker's certificate that is not accepted."""
    reason = error.verify_message
    certificate = f"the broker's certificate{_subject(address)}"
    if "mismatch" in reason:
        return (
            f"{certificate} is not for {address[0]}: write the brokers as it names them, or set "
            "ssl.endpoint.identification.algorithm = none"
        )
    if "expired" in reason or "not yet valid" in reason:
        return f"{certificate}: {reason}"
    return (
        f"{certificate} is not trusted ({reason}): name its authority with ssl.truststore.location or ssl.ca.location"
    )


def _subject(address: tuple[str, int]) -> str:
    """Return ` (CN=…)` of the server's certificate; empty if the certificate cannot be read."""
    try:
        x509 = require("cryptography.x509", "tls")
        pem = ssl.get_server_certificate(address, timeout=BROKER_CONNECT_SECONDS)
        return f" ({x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()})"
    except Exception:  # noqa: BLE001  # the error is clear without the subject
        return ""


def tls_context(client: Mapping[str, Any]) -> ssl.SSLContext:
    """Return Python's TLS context for a client's properties. Raises OSError or ValueError for an unusable file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = client.get("ssl.endpoint.identification.algorithm", "https") not in ("none", "")
    load_authorities(context, client, "ssl.ca")
    if str(client.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    password = client.get("ssl.key.password")
    if certificate := client.get("ssl.certificate.location"):
        context.load_cert_chain(str(certificate), client.get("ssl.key.location"), password)
    elif pem := client.get("ssl.certificate.pem"):
        fd = os.memfd_create("key")  # OpenSSL reads keys from files only, and the key must not be written to a disk
        try:
            os.write(fd, f"{client.get('ssl.key.pem', '')}\n{pem}".encode())
            context.load_cert_chain(f"/proc/self/fd/{fd}", password=password)
        finally:
            os.close(fd)
    return context


def to_retry(error: Any, text: str) -> Retry:
    """Return an exception with that text for a client's error: Unreachable if brokers do not answer, else Retry."""
    known = error.args[0] if isinstance(error, KafkaException) else error
    is_unreachable = isinstance(error, TimeoutError) or known.code() in UNREACHABLE_ERRORS
    return Unreachable(text) if is_unreachable else Retry(text)


def transaction_error(producer: Producer) -> KafkaError | None:
    """Return the error for which a client drops all records of its transaction; None if unknown.

    If brokers refuse to add a topic to the transaction, the error is in no delivery report.
    """
    try:
        producer.begin_transaction()  # always fails in a transaction, with the error of a failed one
    except KafkaException as e:
        error: KafkaError = e.args[0]
        return error if error.txn_requires_abort() else None
    return None


def is_missing_right(error: BaseException) -> bool:
    """Return True if a client's error, or the cause of an error raised from one, is a missing right."""
    known = error if isinstance(error, KafkaException) else error.__cause__
    return isinstance(known, KafkaException) and known.args[0].code() in _RESOURCES


def is_fatal(error: object) -> bool:
    """Return True if the producer that raised or reported the error can no longer be used.

    The call that meets the reason raises an error marked as fatal, `produce` after it one with the code `_FATAL`.
    """
    known = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(known, KafkaError):
        return bool(known.fatal() or known.code() == KafkaError._FATAL)
    return isinstance(known, SystemError)


def wrap_callback(
    callback: Callable[[Consumer, list[TopicPartition]], None], explain: Callable[[object], str] = explain_error
) -> Callable[..., None]:
    """Return a rebalance callback that raises the client's errors as Retry, with the text that `explain` returns.

    If a callback raises a KafkaException, `poll` raises an object that no `except Exception` catches, and the thread
    would end without an error.
    """

    def wrapped(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            callback(consumer, partitions)
        except KafkaException as e:
            raise Retry(explain(e)) from e

    return wrapped

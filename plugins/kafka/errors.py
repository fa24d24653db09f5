"""Sentences about brokers that cannot be used: what is wrong, at which of them, and what to do."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins.component import require
from flafka.plugins.errors import Retry, Unreachable
from flafka.plugins.kafka.clients import ASK, CONNECT_SECONDS, new_admin

EXPLANATION_SECONDS = 1.0
"""After so long without an answer the reason is looked for."""
_CORRELATION = 0x464C4146
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
"""A request, of version 0, that every broker since 0.10 answers before a login."""
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "consumer group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
BROKEN = (KafkaException, SystemError)
"""Exceptions that `poll` and `flush` of a producer raise once after a fatal error.

SystemError comes amid delivery callbacks, where Python takes the client's exception for a bug."""
AWAY = frozenset(
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
"""Errors that say that brokers are away, or too few of them there."""
RECORD_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""Errors of one record, which fail every record of the same request batch."""
TOO_OLD = frozenset({KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION})
"""Errors of brokers, or of the client, that say that the brokers are too old for a request."""


class Trouble(NamedTuple):
    """The reason why one broker cannot be used."""

    text: str
    is_away: bool
    """True if nobody answers there; False if somebody answers and refuses."""


class Unexplained(Unreachable):
    """Brokers have not answered yet, and nothing is wrong with the connections to them."""


class ReportedErrors:
    """Errors that a client has reported; an instance is its `error_cb`."""

    def __init__(self) -> None:
        self._refusals: dict[str, str] = {}

    def __call__(self, error: KafkaError) -> None:
        """Note what a broker says against this client's login."""
        if error.code() in _REFUSED and (found := re.match(r"(?:\w+://)?(.+?)/\w+: (.+)", error.str())):
            self._refusals[found[1]] = re.sub(r" \(after .*", "", found[2])

    def refusal(self, server: str = "") -> str:
        """Return what that broker, or any, has said against this client's login; empty if nothing."""
        if not server:
            return next(iter(self._refusals.values()), "")
        return self._refusals.get(server, "")


def metadata(client: Mapping[str, Any], seconds: float, whose: str = "") -> Any:
    """Ask the brokers for their metadata. Raises Retry, or Unreachable where nobody answers, with the reason.

    `client` are librdkafka's properties; `whose` begins the sentence, such as `channel c1: `.
    """
    heard = ReportedErrors()
    properties: dict[str, Any] = {**client, "error_cb": heard}
    try:
        admin = new_admin(ASK, properties)
    except KafkaException as e:
        raise Retry(whose + sentence(e)) from e
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return admin.list_topics(timeout=max(0.1, min(left, EXPLANATION_SECONDS)))
        except KafkaException as e:
            admin.poll(0)  # the callback runs within it
            failed = unusable(client, e, heard, whose)
            if left <= EXPLANATION_SECONDS or not isinstance(failed, Unexplained):
                raise failed from e


def unusable(
    client: Mapping[str, Any], error: Exception, heard: ReportedErrors, whose: str = "", **named: str
) -> Retry:
    """Return what to raise for brokers that have not answered a client with these properties.

    `named` are the resources and the right of `sentence`.
    """
    servers = str(client.get("bootstrap.servers") or "")
    code = error.args[0].code() if isinstance(error, KafkaException) else None
    if code is not None and code not in AWAY:
        return Retry(whose + sentence(error, client=client, **named))
    brokers = servers.replace(",", " ").split()
    with ThreadPoolExecutor(max(1, min(len(brokers), 8))) as threads:
        found = dict(zip(brokers, threads.map(lambda server: trouble(client, server, heard), brokers), strict=True))
    troubles = {server: one for server, one in found.items() if one is not None}
    if not troubles:
        return Unexplained(f"{whose}no Kafka broker answers at {servers}: {sentence(error)}")
    texts = [one.text for one in troubles.values()]
    each = "; ".join(f"{server}: {one.text}" for server, one in troubles.items())
    why = texts[0] if len({*texts}) == 1 else each
    if all(one.is_away for one in troubles.values()):
        return Unreachable(f"{whose}no Kafka broker answers at {servers}: {why}")
    return Retry(f"{whose}no Kafka broker at {servers} takes this client: {why}")


def sentence(
    error: Any,
    *,
    topic: str = "",
    group: str = "",
    transactional_id: str = "",
    right: str = "",
    client: Mapping[str, Any] | None = None,
) -> str:
    """Return what a KafkaException, a KafkaError or a TimeoutError says went wrong.

    Where it is a missing right, the names say on which resource, and `right` which one it is on a topic.
    """
    if isinstance(error, TimeoutError):
        return "no answer in time"
    known = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(known, KafkaError):
        return str(known)
    if (kind := _RIGHTS.get(known.code())) is not None:
        user = (client or {}).get("sasl.username")
        who = f"user {user}" if user else "this client"
        names = {"topic": (topic, right), "consumer group": (group, "Read"), "cluster": ("", "")}
        name, right = names.get(kind, (transactional_id, "Write"))
        on = f"{kind} {name}".rstrip() if kind != "cluster" else "the cluster"
        return f"{who} lacks the right{f' {right}' if right else ''} on {on} ({known.str()})"
    if known.code() in TOO_OLD:
        return f"the brokers are too old for this ({known.str()})"
    return str(known.str())


def trouble(client: Mapping[str, Any], server: str, heard: ReportedErrors) -> Trouble | None:
    """Connect to a broker as a client with these properties does; None where that shows nothing wrong."""
    protocol = str(client.get("security.protocol", "PLAINTEXT")).upper()
    address = server.rpartition("://")[2]
    host, _, port = address.rpartition(":") if ":" in address else (address, ":", "9092")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        return Trouble("it must be written as host:port", False)
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
    except socket.gaierror as e:
        return Trouble(f"unknown host ({e.strerror})", True)
    except ValueError:  # UnicodeError: a label between dots is empty or too long (RFC 1034, section 3.1)
        return Trouble(f"{host} is no name of a host", True)
    except TimeoutError:
        return Trouble(f"no connection within {CONNECT_SECONDS:.0f} s; is a firewall between?", True)
    except (OSError, OverflowError) as e:
        why = getattr(e, "strerror", None) or str(e)
        return Trouble(
            f"{why}; is it running? For the cluster of `agent cluster start`, see `agent cluster status`", True
        )
    with connection:
        connection.settimeout(CONNECT_SECONDS)
        found = (
            _over_tls(client, connection, (host, int(port)))
            if "SSL" in protocol
            else _in_plain_text(connection, host, int(port))
        )
    if found is not None:
        return found
    if text := heard.refusal(address):
        return Trouble(login(text, client), False)
    if "SASL" not in protocol:
        secure = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
        if _closes(client, host, int(port), "SSL" in protocol):
            return Trouble(
                f"it wants a login: set security.protocol = {secure}, with sasl.mechanism and a user", False
            )
    return None


def login(text: str, client: Mapping[str, Any]) -> str:
    """Return what to do about the words in which a broker has refused the login of this client."""
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms") or "GSSAPI"
    if "Request not valid in current SASL state" in text or "Disconnected" in text:
        return "it takes no logins there: name the port of its SASL listener, or set security.protocol without SASL"
    if found := re.search("supported mechanisms: *(.+)", text):
        return f"it does not take sasl.mechanism = {mechanism}; it takes {found[1].replace(',', ', ')}"
    why = text.removeprefix("SASL authentication error: ").removeprefix("Authentication failed: ")
    return f"it refuses user {client.get('sasl.username', '')}: {why}"


# --- what answers


def _asked(connection: socket.socket) -> bytes:
    """Return the beginning of the answer to a request of Kafka's; empty where the connection ends."""
    connection.sendall(_API_VERSIONS)
    data = b""
    while len(data) < 8 and (more := connection.recv(512)):
        data += more
        if not _is_kafka(data) and len(data) >= 4 and data[:2] != b"\0\0":
            break
    return data


def _is_kafka(data: bytes) -> bool:
    return len(data) >= 8 and struct.unpack(">i", data[4:8])[0] == _CORRELATION


def _in_plain_text(connection: socket.socket, host: str, port: int) -> Trouble | None:
    try:
        data = _asked(connection)
    except TimeoutError:
        return _silent(host, port)
    except OSError:
        data = b""
    if _is_kafka(data):
        return None
    if data.startswith((b"HTTP/", b"<")):
        return Trouble(_HTTP, False)
    if data[:2] == b"\x15\x03" or (not data and _speaks_tls(host, port)):
        return _wants_tls()
    if data:
        return Trouble("what answers is no Kafka broker", False)
    return Trouble("it ends the connection without an answer; is it a Kafka broker?", False)


_HTTP = "an HTTP server answers, and no Kafka broker"


def _silent(host: str, port: int) -> Trouble:
    if _speaks_tls(host, port):
        return _wants_tls()
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if connection.recv(5) == b"HTTP/":
            return Trouble(_HTTP, False)
    return Trouble("it takes the connection and answers nothing; is it a Kafka broker?", True)


def _wants_tls() -> Trouble:
    return Trouble("it speaks TLS, and this client does not: set security.protocol = SSL, or SASL_SSL", False)


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:
        return False


def _closes(client: Mapping[str, Any], host: str, port: int, tls: bool) -> bool:
    """Return True if the broker ends the connection at a request for which it wants a login."""
    request = struct.pack(">hhihi", 3, 0, _CORRELATION, -1, 0)  # Metadata, of all topics
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=CONNECT_SECONDS))
            if tls:
                connection = stack.enter_context(tls_context(client).wrap_socket(connection, server_hostname=host))
            connection.sendall(struct.pack(">i", len(request)) + request)
            return not connection.recv(8)
    except TimeoutError:
        return False
    except (OSError, ValueError):
        return True


# --- TLS


def _over_tls(client: Mapping[str, Any], connection: socket.socket, at: tuple[str, int]) -> Trouble | None:
    try:
        context = tls_context(client)
    except (OSError, ValueError):
        return None  # the client has said so itself
    try:
        with context.wrap_socket(connection, server_hostname=at[0]) as secured:
            _asked(secured)  # with TLS 1.3 a client's certificate is looked at after the handshake
    except ssl.SSLCertVerificationError as e:
        return Trouble(_untrusted(e, at), False)
    except TimeoutError:
        return Trouble("it takes the connection and does not answer over TLS", True)
    except ssl.SSLError as e:
        return Trouble(_not_agreed(e, client), False)
    except OSError:
        return Trouble(_NO_TLS, False)
    return None


_NO_TLS = "it does not speak TLS, and this client does: name its TLS port, or set security.protocol without SSL"


def _not_agreed(error: ssl.SSLError, client: Mapping[str, Any]) -> str:
    why = (error.reason or str(error)).upper().replace(" ", "_")
    if "CERTIFICATE_REQUIRED" in why or ("ALERT" in why and "CERTIFICATE" in why):
        if not any(
            client.get(name) for name in ("ssl.certificate.pem", "ssl.certificate.location", "ssl.keystore.location")
        ):
            return (
                "it wants a certificate of this client, which has none: set ssl.keystore.location, or "
                "ssl.certificate.location and ssl.key.location"
            )
        said = why.rpartition("ALERT_")[2].lower().replace("_", " ")
        return f"it refuses this client's certificate ({said}): is its authority in the broker's truststore?"
    if why in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "UNEXPECTED_EOF_WHILE_READING",
        "RECORD_LAYER_FAILURE",
    ) or isinstance(error, ssl.SSLEOFError):
        return _NO_TLS
    return f"no TLS connection comes about ({why.lower().replace('_', ' ')})"


def _untrusted(error: ssl.SSLCertVerificationError, at: tuple[str, int]) -> str:
    why = error.verify_message
    whose = f"the broker's certificate{_subject(at)}"
    if "mismatch" in why:
        return (
            f"{whose} is not for {at[0]}: write the brokers as it names them, or set "
            "ssl.endpoint.identification.algorithm = none"
        )
    if "expired" in why or "not yet valid" in why:
        return f"{whose}: {why}"
    return f"{whose} is not trusted ({why}): name its authority with ssl.truststore.location or ssl.ca.location"


def _subject(at: tuple[str, int]) -> str:
    """Return ` (CN=…)` of the certificate there, or nothing if it cannot be read."""
    try:
        x509 = require("cryptography.x509", "tls")
        found = x509.load_pem_x509_certificate(ssl.get_server_certificate(at, timeout=CONNECT_SECONDS).encode())
        return f" ({found.subject.rfc4514_string()})"
    except Exception:  # noqa: BLE001  # the sentence does without
        return ""


def tls_context(client: Mapping[str, Any]) -> ssl.SSLContext:
    """Return what the client's properties mean in Python. OSError or ValueError where a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = client.get("ssl.endpoint.identification.algorithm", "https") not in ("none", "")
    if pem := client.get("ssl.ca.pem"):
        context.load_verify_locations(cadata=str(pem))
    elif path := client.get("ssl.ca.location"):
        context.load_verify_locations(str(path))
    else:
        context.load_default_certs()
    if str(client.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    password = client.get("ssl.key.password")
    if certificate := client.get("ssl.certificate.location"):
        context.load_cert_chain(str(certificate), client.get("ssl.key.location"), password)
    elif pem := client.get("ssl.certificate.pem"):
        fd = os.memfd_create("key")  # OpenSSL takes a key from files only, and it must not lie on a disk
        try:
            os.write(fd, f"{client.get('ssl.key.pem', '')}\n{pem}".encode())
            context.load_cert_chain(f"/proc/self/fd/{fd}", password=password)
        finally:
            os.close(fd)
    return context


def failure(error: Any, text: str) -> Retry:
    """Return the exception with that text for a client's error: Unreachable where brokers are away, else Retry."""
    known = error.args[0] if isinstance(error, KafkaException) else error
    away = isinstance(error, TimeoutError) or known.code() in AWAY
    return Unreachable(text) if away else Retry(text)


def is_broken(error: Exception) -> bool:
    """Return True if the producer that raised the error refuses all work from now on."""
    if isinstance(error, KafkaException):
        return bool(error.args[0].fatal() or error.args[0].code() == KafkaError._FATAL)
    return isinstance(error, SystemError)


def raising(callback: Callable[[Consumer, list[TopicPartition]], None]) -> Callable[..., None]:
    """Return that rebalance callback with the client's errors as Retry.

    What the client itself raised, and a callback lets through, comes out of `poll` as something that no `except`
    clause for an Exception catches: the thread would end without a word.
    """

    def wrapped(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            callback(consumer, partitions)
        except KafkaException as e:
            raise Retry(sentence(e)) from e

    return wrapped

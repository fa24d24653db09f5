"""Kafka's properties by librdkafka's names or by Java's: as each of the two clients wants them."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException

from flafka.plugins.errors import Retry
from flafka.plugins.problems import Problem, suggestion
from flafka.plugins.shared.keystore import Keystore, read_keystore

_LOG = logging.getLogger("librdkafka")
_LOG.addFilter(lambda record: record.levelno < logging.CRITICAL)
QUIET: Mapping[str, Any] = {"log_level": 0, "logger": _LOG}
"""Properties of a client that logs nothing by itself: components report what matters.

A configured `log_level` brings the rest into the log. Without a logger the client writes fatal errors to standard
error at any level, such as the one of a replaced static member."""
_OF_PRODUCERS = frozenset(
    {"acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "transactional.id"}
)
OURS = _OF_PRODUCERS | {"auto.offset.reset", "enable.auto.commit", "group.id", "partition.assignment.strategy"}
"""Properties on which the guarantees rest: set here, whatever Flume's files say about them."""
_RETRIES = frozenset({"retries", "message.send.max.retries"})
_IN_FLIGHT = frozenset({"max.in.flight", "max.in.flight.requests.per.connection"})
MOST_IN_FLIGHT = 5
"""Requests on their way to a broker with which an idempotent producer keeps their order."""
_RENAMED = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
_BOTH = {
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "sasl.mechanisms": "sasl.mechanism",
}
"""Names by which librdkafka calls properties in errors, with the names of Java that it accepts as well."""
_VALUES = {
    "compression.codec": ["gzip", "snappy", "lz4", "zstd", "none"],
    "isolation.level": ["read_committed", "read_uncommitted"],
    "partitioner": [
        "random",
        "consistent",
        "consistent_random",
        "murmur2",
        "murmur2_random",
        "fnv1a",
        "fnv1a_random",
    ],
    "security.protocol": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
}
"""Values of properties for which librdkafka does not list them itself."""
_STORES = frozenset(
    f"ssl.{store}.{what}" for store in ("truststore", "keystore") for what in ("location", "password", "type")
)
_PEM = {
    "ssl.ca": ("ssl.truststore.certificates", "ssl.truststore"),
    "ssl.certificate": ("ssl.keystore.certificate.chain", "ssl.keystore"),
    "ssl.key": ("ssl.keystore.key", "ssl.keystore"),
}
"""librdkafka's PEM files and texts, and where Java has these."""
_IN_PLACE_OF = {
    "truststore": ("ssl.ca.location", "ssl.ca.pem", "ssl.truststore.certificates"),
    "keystore": ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.certificate.chain"),
}
"""Properties beside which the environment variables FLUME_SSL_TRUSTSTORE_… and FLUME_SSL_KEYSTORE_… do not hold."""
NO_HOSTNAMES = "ssl.disableTLSHostnameVerification"
"""Flume's own property: brokers' certificates may be for other hosts."""
_TAKEN = OURS | _STORES | {"sasl.jaas.config", NO_HOSTNAMES}
"""Properties that are set here, or read for what they are for."""
_TO_JAVA = frozenset(
    {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
    | {f"{name}.{how}" for name in _PEM for how in ("pem", "location")}
)
_SPARKS_OWN = re.compile(r"auto\.offset\.reset|enable\.auto\.commit|group\.id|interceptor\.classes|.*\.deserializer")
"""Usual in Flume's files; Spark sets them itself, and ends a query that names one."""
_JAVA_ONLY = (
    r"(key|value)\.(de)?serializer(\..*)?|max\.poll\.records|max\.block\.ms|interceptor\.classes|metric(s|\.).*|"
    r"partitioner\.(class|.*\.ms|ignore\.keys)|exclude\.internal\.topics|default\.api\.timeout\.ms|sasl\.login\..*|"
    r"sasl\.client\.callback.*|ssl\.(protocol|provider|enabled\.protocols|.*manager\.algorithm|cipher\.suites)|"
    r"ssl\.(secure\.random.*|engine\.factory\.class)|client\.dns\.lookup|auto\.include\.jmx\.reporter|schema\.registry.*"
)
"""A text, which `re` compiles when it is asked for: that takes 10 ms, and few configurations have such a property."""


def client_properties(properties: Mapping[str, str], *, stores: bool = True) -> dict[str, Any]:
    """librdkafka's properties for these, without those that are `OURS`, and those that are none of its own.

    Java's key- and truststores are read, unless `stores` is false: Retry says what is wrong with them.
    """
    found: dict[str, Any] = {}
    properties = _with_flumes_tls(properties)
    for name, value in properties.items():
        if name == "buffer.memory":
            value = str(max(1, int(value) >> 10)) if value.isdecimal() else value
        if name == "ssl.endpoint.identification.algorithm":
            value = value or "none"
        if name == "sasl.jaas.config":
            found |= _jaas(value)
        elif name not in OURS and name not in _STORES and _is_known(name) and not _never_retries(name, value):
            found[_RENAMED.get(name, name)] = _in_flight(name, value)
    if stores:
        found |= _stores(properties)
    if "ssl.key.pem" in found:
        found.pop("ssl.key.password", None)
    return found


def number(text: object) -> float | None:
    """Return the number that a client reads in a property, such as 16 for 0x10; None for any other text."""
    written = str(text).strip().lower()
    if re.fullmatch(r"[+-]?0x[0-9a-f]+", written):
        return int(written, 16)
    return float(written) if re.fullmatch(r"[+-]?\d+(\.\d*)?", written) else None


def _never_retries(name: str, value: str) -> bool:
    return name in _RETRIES and (number(value) or 0) < 1


def _in_flight(name: str, value: str) -> str:
    wanted = number(value) if name in _IN_FLIGHT else None
    return value if wanted is None else str(int(min(wanted, MOST_IN_FLIGHT)))


def _is_known(name: str) -> bool:
    """Return True if librdkafka has that property, by its own name or by Java's."""
    return not re.fullmatch(_JAVA_ONLY, name) and _answer(name) is not None


def _is_number(name: str) -> bool:
    """Return True if librdkafka wants a number there. It takes `5x` for 5, and `100m` of bytes for 100 of them."""
    return (_answer(name) or "").startswith("Invalid value for configuration property")


@functools.cache
def _answer(name: str) -> str | None:
    """Return what librdkafka says of `?` as the value of that property; None if it has no such property."""
    try:
        Consumer({**QUIET, "group.id": "none", _RENAMED.get(name, name): "?"}).close()
    except KafkaException as e:
        text = str(e.args[0].str())
        return None if "No such configuration property" in text else text
    except TypeError:  # a function is set there, such as error_cb, which no file can name
        return None
    return ""


def _with_flumes_tls(properties: Mapping[str, str]) -> dict[str, str]:
    """Return these properties with Flume's own settings of TLS in Java's names (KafkaSSLUtil of Flume 1.11)."""
    found = {name: value for name, value in properties.items() if name != NO_HOSTNAMES}
    if properties.get("security.protocol", "").upper() not in ("SSL", "SASL_SSL"):
        return found
    if properties.get(NO_HOSTNAMES, "").lower() == "true":
        found["ssl.endpoint.identification.algorithm"] = "none"
    for store, others in _IN_PLACE_OF.items():
        path = os.environ.get(f"FLUME_SSL_{store.upper()}_PATH")
        if path and not found.keys() & {f"ssl.{store}.location", *others}:
            found[f"ssl.{store}.location"] = path
            if (password := os.environ.get(f"FLUME_SSL_{store.upper()}_PASSWORD")) is not None:
                found.setdefault(f"ssl.{store}.password", password)
    return found


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Java's properties for these, as Spark wants them, without those that it refuses to be given.

    Retry where a file that one names cannot be read.
    """
    properties = _with_flumes_tls(properties)
    found = {n: value for n, value in properties.items() if n not in _TO_JAVA and not _SPARKS_OWN.fullmatch(n)}
    if mechanism := properties.get("sasl.mechanism") or properties.get("sasl.mechanisms"):
        found["sasl.mechanism"] = mechanism
    if (user := properties.get("sasl.username")) is not None:
        module = "scram.Scram" if (mechanism or "").startswith("SCRAM") else "plain.Plain"
        pairs = f"username={_quoted(user)} password={_quoted(properties.get('sasl.password', ''))}"
        found["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module}LoginModule required {pairs};"
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    for name, (java, store) in _PEM.items():
        text = properties.get(f"{name}.pem")
        if text is None and (path := properties.get(f"{name}.location")) is not None:
            text = _text(path)
        if text is not None:
            found |= {java: text, f"{store}.type": "PEM"}
    return found


def accepted(properties: dict[str, str], make: Callable[[dict[str, Any]], object]) -> dict[str, str]:
    """Return the properties if a client can be made with them.

    Raises ValueError with a line for each wrong one. Of properties that contradict each other the first is named.
    """
    wrong = [
        f"{name}: {value!r} is not a number, written in digits alone"
        for name, value in properties.items()
        if _is_known(name) and number(value) is None and _is_number(name)
    ]
    left = {name: value for name, value in properties.items() if not any(w.startswith(f"{name}: ") for w in wrong)}
    while left:
        try:
            make(client_properties(left, stores=False))
        except KafkaException as e:
            text = str(e.args[0].str()).strip()
            together = text.startswith("Failed to create")
            if wrong and together:  # it may be for want of what is left out
                break
            name, text = _refused(text, left)
            wrong.append(f"{name}: {text}" if name else text)
            if together or name is None:
                break
            del left[name]
        else:
            break
    if wrong:
        raise ValueError("\n".join(wrong))
    return properties


def _refused(text: str, properties: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the property that the client's error is about, or None, and the sentence about it."""
    about = re.findall('(?:property|for) "([^"]+)"|`([a-z.]+)`', text)
    about = [quoted or ticked for quoted, ticked in about]
    if (file := re.search(r"(ssl\.[a-z.]+) failed: ", text)) and (path := properties.get(file[1])) is not None:
        about = [file[1]]
        if not path.startswith("-----") and (why := _unreadable(path)):
            text = why
    if "GSSAPI" in text:
        about = ["sasl.mechanism", "sasl.mechanisms", "security.protocol"]
        text = (
            "Kerberos (GSSAPI) is not in the installed librdkafka: install librdkafka-dev and libsasl2-dev, then run "
            "`pip install --force-reinstall --no-binary confluent-kafka confluent-kafka`; or use SCRAM or PLAIN"
        )
    names = {_RENAMED.get(name, name): name for name in properties}
    for known in about:
        if (name := names.get(known) or names.get(_BOTH.get(known, known))) is None:
            continue
        if (values := _VALUES.get(known)) is not None and "Invalid" in text:
            text = f"{properties[name]!r} is none of {', '.join(values)}{suggestion(properties[name], values)}"
        return name, text
    return None, text


def without_effect(prefix: str, properties: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a warning for each property that has no effect here."""
    for name, value in properties.items():
        if why := _overruled(name, value):
            yield Problem(prefix + name, why, note=True)
        elif not (name in _TAKEN or name.endswith("serializer") or _is_known(name)):
            yield Problem(prefix + name, "has no effect: Kafka's clients have no such property", as_in_flume=True)


def _overruled(name: str, value: str) -> str:
    """Return why a property of that value is not the one that holds; empty if it is."""
    if name in _OF_PRODUCERS and value.lower() not in ("all", "-1", "true"):
        return "has no effect: acks = all and idempotence are always set, or the loss of a broker loses events"
    if _never_retries(name, value):
        effect = "repeats a request until delivery.timeout.ms, and stores each event once"
        return f"has no effect: an idempotent producer {effect}"
    if name in _IN_FLIGHT and (number(value) or 0) > MOST_IN_FLIGHT:
        return f"is {MOST_IN_FLIGHT} here: an idempotent producer keeps the order of no more requests"
    if re.fullmatch(_JAVA_ONLY, name) and not name.endswith("serializer"):
        return "has no effect: it is a property of Java's client only"
    return ""


def _unreadable(path: str) -> str:
    try:
        _text(path)
    except Retry as e:
        return str(e)
    return ""


def _jaas(text: str) -> dict[str, str]:
    """`…LoginModule required username="x" password="y";` in librdkafka's properties."""
    names = {
        "username": "sasl.username",
        "password": "sasl.password",
        "keyTab": "sasl.kerberos.keytab",
        "principal": "sasl.kerberos.principal",
        "serviceName": "sasl.kerberos.service.name",
    }
    pairs = re.findall(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""", text)
    given = {name: re.sub(r"\\(.)", r"\1", double) or single or bare for name, double, single, bare in pairs}
    return {names[name]: value for name, value in given.items() if name in names}


def _stores(properties: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if path := properties.get("ssl.truststore.location"):
        store = _read(path, properties.get("ssl.truststore.password"))
        found["ssl.ca.pem"] = b"".join(store.trusted + store.chain).decode()
    if path := properties.get("ssl.keystore.location"):
        password, key_password = properties.get("ssl.keystore.password"), properties.get("ssl.key.password")
        store = _read(path, password or key_password, key_password)
        if not store.key:
            raise Retry(f"cannot use the keystore {path}: it holds no private key")
        found["ssl.key.pem"], found["ssl.certificate.pem"] = store.key.decode(), b"".join(store.chain).decode()
    return found


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as e:
        raise Retry(f"cannot read {path}: {e.strerror}") from e


def _read(path: str, password: str | None, key_password: str | None = None) -> Keystore:
    try:
        return read_keystore(path, password, key_password)
    except (OSError, ValueError) as e:
        raise Retry(f"cannot use the keystore {path}: {getattr(e, 'strerror', None) or e}") from e

"""Conversion of Kafka's properties between the names of librdkafka and of Java's client."""

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
from flafka.plugins.net.keystore import Keystore, read_keystore
from flafka.plugins.problems import Problem, suggest

_LOG = logging.getLogger("librdkafka")
_LOG.addFilter(lambda record: record.levelno < logging.CRITICAL)
QUIET: Mapping[str, Any] = {"log_level": 0, "logger": _LOG}
"""Properties of a client that logs nothing by itself, as components report errors.

A configured `log_level` enables the client's log. Without a logger the client writes fatal errors to standard error
at any level, such as that of a fenced static member."""
_OF_PRODUCERS = frozenset(
    {"acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "transactional.id"}
)
MANAGED = _OF_PRODUCERS | {"auto.offset.reset", "enable.auto.commit", "group.id", "partition.assignment.strategy"}
"""Properties that the components set themselves, as the delivery guarantees depend on them; others' values are
ignored."""
_RETRIES = frozenset({"retries", "message.send.max.retries"})
_IN_FLIGHT = frozenset({"max.in.flight", "max.in.flight.requests.per.connection"})
MAX_IN_FLIGHT = 5
"""Maximum number of requests in flight for which an idempotent producer guarantees their order."""
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
_ALIASES = {
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "sasl.mechanisms": "sasl.mechanism",
}
"""Names of properties in librdkafka's errors, with Java's names, which librdkafka accepts as well."""
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
"""Valid values of properties for which librdkafka's error does not list them."""
_STORES = frozenset(
    f"ssl.{store}.{what}" for store in ("truststore", "keystore") for what in ("location", "password", "type")
)
_PEM = {
    "ssl.ca": ("ssl.truststore.certificates", "ssl.truststore"),
    "ssl.certificate": ("ssl.keystore.certificate.chain", "ssl.keystore"),
    "ssl.key": ("ssl.keystore.key", "ssl.keystore"),
}
"""Java's properties for librdkafka's PEM files and texts."""
_STORE_OVERRIDES = {
    "truststore": ("ssl.ca.location", "ssl.ca.pem", "ssl.truststore.certificates"),
    "keystore": ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.certificate.chain"),
}
"""Properties that override the environment variables FLUME_SSL_TRUSTSTORE_… and FLUME_SSL_KEYSTORE_…."""
NO_HOSTNAMES = "ssl.disableTLSHostnameVerification"
"""Flume's property: brokers' certificates may be for other hosts."""
_HANDLED = MANAGED | _STORES | {"sasl.jaas.config", NO_HOSTNAMES}
"""Properties that are set here, or converted to other properties."""
_TO_JAVA = frozenset(
    {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
    | {f"{name}.{how}" for name in _PEM for how in ("pem", "location")}
)
_SET_BY_SPARK = re.compile(
    r"auto\.offset\.reset|enable\.auto\.commit|group\.id|interceptor\.classes|.*\.deserializer"
)
"""Properties that Spark sets itself: it ends a query that names one. Flume's files often have them."""
_JAVA_ONLY = (
    r"(key|value)\.(de)?serializer(\..*)?|max\.poll\.records|max\.block\.ms|interceptor\.classes|metric(s|\.).*|"
    r"partitioner\.(class|.*\.ms|ignore\.keys)|exclude\.internal\.topics|default\.api\.timeout\.ms|sasl\.login\..*|"
    r"sasl\.client\.callback.*|ssl\.(protocol|provider|enabled\.protocols|.*manager\.algorithm|cipher\.suites)|"
    r"ssl\.(secure\.random.*|engine\.factory\.class)|client\.dns\.lookup|auto\.include\.jmx\.reporter|schema\.registry.*"
)
"""Pattern of properties of Java's client only. `re` compiles it on first use, as compilation takes 10 ms."""


def client_properties(properties: Mapping[str, str], *, stores: bool = True) -> dict[str, Any]:
    """Return librdkafka's properties for properties of either client, without `MANAGED` and unknown ones.

    Requests in flight are limited to `MAX_IN_FLIGHT`, and 0 retries are left out. Reads Java's key stores and trust
    stores if `stores` is true. Raises Retry for an unusable store.
    """
    converted: dict[str, Any] = {}
    properties = _with_flumes_tls(properties)
    for name, value in properties.items():
        if name == "buffer.memory":
            value = str(max(1, int(value) >> 10)) if value.isdecimal() else value
        if name == "ssl.endpoint.identification.algorithm":
            value = value or "none"
        if name == "sasl.jaas.config":
            converted |= _jaas(value)
        elif name not in MANAGED and name not in _STORES and _is_known(name) and not _never_retries(name, value):
            converted[_RENAMED.get(name, name)] = _in_flight(name, value)
    if stores:
        converted |= _stores(properties)
    if "ssl.key.pem" in converted:
        converted.pop("ssl.key.password", None)
    return converted


def parse_number(text: object) -> float | None:
    """Return a property's value as a number, such as 16 for 0x10; None for any other text."""
    written = str(text).strip().lower()
    if re.fullmatch(r"[+-]?0x[0-9a-f]+", written):
        return int(written, 16)
    return float(written) if re.fullmatch(r"[+-]?\d+(\.\d*)?", written) else None


def _never_retries(name: str, value: str) -> bool:
    """Return True for the number of retries if it is less than 1, or no number."""
    return name in _RETRIES and (parse_number(value) or 0) < 1


def _in_flight(name: str, value: str) -> str:
    """Return a property's value; a number of requests in flight is limited to `MAX_IN_FLIGHT`."""
    wanted = parse_number(value) if name in _IN_FLIGHT else None
    return value if wanted is None else str(int(min(wanted, MAX_IN_FLIGHT)))


def _is_known(name: str) -> bool:
    """Return True if librdkafka has the property, by its own name or by Java's."""
    return not re.fullmatch(_JAVA_ONLY, name) and _error_of(name) is not None


def _is_number(name: str) -> bool:
    """Return True if the property is a number.

    librdkafka itself accepts `5x` as 5, and `100m` bytes as 100.
    """
    return (_error_of(name) or "").startswith("Invalid value for configuration property")


@functools.cache
def _error_of(name: str) -> str | None:
    """Return librdkafka's error for the value `?` of a property; None if there is no such property."""
    try:
        Consumer({**QUIET, "group.id": "none", _RENAMED.get(name, name): "?"}).close()
    except KafkaException as e:
        text = str(e.args[0].str())
        return None if "No such configuration property" in text else text
    except TypeError:  # the value must be a function, as of error_cb
        return None
    return ""


def _with_flumes_tls(properties: Mapping[str, str]) -> dict[str, str]:
    """Return these properties with Flume's own settings of TLS in Java's names (KafkaSSLUtil of Flume 1.11).

    Without TLS only Flume's own property is removed. Properties win over environment variables.
    """
    result = {name: value for name, value in properties.items() if name != NO_HOSTNAMES}
    if properties.get("security.protocol", "").upper() not in ("SSL", "SASL_SSL"):
        return result
    if properties.get(NO_HOSTNAMES, "").lower() == "true":
        result["ssl.endpoint.identification.algorithm"] = "none"
    for store, overrides in _STORE_OVERRIDES.items():
        path = os.environ.get(f"FLUME_SSL_{store.upper()}_PATH")
        if path and not result.keys() & {f"ssl.{store}.location", *overrides}:
            result[f"ssl.{store}.location"] = path
            if (password := os.environ.get(f"FLUME_SSL_{store.upper()}_PASSWORD")) is not None:
                result.setdefault(f"ssl.{store}.password", password)
    return result


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of Java's client, for Spark, without those that Spark sets itself.

    Raises Retry if a named file cannot be read.
    """
    properties = _with_flumes_tls(properties)
    converted = {n: value for n, value in properties.items() if n not in _TO_JAVA and not _SET_BY_SPARK.fullmatch(n)}
    if mechanism := properties.get("sasl.mechanism") or properties.get("sasl.mechanisms"):
        converted["sasl.mechanism"] = mechanism
    if (user := properties.get("sasl.username")) is not None:
        module = "scram.Scram" if (mechanism or "").startswith("SCRAM") else "plain.Plain"
        pairs = f"username={_quoted(user)} password={_quoted(properties.get('sasl.password', ''))}"
        converted["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module}LoginModule required {pairs};"
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        converted["ssl.endpoint.identification.algorithm"] = ""
    for name, (java, store) in _PEM.items():
        text = properties.get(f"{name}.pem")
        if text is None and (path := properties.get(f"{name}.location")) is not None:
            text = _text(path)
        if text is not None:
            converted |= {java: text, f"{store}.type": "PEM"}
    return converted


def check_accepted(properties: dict[str, str], make: Callable[[dict[str, Any]], object]) -> dict[str, str]:
    """Return the properties unchanged if `make` can make a client with them, in librdkafka's names.

    Raises ValueError with a line for each invalid property. Of contradictory properties, the first is named.
    """
    errors = [
        f"{name}: {value!r} is not a number, written in digits alone"
        for name, value in properties.items()
        if _is_known(name) and parse_number(value) is None and _is_number(name)
    ]
    valid = {name: value for name, value in properties.items() if not any(w.startswith(f"{name}: ") for w in errors)}
    while valid:
        try:
            make(client_properties(valid, stores=False))
        except KafkaException as e:
            text = str(e.args[0].str()).strip()
            is_combination = text.startswith("Failed to create")
            if errors and is_combination:  # the omitted invalid properties may be the cause
                break
            name, text = _explain_refusal(text, valid)
            errors.append(f"{name}: {text}" if name else text)
            if is_combination or name is None:
                break
            del valid[name]
        else:
            break
    if errors:
        raise ValueError("\n".join(errors))
    return properties


def _explain_refusal(text: str, properties: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the property that a client's error concerns, or None, and a sentence about it."""
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
        if (name := names.get(known) or names.get(_ALIASES.get(known, known))) is None:
            continue
        if (values := _VALUES.get(known)) is not None and "Invalid" in text:
            text = f"{properties[name]!r} is none of {', '.join(values)}{suggest(properties[name], values)}"
        return name, text
    return None, text


def ineffective_properties(prefix: str, properties: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a warning for each property that Kafka's clients do not have, and a note for each that is overruled.

    `prefix` is that of their options.
    """
    for name, value in properties.items():
        if why := _overruled(name, value):
            yield Problem(prefix + name, why, is_note=True)
        elif not (name in _HANDLED or name.endswith("serializer") or _is_known(name)):
            yield Problem(
                prefix + name, "has no effect: Kafka's clients have no such property", is_flume_behavior=True
            )


def _overruled(name: str, value: str) -> str:
    """Return the reason why a value of a property has no effect; empty if it has one."""
    if name in _OF_PRODUCERS and value.lower() not in ("all", "-1", "true"):
        return "has no effect: acks = all and idempotence are always set, or the loss of a broker loses events"
    if _never_retries(name, value):
        effect = "repeats a request until delivery.timeout.ms, and stores each event once"
        return f"has no effect: an idempotent producer {effect}"
    if name in _IN_FLIGHT and (parse_number(value) or 0) > MAX_IN_FLIGHT:
        return f"is {MAX_IN_FLIGHT} here: an idempotent producer keeps the order of no more requests"
    if re.fullmatch(_JAVA_ONLY, name) and not name.endswith("serializer"):
        return "has no effect: it is a property of Java's client only"
    return ""


def _unreadable(path: str) -> str:
    """Return the error of a file that cannot be read as text; empty if it can."""
    try:
        _text(path)
    except Retry as e:
        return str(e)
    return ""


def _jaas(text: str) -> dict[str, str]:
    """Return librdkafka's properties for `…LoginModule required username="x" password="y";`."""
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
    """Return librdkafka's PEM texts of Java's trust store and key store, as far as configured.

    Raises Retry for an unusable store.
    """
    pem: dict[str, str] = {}
    if path := properties.get("ssl.truststore.location"):
        store = _read(path, properties.get("ssl.truststore.password"))
        pem["ssl.ca.pem"] = b"".join(store.trusted + store.chain).decode()
    if path := properties.get("ssl.keystore.location"):
        password, key_password = properties.get("ssl.keystore.password"), properties.get("ssl.key.password")
        store = _read(path, password or key_password, key_password)
        if not store.key:
            raise Retry(f"cannot use the keystore {path}: it holds no private key")
        pem["ssl.key.pem"], pem["ssl.certificate.pem"] = store.key.decode(), b"".join(store.chain).decode()
    return pem


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _text(path: str) -> str:
    """Return the content of a text file. Raises Retry if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError as e:
        raise Retry(f"cannot read {path}: {e.strerror}") from e


def _read(path: str, password: str | None, key_password: str | None = None) -> Keystore:
    """Return the content of a key store. Raises Retry if it cannot be used."""
    try:
        return read_keystore(path, password, key_password)
    except (OSError, ValueError) as e:
        raise Retry(f"cannot use the keystore {path}: {getattr(e, 'strerror', None) or e}") from e

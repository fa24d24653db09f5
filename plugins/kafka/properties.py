"""Conversion of Kafka's properties between the names of librdkafka and of Java's client."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException

from flafka.plugins.errors import Retry
from flafka.plugins.kafka import logins
from flafka.plugins.kafka.kerberos import login_errors, named_of, own_login_properties, without_kinit
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
_BROKERS = frozenset({"bootstrap.servers", "metadata.broker.list"})
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
    **logins.ALIASES,
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
_CERTIFICATES = re.compile(r"(ssl|https)\.(ca|certificate|crl|key|keystore|truststore)\.location")
"""Names of properties for files with certificates, keys and authorities."""
NO_HOSTNAMES = "ssl.disableTLSHostnameVerification"
"""Flume's property: brokers' certificates may be for other hosts."""
_HANDLED = MANAGED | _STORES | {logins.JAAS, NO_HOSTNAMES}
"""Properties that are set here, or converted to other properties."""
_TO_JAVA = frozenset(
    {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
    | {f"{name}.{how}" for name in (*_PEM, "https.ca") for how in ("pem", "location")}
)
_LIBRDKAFKA_ONLY = (
    r"sasl\.oauthbearer\.(method|client\..*|scope|extensions|config|grant\.type|metadata\..*)|"
    r"enable\.sasl\.oauthbearer.*|sasl\.kerberos\.(keytab|principal)"
)
"""Pattern of further properties of logins that Java's client has in `sasl.jaas.config`, or not at all."""
_SET_BY_SPARK = re.compile(
    r"auto\.offset\.reset|enable\.auto\.commit|group\.id|interceptor\.classes|.*\.deserializer"
)
"""Properties that Spark sets itself: it ends a query that names one. Flume's files often have them."""
_JAVA_ONLY = (
    r"(key|value)\.(de)?serializer(\..*)?|max\.poll\.records|max\.block\.ms|interceptor\.classes|metric(s|\.).*|"
    r"partitioner\.(class|.*\.ms|ignore\.keys)|exclude\.internal\.topics|default\.api\.timeout\.ms|sasl\.login\..*|"
    r"sasl\.oauthbearer\.(jwt|jwks|expected|clock|header|scope\.claim)\..*|"
    r"sasl\.client\.callback.*|ssl\.(protocol|provider|enabled\.protocols|.*manager\.algorithm|cipher\.suites)|"
    r"ssl\.(secure\.random.*|engine\.factory\.class)|client\.dns\.lookup|auto\.include\.jmx\.reporter|schema\.registry.*"
)
"""Pattern of properties of Java's client only. `re` compiles it on first use, as compilation takes 10 ms."""


def client_properties(properties: Mapping[str, str], *, stores: bool = True) -> dict[str, Any]:
    """Return librdkafka's properties for properties of either client, without `MANAGED` and unknown ones.

    Requests in flight are limited to `MAX_IN_FLIGHT`, and 0 retries are left out. Reads Java's key stores and trust
    stores if `stores` is true. Raises Retry for an unusable store.
    """
    jaas = logins.parse_jaas(properties.get(logins.JAAS, ""))
    converted: dict[str, Any] = dict(logins.librdkafka_login(jaas))
    properties = _with_flumes_tls(properties)
    for name, value in properties.items():
        if name == "buffer.memory":
            value = str(max(1, int(value) >> 10)) if value.isdecimal() else value
        if name == "ssl.endpoint.identification.algorithm":
            value = value or "none"
        if name not in _HANDLED and _is_known(name) and not _never_retries(name, value):
            converted[_RENAMED.get(name, name)] = _in_flight(name, value)
    if stores:
        converted |= _stores(properties)
        path = jaas.get("ssl.truststore.location")  # of the token endpoint
        if path and not {"https.ca.location", "https.ca.pem"} & {*converted}:
            converted["https.ca.pem"] = _authorities(path, jaas.get("ssl.truststore.password"))
    converted |= logins.token_properties(converted)
    if "ssl.key.pem" in converted:
        converted.pop("ssl.key.password", None)
    return converted | own_login_properties(converted)


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


def certificate_files(properties: Mapping[str, str]) -> list[str]:
    """Return the paths of certificates, keys, authorities and key stores, which a client reads once, when made."""
    named = (*_with_flumes_tls(properties).items(), *logins.parse_jaas(properties.get(logins.JAAS, "")).items())
    return sorted({path for name, path in named if _CERTIFICATES.fullmatch(name) and path})


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of Java's client, for Spark, without those that Spark sets itself.

    Raises Retry if a named file cannot be read.
    """
    properties = _with_flumes_tls(properties)
    converted = {n: value for n, value in properties.items() if n not in _TO_JAVA and not _SET_BY_SPARK.fullmatch(n)}
    converted = {name: value for name, value in converted.items() if not re.fullmatch(_LIBRDKAFKA_ONLY, name)}
    if mechanism := properties.get("sasl.mechanism") or properties.get("sasl.mechanisms"):
        converted["sasl.mechanism"] = mechanism
    authorities = properties.get("https.ca.pem")
    if authorities is None and (path := properties.get("https.ca.location")) is not None:
        authorities = _text(path)
    converted |= logins.java_login(properties, authorities)
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        converted["ssl.endpoint.identification.algorithm"] = ""
    for store in ("truststore", "keystore"):
        converted |= _pem_store(store, converted)
        if converted.get(f"ssl.{store}.type") == "PEM":
            converted.pop(f"ssl.{store}.password", None)  # Java refuses it for PEM
    for name, (java, store) in _PEM.items():
        text = properties.get(f"{name}.pem")
        if text is None and (path := properties.get(f"{name}.location")) is not None:
            text = _text(path)
        if text is not None:
            converted |= {java: text, f"{store}.type": "PEM"}
    return converted


def _pem_store(store: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that Java needs for a store whose file is PEM, as it does not look at the content.

    They are the type, and the password of an encrypted key. The result is empty for another store.
    """
    kind = properties.get(f"ssl.{store}.type")
    if kind not in (None, "PEM") or not (path := properties.get(f"ssl.{store}.location")):
        return {}
    try:
        content = Path(path).read_bytes()
    except OSError:  # the executors, which read it, say so
        return {}
    if not content.startswith(b"-----BEGIN"):
        return {}
    password = properties.get("ssl.keystore.password")
    is_locked = store == "keystore" and b"ENCRYPTED" in content and "ssl.key.password" not in properties
    return {f"ssl.{store}.type": "PEM"} | ({"ssl.key.password": password} if is_locked and password else {})


def _offline(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties of a client that is only made to check them: it connects to no broker and no endpoint."""
    result = {name: value for name, value in without_kinit(client).items() if name not in _BROKERS}
    if logins.METHOD in client:  # librdkafka asks for a token at once, and a client waits for the answer when it ends
        result[logins.ENDPOINT] = "http://127.0.0.1:1/"
        if logins.CLIENT_SECRET in client:  # a proxy of the environment may take the request
            result[logins.CLIENT_SECRET] = "none"
    return result


def check_accepted(properties: dict[str, str], make: Callable[[dict[str, Any]], object]) -> dict[str, str]:
    """Return the properties unchanged if `make` can make a client with them, in librdkafka's names.

    Raises ValueError with a line for each invalid property. Of contradictory properties, the first is named. Connects
    to no server. A librdkafka without Kerberos is no error here: see `host_errors`.
    """
    errors = [
        f"{name}: {value!r} is not a number, written in digits alone"
        for name, value in properties.items()
        if _is_known(name) and parse_number(value) is None and _is_number(name)
    ]
    valid = {name: value for name, value in properties.items() if not any(w.startswith(f"{name}: ") for w in errors)}
    while valid:
        try:
            client = client_properties(valid, stores=False)
            logins.verify_tls(client)
            make(_offline(client))
        except KafkaException as e:
            text = str(e.args[0].str()).strip()
            if "No provider for SASL mechanism GSSAPI" in text:
                errors += _login_errors(client, valid)
                break
            is_combination = text.startswith("Failed to create")
            if errors and is_combination:  # the omitted invalid properties may be the cause
                break
            name, text = _explain_refusal(text, valid)
            errors.append(f"{name}: {text}" if name else text)
            if is_combination or name is None:
                break
            del valid[name]
        else:
            if never := logins.login_error(client, valid.get(logins.HANDLER)):
                errors.append(f"{'sasl.mechanism' if 'sasl.mechanism' in valid else 'sasl.mechanisms'}: {never}")
            if not errors:
                errors += _login_errors(client, valid)
            break
    if errors:
        raise ValueError("\n".join(errors))
    return properties


def _login_errors(client: Mapping[str, Any], properties: Collection[str]) -> list[str]:
    """Return a line for each reason why this client can never log in by Kerberos."""
    return [f"{named_of(names, properties)}: {text}" for names, text in login_errors(client)]


def _explain_refusal(text: str, properties: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the property that a client's error concerns, or None, and a sentence about it."""
    about = re.findall('(?:property|for) "([^"]+)"|`([a-z.]+)`', text)
    about = [quoted or ticked for quoted, ticked in about]
    if (file := re.search(r"(ssl\.[a-z.]+) failed: ", text)) and (path := properties.get(file[1])) is not None:
        about = [file[1]]
        if not path.startswith("-----") and (why := _unreadable(path)):
            text = why
    if re.search("Unsupported SASL mechanism|sasl.username and sasl.password must be set|is mandatory when", text):
        about, mechanism = ["sasl.mechanism", "sasl.mechanisms"], logins.mechanism_of(properties)
        needed = text.split("`")[1] if "`" in text else "sasl.username and sasl.password"
        text = f"{mechanism} needs {needed}, or the equivalent options in {logins.JAAS}"
        if mechanism not in (known := [*logins.MECHANISMS]):
            text = f"{mechanism!r} is none of {', '.join(known)}{suggest(mechanism, known)}"
    names = {_RENAMED.get(name, name): name for name in properties}
    for concerned in about:
        if (name := names.get(concerned) or names.get(_ALIASES.get(concerned, concerned))) is None:
            continue
        if (values := _VALUES.get(concerned)) is not None and "Invalid" in text:
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
        elif not (name in _HANDLED or name == logins.HANDLER or name.endswith("serializer") or _is_known(name)):
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
    if name == logins.HANDLER and value in logins.OAUTH_HANDLERS:
        return ""
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


def _stores(properties: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's PEM texts of Java's trust store and key store, as far as configured.

    Raises Retry for an unusable store.
    """
    pem: dict[str, str] = {}
    if path := properties.get("ssl.truststore.location"):
        pem["ssl.ca.pem"] = _authorities(path, properties.get("ssl.truststore.password"))
    if path := properties.get("ssl.keystore.location"):
        password, key_password = properties.get("ssl.keystore.password"), properties.get("ssl.key.password")
        store = _read(path, password or key_password, key_password)
        if not store.key:
            raise Retry(f"cannot use the keystore {path}: it holds no private key")
        pem["ssl.key.pem"], pem["ssl.certificate.pem"] = store.key.decode(), b"".join(store.chain).decode()
    return pem


def _authorities(path: str, password: str | None) -> str:
    """Return the certificates of a trust store in PEM. Raises Retry if it cannot be used."""
    store = _read(path, password)
    return b"".join(store.trusted + store.chain).decode()


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

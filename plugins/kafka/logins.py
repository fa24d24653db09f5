"""Logins of Kafka clients: conversion between Java's JAAS texts and librdkafka's properties."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "https.", "enable.ssl.", "enable.sasl.")
"""Beginnings of the names of properties that concern TLS and logins, in both clients' words."""
JAAS = "sasl.jaas.config"
CLIENT_ID, CLIENT_SECRET = "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"
ENDPOINT, SCOPE = "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope"
METHOD, GRANT = "sasl.oauthbearer.method", "sasl.oauthbearer.grant.type"
HANDLER = "sasl.login.callback.handler.class"
_PACKAGE = "org.apache.kafka.common.security."
_MODULES = {
    "PLAIN": f"{_PACKAGE}plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_PACKAGE}scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_PACKAGE}scram.ScramLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
    "OAUTHBEARER": f"{_PACKAGE}oauthbearer.OAuthBearerLoginModule",
}
MECHANISMS = tuple(_MODULES)
"""SASL mechanisms of librdkafka. GSSAPI is in some builds only."""
OAUTH_HANDLER = f"{_PACKAGE}oauthbearer.OAuthBearerLoginCallbackHandler"
"""Class of Java's client that gets tokens of a token endpoint, since Kafka 3.4."""
OAUTH_HANDLERS = frozenset({OAUTH_HANDLER, f"{_PACKAGE}oauthbearer.secured.OAuthBearerLoginCallbackHandler"})
"""Names of `OAUTH_HANDLER`: the second one is that of Kafka 3.1 to 3.9."""
_OPTIONS = {
    "username": "sasl.username",
    "password": "sasl.password",
    "keyTab": "sasl.kerberos.keytab",
    "principal": "sasl.kerberos.principal",
    "serviceName": "sasl.kerberos.service.name",
    "clientId": CLIENT_ID,
    "clientSecret": CLIENT_SECRET,
    "scope": SCOPE,
    "ssl.truststore.certificates": "https.ca.pem",
}
"""Options of Java's login modules, with librdkafka's properties."""
ALIASES = {
    "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
    "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
}
"""Java's properties of Kafka 4.1 and newer, which librdkafka accepts as well, with librdkafka's own names."""
TOKEN_SECONDS = 10.0
"""Timeout of a request for a token."""
_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Certificate authorities of Debian, Red Hat, SUSE and Alpine."""
_EXTENSIONS = "sasl.oauthbearer.extensions"
_PAIRS = re.compile(r"""([\w.$-]+)\s*=\s*(?:(["'])((?:(?!\2)[^\\]|\\.)*)\2|([^\s;"']+))""", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)


def mechanism_of(properties: Mapping[str, Any]) -> str:
    """Return the SASL mechanism of a client's properties, GSSAPI if they name none, as in both clients."""
    return str(properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI")


def parse_jaas(text: str) -> dict[str, str]:
    """Return the options of a JAAS text such as `…LoginModule required username="x" password='y';`.

    Within both kinds of quotes, a backslash begins an escape as in C (`java.io.StreamTokenizer`).
    """
    return {
        name: _ESCAPE.sub(_unescaped, quoted) if quote else bare for name, quote, quoted, bare in _PAIRS.findall(text)
    }


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES.get(code, code)


def _quoted(text: str) -> str:
    """Return a text as a quoted value of a JAAS text, which must not contain line breaks."""
    text = re.sub(r'(["\\])', r"\\\1", text)
    return '"' + text.replace("\n", r"\n").replace("\r", r"\r") + '"'


def librdkafka_login(options: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's properties for the options of a JAAS text, without its trust store's file."""
    converted = {_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS}
    extensions = [f"{n.removeprefix('extension_')}={v}" for n, v in options.items() if n.startswith("extension_")]
    return converted | ({_EXTENSIONS: ",".join(extensions)} if extensions else {})


def _extensions(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the SASL extensions in properties of librdkafka, by name."""
    pairs = (pair.partition("=") for pair in str(properties.get(_EXTENSIONS, "")).split(",") if "=" in pair)
    return {name.strip(): value for name, _, value in pairs}


def uses_tokens(properties: Mapping[str, Any]) -> bool:
    """Return True if a client with these properties logs in with tokens of OAuth."""
    return mechanism_of(properties).upper() == "OAUTHBEARER"


def token_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties that librdkafka needs for tokens of the endpoint in these properties, and Java does not.

    They are the method, and the system's authorities: libcurl of confluent-kafka's package only looks for the file of
    Red Hat, also for `https.ca.location = probe`.
    """
    if not uses_tokens(properties) or not {ENDPOINT, "sasl.oauthbearer.metadata.authentication.type"} & {*properties}:
        return {}
    added = {} if METHOD in properties else {METHOD: "oidc"}
    if properties.get("https.ca.location", "probe") == "probe" and "https.ca.pem" not in properties:
        files = filter(os.path.isfile, (os.environ.get("SSL_CERT_FILE", ""), *_SYSTEM_AUTHORITIES))
        added["https.ca.location"] = next(files, "probe")
    return added


def java_login(properties: Mapping[str, str], authorities: str | None) -> dict[str, str]:
    """Return Java's properties of the login, for properties of either client.

    The result is empty if none of librdkafka's names needs a conversion. `authorities` verify the certificate of the
    token endpoint, in PEM; None for the system's.
    """
    mechanism = mechanism_of(properties)
    by_property = {name: option for option, name in _OPTIONS.items()}
    given = {by_property[ALIASES.get(n, n)]: v for n, v in properties.items() if ALIASES.get(n, n) in by_property}
    given.pop("serviceName", None)  # also a property of Java's client
    given |= {f"extension_{name}": value for name, value in _extensions(properties).items()}
    if authorities is not None:
        given["ssl.truststore.certificates"] = authorities
    if "ssl.truststore.certificates" in given:
        given["ssl.truststore.type"] = "PEM"
    result: dict[str, str] = {}
    if uses_tokens(properties):
        result[HANDLER] = properties.get(HANDLER, OAUTH_HANDLER)
    if not given or mechanism not in _MODULES:
        return result
    named = parse_jaas(properties.get(JAAS, ""))
    if mechanism == "GSSAPI" and "keyTab" in {**named, **given}:
        given |= {"useKeyTab": "true", "storeKey": "true"}
    elif mechanism == "GSSAPI":  # as librdkafka does, which takes the ticket cache of any principal then
        given["useTicketCache"] = "true"
        given.pop("principal", None)
    options = {**named, **given}
    pairs = " ".join(f"{option}={_quoted(value)}" for option, value in options.items())
    return {**result, JAAS: f"{_MODULES[mechanism]} required {pairs};"}


def login_error(properties: Mapping[str, Any], handler: str | None) -> str | None:
    """Return the reason why a client with librdkafka's properties never gets a token; None if it may get one.

    librdkafka itself waits forever for an application that sets the token. `handler` is Java's class that would.
    """
    if not uses_tokens(properties) or "SASL" not in str(properties.get("security.protocol", "")).upper():
        return None
    unsecured = str(properties.get("enable.sasl.oauthbearer.unsecure.jwt", "")).lower() == "true"
    if unsecured or str(properties.get(METHOD, "")).lower() == "oidc":
        return None
    foreign = f"the class {handler} is of Java's client only; " if handler and handler not in OAUTH_HANDLERS else ""
    return f"{foreign}OAUTHBEARER needs {ENDPOINT}, {CLIENT_ID} and {CLIENT_SECRET}"


def verify_tls(properties: Mapping[str, Any]) -> None:
    """Raise KafkaException if the client's files of TLS cannot be used. Call this before a client is made.

    With tokens of an endpoint, librdkafka aborts the process instead (2.16.0, rd_kafka_q_destroy0). For other logins
    it raises the exception itself, and this function does nothing.
    """
    if METHOD in properties and str(properties.get("security.protocol", "")).upper() == "SASL_SSL":
        tls = {name: value for name, value in properties.items() if name.startswith(("ssl.", "enable.ssl"))}
        Consumer({**tls, "security.protocol": "SSL", "group.id": "none", "log_level": 0}).close()


def load_authorities(context: ssl.SSLContext, properties: Mapping[str, Any], prefix: str) -> None:
    """Load the authorities that `<prefix>.pem` or `<prefix>.location` names, a file or a directory.

    Without both, or with the location `probe`, load the system's, as librdkafka does. Raises OSError or ValueError if
    they cannot be used.
    """
    location = str(properties.get(f"{prefix}.location") or "")
    if pem := properties.get(f"{prefix}.pem"):
        context.load_verify_locations(cadata=str(pem))
    elif location in ("", "probe"):
        context.load_default_certs()
    else:
        context.load_verify_locations(**{"capath" if Path(location).is_dir() else "cafile": location})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refusal of redirects: another server would get the client's secret."""

    def redirect_request(self, req: urllib.request.Request, *response: Any) -> None:
        """Raise ValueError, with the address that the endpoint names."""
        raise ValueError(
            f"the token endpoint {req.full_url} redirects to {response[-1]}: if that is right, write it as {ENDPOINT}"
        )


class TokenRequest:
    """Requests of tokens with a client's id and secret, for Python's own client (RFC 6749, section 4.4).

    librdkafka requests its tokens itself.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """Raise OSError or ValueError for properties of librdkafka that are not enough, or an unusable file."""
        missing = [name for name in (ENDPOINT, CLIENT_ID, CLIENT_SECRET) if not properties.get(name)]
        if missing or properties.get(GRANT, "client_credentials") != "client_credentials":
            raise ValueError(
                f"this command gets tokens of {ENDPOINT} with {CLIENT_ID} and {CLIENT_SECRET} only"
                + (f": {missing[0]} is not set" if missing else "")
            )
        form = {"grant_type": "client_credentials"} | ({"scope": properties[SCOPE]} if SCOPE in properties else {})
        login = f"{properties[CLIENT_ID]}:{properties[CLIENT_SECRET]}".encode()
        self._request = urllib.request.Request(  # noqa: S310  # the user's own endpoint
            properties[ENDPOINT],
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {base64.b64encode(login).decode()}", "Accept": "application/json"},
        )
        self.extensions = _extensions(properties)
        """SASL extensions (RFC 7628, section 3.1)."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(self._context, properties, "https.ca")

    def token(self) -> str:
        """Return a new token. Raises OSError, or ValueError for an answer without one."""
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=self._context))
        with opener.open(self._request, timeout=TOKEN_SECONDS) as answer:
            content = json.load(answer)
        if not isinstance(content, dict) or not content.get("access_token"):
            raise ValueError(f"the token endpoint {self._request.full_url} answers without access_token")
        return str(content["access_token"])

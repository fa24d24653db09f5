"""Kerberos (GSSAPI) of Kafka's clients.

librdkafka has no option for a ticket cache: libsasl uses the default one of the process, so a process has one login.
Here it is a keytab whose tickets are in memory, unless a configuration names a command `kinit` of its own.
"""

from __future__ import annotations

import ctypes
import math
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException

from flafka.plugins.errors import Retry
from flafka.plugins.kafka.logins import JAAS, mechanism_of
from flafka.plugins.net.gssapi import Credential, KerberosError, log_in_process
from flafka.plugins.net.keytab import read_principals
from flafka.plugins.problems import Problem
from flafka.plugins.threads import start_thread

PRINCIPAL, KEYTAB, KINIT = "sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.kinit.cmd"
_KINIT_INTERVAL = "sasl.kerberos.min.time.before.relogin"
_LIBSASL = ("libsasl2.so.2", "libsasl2.so.3")
"""Names of the library on Debian and on Red Hat."""
_KINIT_HINT = (
    f"remove {KINIT}, as the agent gets tickets itself; or install krb5-user (Debian) or krb5-workstation (Red Hat)"
)
_NO_MODULE = (
    "libsasl2 has no module for GSSAPI on this host: install libsasl2-modules-gssapi-mit (Debian) or "
    "cyrus-sasl-gssapi (Red Hat), or name its directory with SASL_PATH"
)


_MECHANISM_NAMES = ("sasl.mechanism", "sasl.mechanisms", "security.protocol")
"""Properties that choose Kerberos; the last one alone does as well."""


class KafkaLogin(NamedTuple):
    """Kerberos login of Kafka's clients."""

    principal: str | None
    """Principal; None for that of the user's ticket cache."""
    keytab: str | None
    """Keytab; None for the user's ticket cache."""
    kinit: str | None
    """Command of the configuration that gets tickets; None for the agent's own login."""

    def __str__(self) -> str:
        """Return the login in words, for an error."""
        if self.kinit is not None:
            return f"{self.principal or 'a principal'} by {KINIT}"
        return f"{self.principal} by {self.keytab}" if self.keytab is not None else "the user's ticket cache"


def find_login(client: Mapping[str, Any]) -> KafkaLogin | None:
    """Return the Kerberos login of a client with these properties of librdkafka; None if it uses no Kerberos."""
    if mechanism_of(client) != "GSSAPI" or "SASL" not in str(client.get("security.protocol", "")).upper():
        return None
    keytab, kinit = client.get(KEYTAB) or None, client.get(KINIT)
    if kinit is not None and re.fullmatch(r"(/\S*/)?kinit", kinit.strip()):  # Java has a path here
        kinit = None
    has_principal = keytab is not None or kinit is not None  # else it is that of the ticket cache
    return KafkaLogin(client.get(PRINCIPAL) if has_principal else None, keytab, kinit)


def own_login_properties(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that keep librdkafka from running `kinit`; empty if the configuration names a command.

    librdkafka runs the command on its main thread: one that hangs stops deliveries.
    """
    login = find_login(client)
    return {} if login is None or login.kinit is not None else {_KINIT_INTERVAL: 0}


def without_kinit(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties of a client that only checks a configuration: it runs no `kinit`, which is the user's."""
    return {**client, **({_KINIT_INTERVAL: 0} if find_login(client) is not None else {})}


_current_login: KafkaLogin | None = None
_login_lock = threading.Lock()


def log_in(client: Mapping[str, Any]) -> None:
    """Make the keytab in these properties the login of this process. Idempotent; no effect without Kerberos.

    Call it before a client is made. Raises Retry if this process has another login already.
    """
    if (login := find_login(client)) is not None:
        log_in_as(login)


def current_login() -> KafkaLogin | None:
    """Return the login of this process; None before `log_in`."""
    return _current_login


def log_in_as(login: KafkaLogin) -> None:
    """Make this login that of the process, as `log_in` does.

    Call it before other threads start: they may read the environment, which changes.
    """
    global _current_login
    with _login_lock:
        if login == _current_login:
            return
        if _current_login is not None:
            raise Retry(f"this process uses {_current_login} for Kafka, and not {login}: restart the agent")
        if login.keytab is not None and login.kinit is None:
            if login.principal is None:
                raise Retry(f"{KEYTAB} needs {PRINCIPAL}")
            try:
                log_in_process(login.principal, login.keytab)
            except KerberosError as e:
                raise Retry(f"no Kerberos login for {login}: {e}") from e
        _current_login = login


# --- configuration


def provider_hint() -> str:
    """Return the sentence for a librdkafka without GSSAPI, with the script that builds another."""
    package = Path(__file__).absolute().parents[2]  # the installed package, or the directory of a checkout
    paths = (package / "agent" / "conf", package / "conf", package.parent / "conf")
    script = next((path for directory in paths if (path := directory / "kafka-gssapi.sh").exists()), paths[1])
    return (
        "Kerberos (GSSAPI) is not in the installed librdkafka: build one that has it, with "
        f"`bash {shlex.quote(str(script))} {shlex.quote(sys.prefix)}`; or use SCRAM or PLAIN"
    )


def login_errors(client: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each reason why clients with these properties can never log in on this host.

    The first item are the properties that the sentence may concern, for `named_of`.
    """
    login = find_login(client)
    if login is not None and login.keytab is not None and login.principal is None:
        yield (KEYTAB, JAAS), f"{PRINCIPAL} must be set as well"


def host_errors(client: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each thing that this host lacks for the login of clients with these properties, as `login_errors` does.

    The properties themselves are right: they work on a host that has it.
    """
    if (login := find_login(client)) is None:
        return
    if login.kinit is not None and (program := _missing_program(login.kinit)):
        yield (KINIT,), f"there is no {program}, so that no ticket is got: {_KINIT_HINT}"
    if not _has_provider():
        yield _MECHANISM_NAMES, provider_hint()
    elif not _has_sasl_module():
        yield _MECHANISM_NAMES, _NO_MODULE


def named_of(names: tuple[str, ...], properties: Collection[str]) -> str:
    """Return the first of `names` that is a property of a configuration, or else the first."""
    return next((name for name in names if name in properties), names[0])


def login_problems(prefix: str, properties: Collection[str], client: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what this host lacks for a login, and a warning for a principal or keytab that has no effect now.

    `prefix` is that of the options of `properties`; `client` are librdkafka's.
    """
    if (login := find_login(client)) is None:
        return
    for names, text in host_errors(client):
        message = f"cannot be used on this host: {text}"
        yield Problem(prefix + named_of(names, properties), message, is_library_missing=True)
    if client.get(PRINCIPAL) and login.principal is None:
        yield Problem(
            prefix + named_of((PRINCIPAL, JAAS), properties),
            f"names a principal, which has no effect without {KEYTAB}: the ticket cache has the principal",
            is_flume_behavior=PRINCIPAL in properties,  # Java's client does not take another principal's ticket
        )
    if fault := _keytab_fault(login):
        message = f"cannot be used now: {fault}"
        yield Problem(prefix + named_of((KEYTAB, JAAS), properties), message, is_flume_behavior=True)


def _missing_program(command: str) -> str:
    """Return the program of a shell command if it is a plain name or path and not installed; else an empty text."""
    program = command.split(maxsplit=1)[0] if command.strip() else ""
    return program if re.fullmatch(r"[\w./-]+", program) and shutil.which(program) is None else ""


def _keytab_fault(login: KafkaLogin) -> str:
    """Return the reason why the keytab has no key for the principal; empty if it has, or there is no keytab."""
    if login.keytab is None or login.principal is None:
        return ""
    kind, colon, path = login.keytab.partition(":")
    if login.keytab.startswith("/") or not colon:
        path = login.keytab
    elif kind not in ("FILE", "WRFILE"):  # such as MEMORY
        return ""
    try:
        principals = read_principals(path)
    except OSError as e:
        return f"the keytab {login.keytab} cannot be read: {e.strerror}"
    except ValueError as e:
        return str(e)
    # A principal without a realm is of the default realm, which krb5.conf names.
    names = principals if "@" in login.principal else {name.rpartition("@")[0] for name in principals}
    if login.principal in names:
        return ""
    return f"the keytab {login.keytab} has no key of {login.principal}, only of {', '.join(sorted(principals))}"


@cache
def _has_provider() -> bool:
    """Return True if the installed librdkafka was built with Kerberos."""
    try:
        Consumer(
            {
                "group.id": "none",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "log_level": 0,
                _KINIT_INTERVAL: 0,
            }
        ).close()
    except KafkaException as e:
        return "No provider" not in e.args[0].str()
    return True


@cache
def _has_sasl_module() -> bool:
    """Return True if libsasl2 has a module for GSSAPI, or there is no libsasl2 to ask."""
    for name in _LIBSASL:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.sasl_client_init(None)
        library.sasl_global_listmech.restype = ctypes.POINTER(ctypes.c_char_p)
        mechanisms = library.sasl_global_listmech()
        index = 0
        while mechanisms and mechanisms[index]:
            if mechanisms[index] == b"GSSAPI":
                return True
            index += 1
        return False
    return True


# --- errors of a client


def explain_refusal(text: str, client: Mapping[str, Any]) -> str:
    """Return a sentence, with the remedy, for an error of the login of a client with Kerberos.

    `text` is that of librdkafka, which has the cause of libkrb5 or of the broker.
    """
    login = find_login(client) or KafkaLogin(None, None, None)
    minor = re.search(r"GSSAPI Error: [^(]*\((.*)\)", text)
    why = minor[1] if minor else text.removeprefix("SASL authentication error: ")
    if "No worthy mechs" in text or "missing a GSSAPI module" in text:
        return _NO_MODULE
    if unknown := re.search(r"Server (\S+) not found in Kerberos database", text):
        return (
            f"the KDC has no service {unknown[1]}: name the brokers as their principals do, also in their "
            "advertised.listeners; see sasl.kerberos.service.name, and rdns, dns_canonicalize_hostname of krb5.conf"
        )
    if fault := _keytab_fault(login):
        return fault
    user = login.principal or "this client"
    if "invalid credentials" in text:
        return f"it refuses the ticket of {user}: is the broker's keytab up to date? ({why})"
    if login.kinit is not None and (program := _missing_program(login.kinit)):
        return f"no Kerberos ticket, as there is no {program}: {_KINIT_HINT}"
    if login.keytab is None or login.kinit is not None:
        return f"no Kerberos ticket for {user}: {why}; run kinit, or set {PRINCIPAL} and {KEYTAB}"
    if why == "Ticket expired" and (cause := _cause_of_expiry(login)):
        why = f"the last one has expired, and there is no new one: {cause}"
    return f"no Kerberos ticket for {user}: {why}; test it with: kinit -kt {login.keytab} {user}"


CAUSE_SECONDS = 30.0
"""Time for which the known cause of an expired ticket is reported, and no new attempt is made.

Each attempt asks the KDC, which may lock a principal after some failures."""
_causes: dict[KafkaLogin, tuple[str, float]] = {}
"""Reason why there is no new ticket, and the time by `time.monotonic`, by login."""
_being_tried: set[KafkaLogin] = set()


def _cause_of_expiry(login: KafkaLogin) -> str:
    """Return the known reason why an expired ticket is not replaced; empty if it is not known yet. Does not block.

    libkrb5 reports the expiry alone while there is a ticket. A thread finds the cause with an empty ticket cache: a
    KDC that does not answer would block the caller, which may be a client's error callback, for half a minute.
    """
    with _login_lock:
        cause, found = _causes.get(login, ("", -math.inf))
        if time.monotonic() - found < CAUSE_SECONDS:
            return cause
        if login in _being_tried:
            return ""
        _being_tried.add(login)
    try:
        start_thread(threading.Thread(target=_find_cause, args=(login,), name="kerberos-cause", daemon=True))
    except RuntimeError:  # the system lacks threads: the expiry is reported alone
        with _login_lock:
            _being_tried.discard(login)
    return ""


def _find_cause(login: KafkaLogin) -> None:
    cause = ""
    try:
        Credential(login.principal, login.keytab).close()
    except KerberosError as e:
        cause = str(e)
    finally:
        with _login_lock:
            _causes[login] = cause, time.monotonic()
            _being_tried.discard(login)

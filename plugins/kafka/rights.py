"""Rights on a Kafka cluster with ACLs: declarations beside each client, and sentences about missing rights.

A component or command declares its rights as a `Role`. `docs/build.py` makes the table of rights from all roles, and
tests/system/test_kafka_rights.py proves each of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flafka.plugins.component import require
from flafka.plugins.kafka.kerberos import find_login
from flafka.plugins.kafka.logins import uses_tokens

Kind = Literal["topic", "group", "transactional id", "cluster"]
"""Kinds of resources in Kafka's ACLs."""
TRANSACTIONAL_IDS = "flafka."
"""Beginning of all transactional ids."""
_WORDS: Mapping[Kind, str] = {"group": "consumer group"}


@dataclass(frozen=True)
class Access:
    """Operations of Kafka's ACLs on one resource. Read, Write and Delete include Describe."""

    kind: Kind
    resource: str
    """Resource in the words of the documentation, such as "the topic of the channel"."""
    operations: tuple[str, ...]
    """Operations that are needed; Create only while the resource does not exist."""
    optional: tuple[tuple[str, str], ...] = ()
    """Operations that are not needed, each with the effect of its absence."""


@dataclass(frozen=True)
class Role:
    """Purpose of a client, and the rights that it needs on a cluster with ACLs."""

    purpose: str
    access: tuple[Access, ...]


def principal(client: Mapping[str, Any]) -> str:
    """Return the principal of a client with these properties of librdkafka, such as `User:flafka`.

    It is what brokers take by default: the user of a password, the first component of a Kerberos principal, the
    subject of a client certificate, else `User:ANONYMOUS`. Empty if it is not known, as that of a bearer token or of
    a ticket cache.
    """
    protocol = str(client.get("security.protocol", "PLAINTEXT")).upper()
    if "SASL" in protocol:
        if uses_tokens(client):
            return ""
        login = find_login(client)
        user = re.split("[/@]", login.principal or "")[0] if login is not None else client.get("sasl.username")
        return f"User:{user}" if user else ""
    pem, path = client.get("ssl.certificate.pem"), client.get("ssl.certificate.location")
    if protocol != "SSL" or not (pem or path):
        return "User:ANONYMOUS"
    try:
        data = str(pem).encode() if pem else Path(str(path)).read_bytes()
        subject = require("cryptography.x509", "tls").load_pem_x509_certificate(data).subject
    except Exception:  # noqa: BLE001  # the missing right is clear without the subject
        return ""
    return f"User:{subject.rfc4514_string()}"


def describe_missing_right(
    kind: Kind,
    names: Collection[str],
    operations: Collection[str],
    client: Mapping[str, Any] | None,
    reason: str,
) -> str:
    """Return a sentence about a right that brokers find missing, with the command of Kafka that grants it.

    `names` are the resources of which one is refused; empty if they are not known. `operations` are those that the
    client needs, `client` its properties, and `reason` is the text of the brokers. The command is omitted if
    resource, operation or brokers are unknown. The result has one line.
    """
    user = principal(client) if client is not None else ""
    subject = f"this client ({user})" if user else "this client"
    if client is not None and user and "SASL" in str(client.get("security.protocol")).upper():
        subject = f"user {user.removeprefix('User:')}"
    rights = f"the right{'s' * (len(operations) > 1)} {' and '.join(operations)}".rstrip()
    word = _WORDS.get(kind, kind)
    resource = f"one of the {word}s {', '.join(names)}" if len(names) > 1 else f"{word} {''.join(names)}".rstrip()
    # An attempt that took longer is no other error: the log has each text once.
    reason = re.sub(r" \(after \d+ ?ms.*?\)", "", reason)
    sentence = f"{subject} lacks {rights} on {'the cluster' if kind == 'cluster' else resource} ({reason})"
    servers = str((client or {}).get("bootstrap.servers") or "")
    if not servers or not operations or not (names or kind == "cluster"):
        return sentence
    command = ["kafka-acls", "--bootstrap-server", servers, "--add", "--allow-principal", user or "User:NAME"]
    for operation in operations:
        command += ["--operation", operation]
    if kind == "cluster":
        command.append("--cluster")
    elif kind == "transactional id":
        command += ["--transactional-id", TRANSACTIONAL_IDS, "--resource-pattern-type", "prefixed"]
    elif any(".replay." in name for name in names) and kind == "group":  # each replay has a group of its own
        prefixes = {name.partition(".replay.")[0] + ".replay." for name in names}
        command += ["--group", *prefixes, "--resource-pattern-type", "prefixed"]
    else:
        for name in names:
            command += [f"--{kind}", name]
    return f"{sentence}: {shlex.join(command)}"

"""First thing to do about an error, by its text, and the events that are lost while a source stores nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flafka.agent.graph import Node

_LISTENER = re.compile(r"cannot listen on \S*:(\d+) \((TCP|UDP)\): another program")
_HOST = r"(?:\[[\da-fA-F:]+\]|[\w.-]+)"
_ADDRESS = re.compile(rf"(?<![\w.:/@-])(?:https?://({_HOST}:\d+)|({_HOST}:\d{{4,5}}))(?!\w|:\w)")
_UNREACHABLE = re.compile(r"refused|timed out|no route|not known|not answer|reset by peer|unreachable", re.IGNORECASE)
_FULL_DISK = re.compile(r"no space left|disk is full|quota exceeded", re.IGNORECASE)
_FORBIDDEN = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)

FILE_SOURCES = frozenset({"taildir", "spooldir"})
"""Types of sources that read files."""
ANSWERING_SOURCES = frozenset({"avro", "thrift", "http"})
"""Types of sources whose senders get an error for events that are not stored."""
STREAM_SOURCES = frozenset({"syslogtcp", "multiport_syslogtcp", "netcat", "log4j"})
"""Types of sources over TCP whose senders only see that the connection does not go on."""


class Advice(NamedTuple):
    """Instruction, and a shell command if another one than `agent check --connect` helps."""

    action: str
    command: str = ""


def advice(error: str) -> Advice | None:
    """Return what to do about an error; None if its text says nothing that is known."""
    if match := _LISTENER.search(error):
        port, protocol = match.groups()
        option = "-ltnp" if protocol == "TCP" else "-lunp"
        action = f"Stop the other program at {protocol} port {port}, or choose another port."
        return Advice(action, f"sudo ss {option} 'sport = :{port}'")
    if _FULL_DISK.search(error):
        return Advice("Make room on the disk.")
    if _FORBIDDEN.search(error):
        return Advice("Give the user of the agent the permission that the error names.")
    addresses = [*dict.fromkeys(url or address for url, address in _ADDRESS.findall(error))]
    if addresses and _UNREACHABLE.search(error):
        return Advice(f"Start the server at {' or '.join(addresses[:3])}, or repair the network to it.")
    return None


def port_loss(error: str) -> str:
    """Return what is lost because another program has the port of a source; empty for another error."""
    return "What is sent to this port reaches the other program." if _LISTENER.search(error) else ""


def source_loss(sources: Iterable[Node], dropped: Mapping[str, str]) -> str:
    """Return what is lost while these sources store nothing, by their types.

    `dropped` has the number of lost datagrams by name in `/metrics`, as text with its unit.
    """
    known = (*FILE_SOURCES, *ANSWERING_SOURCES, *STREAM_SOURCES)
    by_type: dict[str, list[str]] = {}
    sentences = []
    for source in sources:
        if "udp" in source.type:
            count = dropped.get(source.metrics, "0 datagrams")
            sentences.append(f"{count[:1].upper()}{count[1:]} of {source.name} since the agent started.")
        else:
            by_type.setdefault(source.type if source.type in known else "", []).append(source.name)

    def names(types: Iterable[str]) -> str:
        return ", ".join(name for type_name, found in by_type.items() if type_name in types for name in found)

    if streams := names(STREAM_SOURCES):
        sentences.append(f"Senders to {streams} wait, and lose events once their own buffers are full.")
    if answering := names(ANSWERING_SOURCES):
        sentences.append(f"Senders to {answering} get errors, and must send again.")
    if files := names(FILE_SOURCES):
        sentences.append(f"Nothing of {files}: files are read later.")
    if others := names([""]):
        sentences.append(f"Nothing that {others} acknowledged.")
    return " ".join(sentences)

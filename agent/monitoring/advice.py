"""First thing to do about an error, by its text, and the events that are lost while a source stores nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flafka.agent.graph import Graph, Node
from flafka.agent.monitoring.problems import DatagramLoss
from flafka.agent.units import format_count, format_time

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
    if "standard output is closed" in error:
        return Advice("Restart the agent with an open standard output, or remove this sink.")
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
    return "All events that are sent to this port: they reach the other program." if _LISTENER.search(error) else ""


def datagram_loss(loss: DatagramLoss, of: str = "") -> str:
    """Return the extent of a loss, `12 datagrams since 2026-11-30 10:39 UTC`; `of` follows the number."""
    return f"{format_count(loss.datagrams, 'datagrams')}{of} since {format_time(loss.since)[:16]} UTC"


def source_loss(sources: Iterable[Node], losses: Mapping[str, DatagramLoss]) -> str:
    """Return what is lost while these sources store nothing, by their types.

    `losses` has the present losses of datagrams by name in `/metrics`.
    """
    datagrams, streams, answering, files, others = _by_type(sources)
    sentences = []
    for source in datagrams:
        loss, of = losses.get(source.metrics), f" of {source.name}"
        sentences.append(f"{datagram_loss(loss, of)}." if loss is not None else f"No datagrams{of} so far.")
    if streams:
        sentences.append(f"Senders to {_names(streams)} wait, and lose events once their own buffers are full.")
    if answering:
        sentences.append(f"Senders to {_names(answering)} get errors, and must send again.")
    if files:
        sentences.append(f"Nothing of {_names(files)}: files are read later.")
    if others:
        sentences.append(f"Nothing that {_names(others)} acknowledged.")
    return " ".join(sentences)


def loss_at_end(graph: Graph, values: Mapping[str, Mapping[str, float]]) -> str:
    """Return what is lost if an agent with these metrics has ended, and until it runs again.

    `values` has the metrics by name in `/metrics`.
    """
    sentences = []
    for channel in graph.nodes:
        size = values.get(channel.metrics, {}).get("ChannelSize", 0.0)
        if channel.kind == "channel" and not channel.is_durable and size:
            sentences.append(f"{format_count(size, 'events')} in {channel.id}, which is in memory.")
    datagrams, streams, answering, files, _ = _by_type(node for node in graph.nodes if node.kind == "source")
    if datagrams:
        sentences.append(f"All datagrams to {_names(datagrams)} until it runs again.")
    if streams or answering:
        sentences.append(f"Senders to {_names([*streams, *answering])} cannot connect: they must keep their events.")
    if files:
        sentences.append(f"Nothing of {_names(files)}: files are read later.")
    return " ".join(sentences) or "Nothing that was acknowledged."


def loss_so_far(values: Mapping[str, Mapping[str, float]]) -> str:
    """Return how many datagrams and events were lost or rejected since the agent started, as a sentence.

    `values` has the metrics by name in `/metrics`.
    """
    dropped, rejected = (
        sum(figures.get(name, 0.0) for figures in values.values())
        for name in ("KernelDropCount", "EventRejectedCount")
    )
    if not dropped and not rejected:
        return "Since the agent started, no datagram was lost, and no event was rejected."
    parts = (
        format_count(dropped, "datagrams") + " lost" if dropped else "no datagram lost",
        format_count(rejected, "events") + " rejected as dead letters" if rejected else "no event rejected",
    )
    return f"Since the agent started: {' and '.join(parts)}."


def _by_type(sources: Iterable[Node]) -> tuple[list[Node], ...]:
    """Return the sources of datagrams, of streams, those that answer, those that read files, and the others."""
    groups: tuple[list[Node], ...] = ([], [], [], [], [])
    for source in sources:
        tests = (
            "udp" in source.type,
            source.type in STREAM_SOURCES,
            source.type in ANSWERING_SOURCES,
            source.type in FILE_SOURCES,
            True,
        )
        groups[tests.index(True)].append(source)
    return groups


def _names(nodes: Iterable[Node]) -> str:
    return ", ".join(node.name for node in nodes)

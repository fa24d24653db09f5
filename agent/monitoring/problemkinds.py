"""Kinds of problems with what they mean and what to do, for the page of an agent and its documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

DOCUMENT = "failures.md"
"""Page of the documentation with a section for each kind."""


@dataclass(frozen=True)
class ProblemKind:
    """Kind of problems with its section in the documentation."""

    heading: str
    meaning: str
    """Meaning and consequence. Text in backticks is code."""
    steps: tuple[str, ...]
    """Instructions, in this order."""

    @property
    def anchor(self) -> str:
        """Anchor of the section: the heading in lower case, with a dash for each blank."""
        return re.sub(r"[^a-z0-9-]", "", self.heading.lower().replace(" ", "-"))

    @property
    def first_step(self) -> str:
        """First instruction as plain text."""
        return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", self.steps[0]).replace("`", "")

    @property
    def section(self) -> str:
        """Page and anchor of the section, `failures.md#a-sink-fails`."""
        return f"{DOCUMENT}#{self.anchor}"


_TEST = "Run `agent check --connect`, which tries each server and each directory."
KINDS: Mapping[str, ProblemKind] = {
    "thread-ended": ProblemKind(
        "A thread has ended",
        "A part of the agent has ended by an unforeseen error, and does not come back by itself. Events that were "
        "acknowledged are in their channel, unless it is a memory channel.",
        (
            "Restart the agent: `systemctl restart` with the name of its service.",
            "Report the traceback, which the log has.",
        ),
    ),
    "brokers-away": ProblemKind(
        "All brokers are away",
        "No Kafka broker of a channel answers. Sources store nothing: senders over TCP wait, files are read later, "
        "and datagrams are lost once the kernel's buffer is full. Sinks wait. Acknowledged events stay in Kafka.",
        (
            "Start the brokers, or repair the network between this host and them.",
            _TEST,
            "Restart nothing else: sources and sinks continue by themselves within 30 seconds.",
        ),
    ),
    "channel-fails": ProblemKind(
        "A channel fails",
        "A channel cannot be opened, or does not take events. Its sources wait as if all brokers were away, and its "
        "sinks get nothing.",
        ("Read the error: it names the file, the right or the server.", _TEST, "Make room if a disk is full."),
    ),
    "source-fails": ProblemKind(
        "A source fails",
        "A source cannot receive or read events, or cannot store them. Nothing that it has acknowledged is lost. "
        "Senders over TCP wait or get an error, files are read later. Datagrams are lost meanwhile.",
        (
            "Repair what the error names.",
            "If its channel or a sink of that channel fails as well, repair that one first.",
            "A port that is in use: end the other program, or choose another port.",
            "A file that cannot be read: give the agent's user the right.",
            _TEST,
        ),
    ),
    "overflowing": ProblemKind(
        "Events overflow to a disk",
        "Brokers do not take events, and the agent stores them in a channel `file` on this host. It forwards them in "
        "order once brokers take events again. Until then only this one disk has them. Once the overflow is full, "
        "sources wait.",
        (
            "Start the brokers.",
            "Do not delete the directories of the overflow, and do not replace the host.",
            "If the overflow is nearly full, raise its `capacity` and run `agent reload`.",
        ),
    ),
    "sink-fails": ProblemKind(
        "A sink fails",
        "A sink cannot deliver, and retries at most 25 seconds apart. Its events stay in the channel, other sinks go "
        "on. They are lost only if Kafka's retention deletes them first, or if a memory channel's agent ends.",
        (
            "Repair what the error names.",
            _TEST,
            "If Kafka is about to delete the oldest events, raise the topic's `retention.ms` at once.",
        ),
    ),
    "interceptor-fails": ProblemKind(
        "An interceptor fails",
        "An interceptor cannot work, so its source or sink waits, or passes events on without its change.",
        ("Read the error: it names the file, the host or the option.", _TEST),
    ),
    "retention-near": ProblemKind(
        "Kafka is about to delete events",
        "The oldest event that a sink has not delivered reaches the end of the topic's retention within six hours. "
        "Then Kafka deletes it, and the sink stops until you decide.",
        (
            "Raise the topic's `retention.ms` at once, with `kafka-configs.sh`.",
            "Repair the sink, or make it faster.",
        ),
    ),
    "partitions-offline": ProblemKind(
        "Partitions have no leader",
        "No broker leads some partitions of a channel's topic. Events cannot be put there or read from there.",
        ("Start the brokers that have these partitions.",),
    ),
    "events-rejected": ProblemKind(
        "Events were rejected",
        "A component has refused events for good, such as a store with another schema. They are not lost: the agent "
        "keeps them as dead letters, with their bytes and the reason. They are not in the store.",
        (
            "List them for the reasons, correct the cause, then deliver them with `agent dlq replay`.",
            "If the cause was in the configuration, run `agent reload` first.",
        ),
    ),
    "datagrams-lost": ProblemKind(
        "Datagrams are lost",
        "Datagrams came in faster than a source could store them, and the kernel dropped them. They are lost.",
        (
            "If the channel or a sink has a problem, repair that first.",
            "Raise `receiveBufferSize` and the sysctl `net.core.rmem_max`.",
            "Let senders use TCP.",
        ),
    ),
    "events-not-stored": ProblemKind(
        "Events are not stored",
        "A batch of a source has waited for more than a minute to be stored. Its sender waits.",
        ("Repair the channel, or the sink of a full channel.",),
    ),
    "channel-full": ProblemKind(
        "A channel is nearly full",
        "A channel is filled to 80 percent or more. At 100 percent its sources wait, and datagrams are lost.",
        ("Repair its sink, or make it faster.", "Raise `capacity`, then `agent reload`."),
    ),
    "disk-full": ProblemKind(
        "A disk is nearly full",
        "Less than 2 GB are free on a disk of the agent. On a full disk, channels and sources with files wait.",
        ("Make room.",),
    ),
    "brokers-down": ProblemKind(
        "A broker is down",
        "Some brokers do not answer, or partitions lack replicas in sync. Nothing is lost, and nothing waits. "
        "Another failure may stop the channel.",
        ("Start the broker.",),
    ),
    "sink-behind": ProblemKind(
        "A sink is behind",
        "The oldest event that a sink has not delivered has waited for more than ten minutes, though the sink works.",
        ("Make the sink faster, or add agents: see [lag](operations.md#lag) for causes.",),
    ),
    "limited": ProblemKind(
        "A component works with a limitation",
        "A component works below its capability, as at its limit of connections or with a damaged file set aside.",
        ("Read the text of the problem: it names the option or the file.",),
    ),
    "certificate-expires": ProblemKind(
        "A certificate expires",
        "A certificate of the agent expires within two weeks. Then new connections fail.",
        ("Replace the file, then `agent reload`.",),
    ),
}
"""Kinds by name, the gravest first."""


def markdown() -> str:
    """Return the sections of all kinds, as the documentation has them."""
    sections = []
    for kind in KINDS.values():
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(kind.steps, 1))
        sections.append(f"### {kind.heading}\n\n{kind.meaning}\n\n{steps}")
    return "\n\n".join(sections)


def help_page() -> str:
    """Return the sections of all kinds as a page for browsers."""
    return "\n".join(["<!doctype html>", *_html_lines(), ""])


def _html_lines() -> Iterator[str]:
    yield '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield "<title>Problems and what to do</title>"
    yield '<link rel="icon" href="data:,"><link rel="stylesheet" href="page/page.css"></head>'
    yield '<body><main class="help">'
    yield '<h1>Problems and what to do</h1><p><a href="./">Back to the dashboard</a></p>'
    for kind in KINDS.values():
        yield f'<section id="{kind.anchor}"><h2>{escape(kind.heading)}</h2><p>{_html(kind.meaning)}</p><ol>'
        yield from (f"<li>{_html(step)}</li>" for step in kind.steps)
        yield "</ol></section>"
    yield "</main></body></html>"


def _html(text: str) -> str:
    """Return a text of Markdown as HTML: code in backticks; a link is its text."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(plain, quote=False))

"""Result of `agent demo`: the agent's counters compared with the events that were read back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

SOURCES = {
    "tcp": "syslog over TCP, from logger",
    "udp": "syslog over UDP, from logger",
    "json": "log4j 2 as JSON, from Kafka, HBase and Solr",
    "avro": "log4j 1 with Flume's appender, from HDFS",
    "files": "tailed files, all that Kafka wrote",
}
console = Console(highlight=False)


@dataclass
class DemoResult:
    """Counters of the agent, number of events read back, and their differences."""

    counters: dict[str, dict[str, str]]
    channel: int
    """Number of events in the channel."""
    to_send: int
    senders: dict[str, str] = field(default_factory=lambda: dict(SOURCES))
    """Name and description of the senders of each source."""
    stores: list[tuple[str, str, int]] = field(default_factory=list)
    """Name, description and number of events of each store."""
    wrong: list[str] = field(default_factory=list)
    """Differences; empty if all events were delivered once."""
    samples: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Events that the processor counted, by sender and level."""
    memory_mb: int = 0
    seconds: float = 0

    def store(self, name: str, how: str, events: int, differences: list[str]) -> None:
        """Add a store with its number of events.

        Differences, at most five, and another number than the channel's are wrong. `how` describes the store in the
        table.
        """
        self.stores.append((name, how, events))
        self.wrong += [f"{name}: {difference}" for difference in differences[:5]]
        if events != self.channel:
            self.wrong.append(f"{name} holds {events:,} events, the channel {self.channel:,}")

    def count(self, source: str, counter: str) -> int:
        """Return a counter of a source; 0 if it is not known."""
        return int(self.counters.get(f"SOURCE.{source}", {}).get(counter, 0))

    @property
    def balanced(self) -> bool:
        """True if each store has each event of the channel once, and no received event is missing."""
        return not self.wrong

    @property
    def filtered(self) -> int:
        """Number of events that an interceptor dropped before the channel."""
        return sum(self.count(name, "EventFilteredCount") for name in SOURCES)

    @property
    def dropped(self) -> int:
        """Number of datagrams that the kernel dropped before the agent received them."""
        return self.count("udp", "KernelDropCount")

    def compare(self) -> None:
        """Compare received with stored events, and sent with arrived messages; differences are added to `wrong`."""
        filtered, dropped = self.filtered, self.dropped
        received = sum(self.count(name, "EventReceivedCount") for name in SOURCES)
        arrived = self.count("tcp", "EventReceivedCount") + self.count("udp", "EventReceivedCount")
        if received - filtered != self.channel:
            self.wrong.append(f"received − dropped = {received - filtered:,}, the channel holds {self.channel:,}")
        if arrived + dropped != self.to_send:
            self.wrong.append(f"logger sent {self.to_send:,}: {arrived:,} arrived, the kernel dropped {dropped:,}")

    def data(self) -> dict[str, Any]:
        """Return the result as JSON values: numbers of events, differences and samples."""
        return {
            "balanced": self.balanced,
            "wrong": self.wrong,
            "received": {name: self.count(name, "EventReceivedCount") for name in SOURCES},
            "filtered": self.filtered,
            "dropped_by_the_kernel": self.dropped,
            "channel": self.channel,
            "stores": {name: events for name, _, events in self.stores},
            "counts": [
                {"sender": sender, "level": level, "events": n} for (sender, level), n in sorted(self.counts.items())
            ],
            "samples": dict(self.samples),
            "memory_mb": self.memory_mb,
            "seconds": round(self.seconds, 1),
        }

    def show(self) -> None:
        """Print the result as a table, with samples and the verdict."""
        table = Table(title="\nReconciliation", title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(justify="right", style="bold")
        table.add_column(style="cyan")
        table.add_column(style="dim")
        for name, text in self.senders.items():
            table.add_row(f"{self.count(name, 'EventReceivedCount'):,}", f"→ {name}", text)
        table.add_row(f"−{self.filtered:,}", "filter", "dropped on purpose, before the channel")
        if self.dropped:
            table.add_row(f"({self.dropped:,})", "udp", "datagrams of logger, dropped by the kernel before the agent")
        table.add_section()
        table.add_row(f"{self.channel:,}", "channel", "in Kafka, three replicas of each")
        for name, how, events in self.stores:
            table.add_row(f"{events:,}", f"→ {name}", how)
        console.print(table)
        if counts := [
            f"{sender} {level} {count:,}" for (sender, level), count in sorted(self.counts.items()) if sender != "-"
        ]:
            console.print(f"\n[bold]Who logged[/] [dim](by the processor)[/]  {', '.join(counts)}", soft_wrap=True)
        for location, text in self.samples:
            console.print(f"\n[bold]{location}", soft_wrap=True)
            console.print(Text("  " + text), no_wrap=True, overflow="ellipsis")
        for text in self.wrong:
            console.print(f"[red]{text}")
        verdict = "[green]All events were delivered once" if self.balanced else "[red]Events were lost or duplicated"
        console.print(f"\n{verdict}[/] [dim]after {self.seconds:.0f} s; the servers use {self.memory_mb:,} MB.")

"""Outcome of `agent demo`: the agent's figures beside the events that were read back."""

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
    """The agent's figures, and the events that were read back."""

    counters: dict[str, dict[str, str]]
    channel: int
    to_send: int
    on_yarn: bool = False
    """True if YARN's servers were among those that logged."""
    stores: list[tuple[str, str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    samples: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Events that the processor counted, by sender and level."""
    memory_mb: int = 0
    seconds: float = 0

    def store(self, name: str, how: str, events: int, differences: list[str]) -> None:
        """Add one store."""
        self.stores.append((name, how, events))
        self.wrong += [f"{name}: {difference}" for difference in differences[:5]]
        if events != self.channel:
            self.wrong.append(f"{name} holds {events:,} events, the channel {self.channel:,}")

    def count(self, source: str, counter: str) -> int:
        """Return one of the agent's counters."""
        return int(self.counters.get(f"SOURCE.{source}", {}).get(counter, 0))

    @property
    def balanced(self) -> bool:
        """Return True if each store has each event of the channel once, and no event received is missing."""
        return not self.wrong

    @property
    def filtered(self) -> int:
        """Return how many events were dropped on purpose, before the channel."""
        return sum(self.count(name, "EventFilteredCount") for name in SOURCES)

    @property
    def dropped(self) -> int:
        """Return how many datagrams the kernel dropped, before the agent had them."""
        return self.count("udp", "KernelDropCount")

    def compare(self) -> None:
        """Compare the events that went in with those in the channel."""
        filtered, dropped = self.filtered, self.dropped
        received = sum(self.count(name, "EventReceivedCount") for name in SOURCES)
        arrived = self.count("tcp", "EventReceivedCount") + self.count("udp", "EventReceivedCount")
        if received - filtered != self.channel:
            self.wrong.append(f"received − dropped = {received - filtered:,}, the channel holds {self.channel:,}")
        if arrived + dropped != self.to_send:
            self.wrong.append(f"logger sent {self.to_send:,}: {arrived:,} arrived, the kernel dropped {dropped:,}")

    def data(self) -> dict[str, Any]:
        """Return all of it, in values that JSON can hold."""
        return {
            "balanced": self.balanced,
            "wrong": self.wrong,
            "received": {name: self.count(name, "EventReceivedCount") for name in SOURCES},
            "filtered": self.filtered,
            "dropped_by_the_kernel": self.dropped,
            "channel": self.channel,
            "stores": {name: events for name, _, events in self.stores},
            "counts": [
                {"sender": who, "level": level, "events": n} for (who, level), n in sorted(self.counts.items())
            ],
            "samples": dict(self.samples),
            "memory_mb": self.memory_mb,
            "seconds": round(self.seconds, 1),
        }

    def show(self) -> None:
        """Print all of it."""
        table = Table(title="\nReconciliation", title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(justify="right", style="bold")
        table.add_column(style="cyan")
        table.add_column(style="dim")
        for name, text in SOURCES.items():
            what = f"{text} and YARN" if self.on_yarn and name == "avro" else text
            table.add_row(f"{self.count(name, 'EventReceivedCount'):,}", f"→ {name}", what)
        table.add_row(f"−{self.filtered:,}", "filter", "dropped on purpose, before the channel")
        if self.dropped:
            table.add_row(
                f"({self.dropped:,})", "udp", "of logger's, dropped by the kernel before the agent, counted"
            )
        table.add_section()
        table.add_row(f"{self.channel:,}", "channel", "in Kafka, three replicas of each")
        for name, how, events in self.stores:
            table.add_row(f"{events:,}", f"→ {name}", how)
        console.print(table)
        told = [f"{who} {level} {count:,}" for (who, level), count in sorted(self.counts.items()) if who != "-"]
        console.print(f"\n[bold]Who logged[/] [dim](by the processor)[/]  {', '.join(told)}", soft_wrap=True)
        for where, text in self.samples:
            console.print(f"\n[bold]{where}", soft_wrap=True)
            console.print(Text("  " + text), no_wrap=True, overflow="ellipsis")
        for text in self.wrong:
            console.print(f"[red]{text}")
        verdict = "[green]All events were delivered once" if self.balanced else "[red]Events were lost or repeated"
        console.print(f"\n{verdict}[/] [dim]after {self.seconds:.0f} s; the servers use {self.memory_mb:,} MB.")

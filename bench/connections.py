"""The same number of syslog lines over 1, 1,000 and 10,000 connections, beside rsyslog.

Connections are open all at once, before the clock starts, and take turns, up to 100 lines at a time; then one line at
a time. Each is its own sender to the agent, whose cost for an event should not depend on how many there are.
"""

from __future__ import annotations

from bench.frame import Bench
from bench.frame.kafka import Topic
from bench.frame.peers import RSYSLOG
from bench.frame.syslog import Lines, by_rsyslog, ours, taking


def run(bench: Bench) -> None:
    """One comparison for each number."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    numbers = (1, 50) if bench.smoke else (1, 1_000, 10_000)
    for connections in numbers:
        compare(bench, f"{connections:,} connection{'s' * (connections > 1)}", lines, connections, 100)
    fewer = lines.fewer(5)
    for connections in numbers[1:]:
        compare(bench, f"{connections:,} connections, a line at a time", fewer, connections, 1)


def compare(bench: Bench, measure: str, lines: Lines, connections: int, at_once: int) -> None:
    """So many connections, so many lines at once."""
    topics = [Topic(bench.kafka.bootstrap_servers, f"connections-{connections}-{at_once}-{who}") for who in "ab"]
    bench.compare(
        measure,
        taking(ours(bench, topics[0]), lines, connections, at_once),
        {RSYSLOG: taking(by_rsyslog(bench, topics[1]), lines, connections, at_once)},
    )

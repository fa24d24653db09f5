"""Syslog lines over 1, 1,000 and 10,000 connections, in comparison with rsyslog.

All connections open before the clock starts. They send in turns, up to 100 lines at a time, then one line at a time.
The agent treats each as a sender of its own. Its cost per event should not depend on their number.
"""

from __future__ import annotations

from bench.frame import Bench
from bench.frame.kafka import Topic
from bench.frame.peers import RSYSLOG
from bench.frame.syslog import Lines, by_rsyslog, ours, syslog_contestant


def run(bench: Bench) -> None:
    """Compare for each number of connections."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    numbers = (1, 50) if bench.smoke else (1, 1_000, 10_000)
    for connections in numbers:
        compare(bench, f"{connections:,} connection{'s' * (connections > 1)}", lines, connections, 100)
    fewer = lines.fewer(5)
    for connections in numbers[1:]:
        compare(bench, f"{connections:,} connections, a line at a time", fewer, connections, 1)


def compare(bench: Bench, measure: str, lines: Lines, connections: int, at_once: int) -> None:
    """Compare for a number of connections, with `at_once` lines at a time."""
    topics = [Topic(bench.kafka.bootstrap_servers, f"connections-{connections}-{at_once}-{who}") for who in "ab"]
    bench.compare(
        measure,
        syslog_contestant(ours(bench, topics[0]), lines, connections, at_once),
        {RSYSLOG: syslog_contestant(by_rsyslog(bench, topics[1]), lines, connections, at_once)},
    )

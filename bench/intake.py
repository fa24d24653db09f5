"""Syslog over TCP into the replicated channel, beside rsyslog, syslog-ng, Flume, and a bare producer.

A real agent (`agent start`) parses lines into columns, masks addresses and stores what comes out; rsyslog and
syslog-ng hand on whole lines, neither parsed into columns nor masked, and so does the loop of confluent-kafka. All
take the same lines over one connection. Time runs from the first byte sent until all in-sync replicas have the last
event. Beside Flume, which parses, both write Flume's format, a record each event.
"""

from __future__ import annotations

from bench.frame import Bench, simply
from bench.frame.kafka import Topic, bare_producer
from bench.frame.peers import BARE, FLUME, FLUME_TUNED, RSYSLOG, SYSLOG_NG, TUNED
from bench.frame.syslog import Lines, by_flume, by_rsyslog, by_syslog_ng, ours, taking


def run(bench: Bench) -> None:
    """Both formats."""

    def topic(name: str) -> Topic:
        return Topic(bench.kafka.bootstrap_servers, f"intake-{name}")

    lines = Lines(bench, bench.events(2_000_000, 20_000))
    fewer = lines.fewer(4)
    bench.compare(
        "syslog TCP to Kafka channel",
        taking(ours(bench, topic("arrow")), lines),
        {
            RSYSLOG: taking(by_rsyslog(bench, topic("rsyslog")), lines),
            SYSLOG_NG: taking(by_syslog_ng(bench, topic("syslog-ng")), fewer),
            BARE: simply(bare_producer(topic("bare"), fewer.path, fewer.whole)),
        },
    )
    lines = Lines(bench, bench.events(600_000, 5_000))  # as many for Flume, whose JVM takes some to get warm
    bench.compare(
        "the same, format = flume",
        taking(ours(bench, topic("flume-ours"), "a.channels.kafka.format = flume"), lines),
        {
            FLUME: taking(by_flume(bench, topic("flume")), lines),
            FLUME_TUNED: taking(by_flume(bench, topic("flume-tuned"), TUNED), lines),
        },
    )

"""Syslog over TCP into the replicated channel, beside rsyslog, syslog-ng, Flume, and a bare producer.

An agent (`agent start`) parses lines into columns, masks addresses and stores the events. rsyslog, syslog-ng and the
loop of confluent-kafka store complete lines, neither parsed into columns nor masked. All receive the same lines over
one connection. The lines come from many hosts; rsyslog also receives one line with a number, and lines of RFC 5424.
Time runs from the first byte sent until all in-sync replicas have the last event. In the comparison with Flume, which
parses, both write Flume's format, one record per event.
"""

from __future__ import annotations

from bench.frame import Bench, without_setup
from bench.frame.kafka import Topic, bare_producer
from bench.frame.peers import BARE, FLUME, FLUME_TUNED, RSYSLOG, SYSLOG_NG, TUNED
from bench.frame.syslog import Lines, by_flume, by_rsyslog, by_syslog_ng, ours, syslog_contestant
from bench.frame.varied import REPEATED, RFC5424


def run(bench: Bench) -> None:
    """Measure the intake of syslog lines over TCP into a Kafka channel, beside other programs.

    In the channel's format `arrow`, the peers are rsyslog, syslog-ng and a bare producer; rsyslog alone for other
    lines. In the format `flume`, they are Flume, and Flume with a tuned producer.
    """

    def topic(name: str) -> Topic:
        return Topic(bench.kafka.bootstrap_servers, f"intake-{name}")

    events = bench.events(2_000_000, 20_000)
    lines = Lines(bench, events)
    fewer = lines.fewer(4)
    bench.compare(
        "syslog TCP to Kafka channel",
        syslog_contestant(ours(bench, topic("arrow")), lines),
        {
            RSYSLOG: syslog_contestant(by_rsyslog(bench, topic("rsyslog")), lines),
            SYSLOG_NG: syslog_contestant(by_syslog_ng(bench, topic("syslog-ng")), fewer),
            BARE: without_setup(bare_producer(topic("bare"), fewer.path, fewer.lines)),
        },
    )
    for name, others in {
        "one line with a number": Lines(bench, events, population=REPEATED),
        "RFC 5424": Lines(bench, events, form=RFC5424),
    }.items():
        bench.compare(
            f"the same, {name}",
            syslog_contestant(ours(bench, topic(f"{len(name)}-ours")), others),
            {RSYSLOG: syslog_contestant(by_rsyslog(bench, topic(f"{len(name)}-rsyslog")), others)},
        )
    lines = Lines(bench, bench.events(600_000, 5_000))  # enough for the warm-up of Flume's JVM
    bench.compare(
        "the same, format = flume",
        syslog_contestant(ours(bench, topic("flume-ours"), "a.channels.kafka.format = flume"), lines),
        {
            FLUME: syslog_contestant(by_flume(bench, topic("flume")), lines),
            FLUME_TUNED: syslog_contestant(by_flume(bench, topic("flume-tuned"), TUNED), lines),
        },
    )

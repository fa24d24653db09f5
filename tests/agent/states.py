"""States of an agent with nineteen components, as a person who is woken up meets them, without servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flafka.agent.monitoring.problems import DatagramLoss, PastProblem
from flafka.plugins.kafka.backlog import Broker, ClusterState
from tests.agent.browsing import configured
from tests.agent.scenes import Scene

SOURCES = {
    "firewall": "syslogudp\n host = 0.0.0.0\n port = 5140",
    "syslog": "syslogtcp\n host = 0.0.0.0\n port = 5514",
    "orders": "taildir\n filegroups = f\n filegroups.f = /var/log/orders/.*[.]log",
    "audit": "taildir\n filegroups = f\n filegroups.f = /var/log/audit/audit[.]log",
    "uploads": "spooldir\n spoolDir = /srv/uploads",
    "api": "http\n port = 8081",
}
SINKS = {
    "archive": "hdfs\n hdfs.path = hdfs://namenode/events/%Y-%m-%d",
    "search": "solr\n group = search\n url = http://solr-1:8983/solr/events",
    "index": "elasticsearch\n group = index\n hostNames = elastic-1:9200\n indexName = events",
    "table": "hbase\n group = table\n thrift = hbase-1:9090\n table = events\n columnFamily = e",
    "mirror": "kafka\n group = mirror\n kafka.bootstrap.servers = other:9092\n kafka.topic = events",
    "hook": "http\n endpoint = http://hooks.example/alerts",
    "debug": "logger",
    "copies": "file_roll\n sink.directory = /var/spool/copies",
    "trash": "null",
}
CHANNELS = {
    "spill": "file\n checkpointDir = {directory}/spill/c\n dataDirs = {directory}/spill/d\n capacity = 1000000",
    "events": "kafka\n kafka.bootstrap.servers = kafka-1:9092,kafka-2:9092\n kafka.topic = events\n format = flume",
    "slow": "file\n checkpointDir = {directory}/slow/c\n dataDirs = {directory}/slow/d\n capacity = 200000",
    "quick": "memory\n capacity = 10000",
}
CHANNEL_OF = {"archive": "events", "search": "events", "index": "events", "table": "events", "mirror": "events",
              "hook": "slow", "copies": "slow", "debug": "quick", "trash": "quick"}  # fmt: skip
CHANNELS_OF = {"firewall": "events", "syslog": "events quick", "orders": "events", "audit": "events slow",
               "uploads": "slow", "api": "quick"}  # fmt: skip
COUNTERS = {
    "SOURCE": "EventAcceptedCount",
    "INTERCEPTOR": "EventReceivedCount",
    "ROUTE": "EventRoutedCount",
    "CHANNEL": "EventPutSuccessCount",
    "SINK": "EventDrainSuccessCount",
}
BROKERS = tuple(f"kafka-{n}:9092" for n in (1, 2, 3))
EVENTS_A_SECOND = {"firewall": 850, "syslog": 320, "orders": 120, "audit": 40, "uploads": 15, "api": 60}


def configuration(directory: Path, *, overflow: bool) -> str:
    """Return the configuration of the agent `collector`, with or without an overflow of its channel in Kafka."""
    channels = {name: CHANNELS[name] for name in CHANNELS if overflow or name != "spill"}
    lines = [f"collector.{kind}s = {' '.join(names)}"
             for kind, names in (("source", SOURCES), ("channel", channels), ("sink", SINKS))]  # fmt: skip
    for kind, parts in (("source", SOURCES), ("channel", channels), ("sink", SINKS)):
        for name, text in parts.items():
            type_name, *options = text.format(directory=directory).split("\n")
            prefix = f"collector.{kind}s.{name}."
            lines += [f"{prefix}type = {type_name}", *(f"{prefix}{option.strip()}" for option in options)]
    lines += (f"collector.sources.{name}.channels = {channels}" for name, channels in CHANNELS_OF.items())
    lines += (f"collector.sinks.{name}.channel = {channel}" for name, channel in CHANNEL_OF.items())
    for name in ("orders", "audit"):
        lines.append(f"collector.sources.{name}.positionFile = {directory}/{name}.json")
    lines += [
        "collector.sources.syslog.selector.type = multiplexing",
        "collector.sources.syslog.selector.header = Severity",
        "collector.sources.syslog.selector.mapping.7 = quick",
        "collector.sources.syslog.selector.default = events",
        "collector.sources.orders.interceptors = cards ids",
        "collector.sources.orders.interceptors.cards.type = mask",
        "collector.sources.orders.interceptors.cards.patterns = card",
        "collector.sources.orders.interceptors.ids.type = static",
        "collector.sources.orders.interceptors.ids.key = kind",
        "collector.sources.orders.interceptors.ids.value = order",
    ]
    if overflow:
        lines += ["collector.channels.events.overflow = spill", "collector.channels.events.overflowTimeout = 5"]
    return "\n".join(lines)


class Recorded:
    """Agent `collector` with a recorded past of an hour, to which a state adds its figures."""

    def __init__(self, directory: Path, *, overflow: bool = False) -> None:
        file = directory / "collector.conf"
        file.write_text(configuration(directory, overflow=overflow))
        self.scene = Scene(configured(file))
        self.now = time.time()
        self.scene.view._started = self.now - 14400
        self.set_brokers(down=())

    def set_brokers(self, down: tuple[int, ...]) -> None:
        """Set the state of the three brokers; the numbers of those that are down begin with 1."""
        brokers = tuple(
            Broker(n, address, n not in down, 0 if n in down else 4) for n, address in enumerate(BROKERS, 1)
        )
        lacking = 12 if down else 0
        away = len(down) == len(BROKERS)
        self.scene.set_cluster(
            "events", ClusterState("" if away else "4L6g3n", "events", brokers, 0 if away else 12, lacking, 0)
        )

    def run(
        self, change: Callable[[float], None] = lambda age: None, stuck: Mapping[str, float] | None = None
    ) -> None:
        """Record the last hour. `change(age)` sets figures, `age` seconds ago.

        `stuck` has by component the age from which on it lets no event through.
        """
        stuck = stuck or {}
        for age in [*range(3600, 120, -10), *range(120, -1, -2)]:
            step = 10 if age >= 120 else 2
            for key, metrics in self.scene.metrics.items():
                kind, _, name = key.partition(".")
                if kind != "INTERCEPTOR" and age <= stuck.get(key, -1):
                    continue
                number = step * self._events(kind, name, {key for key, since in stuck.items() if age <= since})
                metrics.add(COUNTERS[kind], number)
                if kind == "SOURCE":
                    metrics.add("ReceivedBytesCount", 210 * number)
                if kind == "SINK":
                    metrics.add("TakenBytesCount", 210 * number)
                    metrics.set("Lag", number % 7)
                    metrics.set("LagSeconds", 0.4)
                if kind == "CHANNEL" and name != "events":
                    capacity = {"quick": 10_000, "slow": 200_000, "spill": 1_000_000}[name]
                    metrics.set("ChannelCapacity", capacity)
                    metrics.set("ChannelSize", 0 if name == "spill" else 40)
                    metrics.set("ChannelFillPercentage", 0 if name == "spill" else 4000 / capacity)
                if kind in ("SOURCE", "SINK"):
                    metrics.set("LatencyP50Milliseconds", 3.1 if kind == "SOURCE" else 900)
                    metrics.set("LatencyP99Milliseconds", 14 if kind == "SOURCE" else 2300)
            change(age)
            self.scene.sample(self.now - age)

    def _events(self, kind: str, name: str, stuck: set[str]) -> int:
        """Return the events a second of a component, while those in `stuck` let none through."""
        rates = {source: rate * (f"SOURCE.{source}" not in stuck) for source, rate in EVENTS_A_SECOND.items()}
        if kind == "SOURCE":
            return rates[name]
        if kind in ("ROUTE", "INTERCEPTOR"):
            return rates[name.partition(".")[0]]
        channel = CHANNEL_OF.get(name, name)
        return (
            0 if channel == "spill" else sum(rates[source] for source, ends in CHANNELS_OF.items() if channel in ends)
        )

    def fail(self, key: str, text: str, minutes: float, attempts: int) -> None:
        """Have a component fail since some minutes."""
        metrics = self.scene.metrics[key]
        metrics.set_error(text)
        metrics.failing_since = self.now - 60 * minutes
        metrics.set("RetryAttempt", attempts)
        metrics.set("RetryTime", 1000 * (time.time() + 17))
        kind, _, name = key.partition(".")
        record = logging.LogRecord(f"collector.{kind.lower()}s.{name}", logging.WARNING, "", 0, "%s", (text,), None)
        record.created = self.now - 60 * minutes
        self.scene.view.recent.handle(record)

    def begin(self, component: str, kind: str, minutes: float) -> None:
        """Have the agent see a problem that is no failure since some minutes."""
        self.scene.view.problems._since[f"collector.{component}", kind] = self.now - 60 * minutes


def well(directory: Path) -> Scene:
    recorded = Recorded(directory)
    recorded.run()
    until, text = recorded.now - 180, "http://solr-1:8983/solr/events does not answer: Connection refused"
    recorded.scene.view.problems._past["collector.sinks.search", "sink-fails"] = PastProblem(
        "collector.sinks.search", 'Sink "search" (solr) does not deliver.', text, until - 2640, until, 2
    )
    return recorded.scene


def source_fails(directory: Path) -> Scene:
    recorded = Recorded(directory)
    recorded.run(stuck={"SOURCE.syslog": 1500, "ROUTE.syslog.events": 1500, "ROUTE.syslog.quick": 1500})
    text = "cannot listen on 0.0.0.0:5514 (TCP): another program listens there; stop it or choose another port"
    recorded.fail("SOURCE.syslog", text, 25, 63)
    return recorded.scene


def sink_fails(directory: Path) -> Scene:
    recorded, search = Recorded(directory), "SINK.search"

    def change(age: float) -> None:
        metrics = recorded.scene.metrics[search]
        if age <= 2640:
            metrics.set("Lag", 1330 * (2640 - age) + 5)
            metrics.set("LagSeconds", 2640 - age)
            metrics.set("RetentionSecondsLeft", 5 * 3600 - (2640 - age))

    recorded.run(change, {search: 2640})
    text = "http://solr-1:8983/solr/events does not answer: Connection refused"
    recorded.fail(search, text, 44, 108)
    recorded.fail("SINK.debug", "standard output is closed", 3, 9)
    return recorded.scene


def brokers_away(directory: Path) -> Scene:
    recorded = Recorded(directory)
    sources = [f"SOURCE.{name}" for name, channels in CHANNELS_OF.items() if "events" in channels]
    sinks = [f"SINK.{name}" for name, channel in CHANNEL_OF.items() if channel == "events"]
    routes = [key for key in recorded.scene.metrics if key.startswith("ROUTE.") and key.endswith(".events")]
    firewall = recorded.scene.metrics["SOURCE.firewall"]
    recorded.run(
        lambda age: firewall.add("KernelDropCount", 850 * (10 if age >= 120 else 2) if age <= 540 else 0),
        dict.fromkeys((*sources, *sinks, *routes, "CHANNEL.events"), 540),
    )
    lost = firewall.get("KernelDropCount")
    recorded.scene.view.problems._losses["SOURCE.firewall"] = DatagramLoss(0, lost, recorded.now - 540, recorded.now)
    recorded.set_brokers(down=(1, 2, 3))
    text = f"no Kafka broker answers at {','.join(BROKERS)}: Connection refused"
    recorded.fail("CHANNEL.events", text, 9, 26)
    for key in sources:
        recorded.fail(key, text, 9, 26)
        recorded.scene.metrics[key].set("UnacknowledgedSeconds", 540)
    for key in sinks:
        recorded.scene.metrics[key].remove("Lag")
        recorded.scene.metrics[key].remove("LagSeconds")
    recorded.fail("SINK.archive", text, 9, 26)
    recorded.fail("SINK.debug", "standard output is closed", 200, 500)
    return recorded.scene


def overflow_filling(directory: Path) -> Scene:
    recorded = Recorded(directory, overflow=True)
    sinks = [f"SINK.{name}" for name, channel in CHANNEL_OF.items() if channel == "events"]

    def change(age: float) -> None:
        if age > 600:
            return
        size = 1330 * (600 - age)
        events, spill = recorded.scene.metrics["CHANNEL.events"], recorded.scene.metrics["CHANNEL.spill"]
        events.set("Overflowing", 1)
        spill.add("EventPutSuccessCount", 1330 * (10 if age >= 120 else 2))
        events.set("OverflowSize", size)
        spill.set("ChannelSize", size)
        spill.set("ChannelFillPercentage", size / 10_000)
        spill.set("DiskFreeBytes", 74e9)

    recorded.run(change, dict.fromkeys(sinks, 600))
    recorded.set_brokers(down=(1, 2, 3))
    metrics = recorded.scene.metrics["CHANNEL.events"]
    metrics.is_covered = True
    metrics.degradation = lambda: (
        "overflows into collector.channels.spill for 600 s, which holds 798000 events: no Kafka broker answers at "
        f"{','.join(BROKERS)}: Connection refused"
    )
    for key in sinks:
        recorded.scene.metrics[key].remove("Lag")
        recorded.scene.metrics[key].remove("LagSeconds")
    recorded.begin("channels.events", "overflowing", 10)
    return recorded.scene


def dead_letters(directory: Path) -> Scene:
    recorded = Recorded(directory)
    metrics = recorded.scene.metrics["SINK.index"]
    recorded.run(lambda age: metrics.add("EventRejectedCount", (20 if age >= 120 else 4) if age <= 600 else 0))
    recorded.begin("sinks.index", "events-rejected", 10)
    file = directory / "collector.conf"
    recorded.scene.rejecting["collector.sinks.index"] = (
        "1220 events were rejected, the latest 1 s ago (1220: cannot parse [price]): "
        f"agent dlq list -c {file} -n collector --component collector.sinks.index"
    )
    return recorded.scene


STATES: Mapping[str, Callable[[Path], Scene]] = {
    "well": well,
    "source fails": source_fails,
    "sink fails": sink_fails,
    "brokers away": brokers_away,
    "overflow filling": overflow_filling,
    "dead letters": dead_letters,
    "agent gone": sink_fails,
}

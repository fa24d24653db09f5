"""Alternatives to Flafka: rsyslog, syslog-ng and Apache Flume, as processes that write to Kafka.

All wait for all in-sync replicas. Other settings have the defaults of each program, but for the batches of Flume,
1,000 events, and the queues of rsyslog, which are large.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.frame import PeerMissing
from bench.frame.processes import run_program
from flafka.agent.jvm.java import find_java
from flafka.agent.services import ServiceError
from tests.interop import debian
from tests.interop.test_flume import RunningFlume

RSYSLOG = "rsyslog → omkafka"
SYSLOG_NG = "syslog-ng → kafka-c"
FLUME = "Apache Flume → KafkaChannel"
FLUME_TUNED = "the same, with linger and lz4"
TUNED = """
a1.channels.kafka.kafka.producer.linger.ms = 5
a1.channels.kafka.kafka.producer.compression.type = lz4
"""
"""Settings that let Flume's producer send several events per request, as Flafka's does by default."""
BARE = "bare confluent-kafka"

_RSYSLOG_CONF = """
global(workDirectory="{home}")
module(load="omkafka")
template(name="line" type="string" string="{template}")
ruleset(name="to-kafka") {{
  action(type="omkafka" broker=[{brokers}] topic="{topic}" template="line"
         confParam=["acks=all", "linger.ms=5", "queue.buffering.max.messages=1000000", "compression.codec=lz4"]
         queue.type="LinkedList" queue.size="200000" queue.dequeueBatchSize="2000" queue.workerThreads="1"
         action.resumeRetryCount="-1")
}}
{input}
"""
_SYSLOG_NG_CONF = """
@version: 3.35
options {{ stats-freq(0); keep-hostname(yes); }};
{source}
destination d_kafka {{
  kafka-c(bootstrap-servers("{servers}") topic("{topic}") message("{template}") workers(1) batch-lines(1000)
          config("acks" => "all" "linger.ms" => "5" "queue.buffering.max.messages" => "1000000"
                 "compression.codec" => "lz4"));
}};
log {{ source(s); destination(d_kafka); flags(flow-control); }};
"""


@contextlib.contextmanager
def rsyslog(home: Path, servers: str, topic: str, *, input: str, template: str) -> Iterator[int]:
    """Run rsyslogd with one input, of the ruleset `to-kafka`, and omkafka; yield its PID, and stop it at the end.

    Raises `PeerMissing` if rsyslog or its module for Kafka is not available.
    """
    packages = ("rsyslog", "rsyslog-kafka", "libestr0", "libfastjson4", "liblognorm5", "librdkafka1")
    daemon, environment = _program("rsyslogd", *packages)
    modules = next(iter(daemon.parents[2].rglob("rsyslog/omkafka.so")), Path("/usr/lib/x86_64-linux-gnu/rsyslog/x"))
    if not modules.exists():
        raise PeerMissing("rsyslog is installed without its module for Kafka: apt-get install rsyslog-kafka")
    brokers = ", ".join(f'"{server}"' for server in servers.split(","))
    conf = home / "rsyslog.conf"
    conf.write_text(_RSYSLOG_CONF.format(home=home, brokers=brokers, topic=topic, input=input, template=template))
    environment["RSYSLOG_MODDIR"] = f"{modules.parent}/"
    command: list[str | Path] = [daemon, "-n", "-f", conf, "-i", home / "rsyslog.pid"]
    with run_program(command, home / "rsyslog.log", environment) as process:
        yield process.pid


@contextlib.contextmanager
def syslog_ng(home: Path, servers: str, topic: str, *, source: str, template: str) -> Iterator[int]:
    """Run syslog-ng with the source `s` and its Kafka destination; yield its PID, and stop it at the end.

    Raises `PeerMissing` if syslog-ng or its module for Kafka is not available.
    """
    packages = ("syslog-ng-core", "syslog-ng-mod-rdkafka", "libivykis0", "libnet1", "libpcre3", "libwrap0")
    daemon, environment = _program("syslog-ng", *packages, "librdkafka1")
    modules = next(iter(daemon.parents[2].rglob("syslog-ng/*/libkafka.so")), None)
    if modules is None:
        raise PeerMissing(
            "syslog-ng is installed without its module for Kafka: apt-get install syslog-ng-mod-rdkafka"
        )
    conf = home / "syslog-ng.conf"
    conf.write_text(_SYSLOG_NG_CONF.format(source=source, servers=servers, topic=topic, template=template))
    state_files: list[str | Path] = [
        "--persist-file",
        home / "persist",
        "--pidfile",
        home / "pid",
        "--control",
        home / "control",
    ]
    command: list[str | Path] = [daemon, "-F", "-f", conf, "--no-caps", "--module-path", modules.parent, *state_files]
    with run_program(command, home / "syslog-ng.log", environment) as process:
        yield process.pid


@contextlib.contextmanager
def flume(home: Path, configuration: str, *jars: str, options: Sequence[str] = ()) -> Iterator[int]:
    """Run Flume's agent `a1` with 512 MiB of heap and default JIT settings; yield its PID, and stop it at the end.

    Raises `PeerMissing` if Flume or Java is not available, ServiceError with the end of its log if it fails.
    """
    conf = home / "flume.conf"
    conf.write_text(configuration)
    try:
        find_java()
        running = RunningFlume(home, conf, jars=jars, options=options, heap_mb=512)
    except ServiceError as reason:
        raise PeerMissing(str(reason)) from None
    with running:
        try:
            yield running.process.pid
        except ServiceError as e:
            raise ServiceError(f"{e}; Flume's log ends:\n{running.log[-4000:]}") from None


def _program(name: str, *packages: str) -> tuple[Path, dict[str, str]]:
    """Return the path of a program from Debian packages, and its environment. Raises `PeerMissing` without it."""
    try:
        return debian.fetched(name, *packages)
    except (debian.Missing, subprocess.TimeoutExpired) as reason:
        raise PeerMissing(str(reason)) from None

"""`agent audit`: what went into the channels against what was taken out of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_with_cluster
from flafka.agent.cli.kafka_admin import naming_brokers
from flafka.agent.cli.output import json_option, show
from flafka.plugins import FlafkaError, StreamingSink
from flafka.plugins.kafka.topic import KafkaBackedChannel

if TYPE_CHECKING:
    from flafka.agent.audit.sums import Ledger, Sum
    from flafka.agent.topology import AgentSpec
    from flafka.plugins import KafkaStream

COLUMNS = ("topic", "minute", "stage", "events", "checksum", "difference")
Row = tuple[str, str, str, int, str, str | None]


@click.command()
@configuration_options
@click.option(
    "--hours", type=click.IntRange(1), default=1, show_default=True, help="Show the minutes of this many hours."
)
@click.option("--all", "everything", is_flag=True, help="Show all minutes, and events without a timestamp.")
@click.option(
    "--grace",
    type=click.IntRange(0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Time after the last report on a minute until its differences no longer count as events on their way.",
)
@json_option
def audit(chosen: Chosen, hours: int, everything: bool, grace: int, as_json: bool) -> None:
    """Compare, minute by minute, the events that sources put into Kafka channels with those that sinks took out.

    It reads the reports in the topic `audit.topic`. Exit code: 1 if events are missing, too many or altered, else 0.
    """
    from flafka.agent.audit.publishing import OPTION

    spec = load_with_cluster(chosen)
    topic = spec.options.audit_topic
    if topic is None:
        raise FlafkaError(f"agent {spec.name} is not audited: add {spec.name}.{OPTION} = <topic>")
    quiet_since = int((time.time() - grace) * 1000)
    first = 0 if everything else int(time.time() - hours * 3600) * 1000
    rows: list[Row] = []
    balanced = True
    for stream, groups in _channels(spec):
        with naming_brokers(spec):
            ledger = _ledger(stream, topic, first)
        for minute, found in groupby(ledger.compared(groups), key=lambda difference: difference.minute):
            if minute < first:  # some of its reports are older than those read
                continue
            final = ledger.quiet(minute, quiet_since)
            texts = {d.stage: d.text if final or not d.text else f"{d.text} so far" for d in found}
            balanced &= not (final and any(texts.values()))
            rows += _rows(stream.topic, minute, ledger.minutes[minute], texts)
    show(COLUMNS, rows, as_json=as_json)
    sys.exit(not balanced)


def _channels(spec: AgentSpec) -> Iterator[tuple[KafkaStream, set[str]]]:
    """Those in Kafka, with the groups of their sinks; Spark's streams keep their own account."""
    sinks = [sink for sink in spec.sinks if not issubclass(sink.cls, StreamingSink)]
    for described in spec.channels:
        channel = described.make()
        if isinstance(channel, KafkaBackedChannel):
            yield (
                channel.kafka.stream(None),
                {channel.kafka.stream(sink.group).group for sink in sinks if sink.channel == described.name},
            )


def _ledger(stream: KafkaStream, topic: str, since: int) -> Ledger:
    from flafka.agent.audit.sums import Ledger, read
    from flafka.agent.runner.deadletters.stored import records

    ledger = Ledger()
    for at, _, value in records(stream, topic, since):
        report = read(value)
        if report is not None and report.topic == stream.topic:
            ledger.add(report, at)
    return ledger


def _rows(topic: str, minute: int, stages: Mapping[str, Sum], differences: Mapping[str, str]) -> Iterable[Row]:
    from flafka.agent.audit.sums import PUT, Sum

    start = datetime.fromtimestamp(minute / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ") if minute else "none"
    for stage in (PUT, *differences):
        had = stages.get(stage, Sum())
        yield topic, start, stage, had.events, f"{had.checksum:016x}", differences.get(stage) or None

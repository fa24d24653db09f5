"""`agent audit`: comparison of the events put into channels with those taken out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_with_brokers
from flafka.agent.cli.kafka_admin import name_unreachable_brokers
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
    help="Time after the last report on a minute until its differences count as final, not as events in flight.",
)
@json_option
def audit(chosen: ChosenConfiguration, hours: int, everything: bool, grace: int, as_json: bool) -> None:
    """Compare, minute by minute, the events that sources put into Kafka channels with those that sinks took out.

    The audit reports are read from the topic `audit.topic`.

    Exit code: 1 if events are missing, duplicated or altered, else 0.
    """
    from flafka.agent.audit.publishing import OPTION

    spec = load_with_brokers(chosen)
    topic = spec.options.audit_topic
    if topic is None:
        raise FlafkaError(f"agent {spec.name} is not audited: add {spec.name}.{OPTION} = <topic>")
    quiet_since = int((time.time() - grace) * 1000)
    first = 0 if everything else int(time.time() - hours * 3600) * 1000
    rows: list[Row] = []
    balanced = True
    for stream, groups in _channels(spec):
        with name_unreachable_brokers(spec):
            ledger = _ledger(stream, topic, first)
        for minute, differences in groupby(ledger.compare(groups), key=lambda difference: difference.minute):
            if minute < first:  # reports before `first` were not read, so the sums are too low
                continue
            final = ledger.is_quiet(minute, quiet_since)
            texts = {d.stage: d.text if final or not d.text else f"{d.text} so far" for d in differences}
            balanced &= not (final and any(texts.values()))
            rows += _rows(stream.topic, minute, ledger.minutes[minute], texts)
    show(COLUMNS, rows, as_json=as_json)
    sys.exit(not balanced)


def _channels(spec: AgentSpec) -> Iterator[tuple[KafkaStream, set[str]]]:
    """Yield each Kafka channel's stream with the consumer groups of its sinks.

    Sinks on Spark are left out: Spark commits their offsets in its checkpoints.
    """
    sinks = [sink for sink in spec.sinks if not issubclass(sink.cls, StreamingSink)]
    for channel_spec in spec.channels:
        channel = channel_spec.make()
        if isinstance(channel, KafkaBackedChannel):
            yield (
                channel.kafka.stream(None),
                {channel.kafka.stream(sink.group).group for sink in sinks if sink.channel == channel_spec.name},
            )


def _ledger(stream: KafkaStream, topic: str, since: int) -> Ledger:
    """Return the reports on the topic of `stream` that were published from `since` on, in ms since the epoch.

    `topic` is the audit topic. Raises Retry if brokers do not answer.
    """
    from flafka.agent.audit.sums import Ledger, decode_report
    from flafka.agent.auxiliarytopics import AUDIT_READER
    from flafka.agent.runner.deadletters.reading import read_records

    ledger = Ledger()
    for timestamp, _, value in read_records(stream, topic, since, AUDIT_READER):
        report = decode_report(value)
        if report is not None and report.topic == stream.topic:
            ledger.add(report, timestamp)
    return ledger


def _rows(topic: str, minute: int, stages: Mapping[str, Sum], differences: Mapping[str, str]) -> Iterable[Row]:
    """Yield a row for the put and for each compared stage of one minute."""
    from flafka.agent.audit.sums import PUT, Sum

    start = datetime.fromtimestamp(minute / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ") if minute else "none"
    for stage in (PUT, *differences):
        total = stages.get(stage, Sum())
        yield topic, start, stage, total.events, f"{total.checksum:016x}", differences.get(stage) or None

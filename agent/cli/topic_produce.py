"""`agent topic produce`: records from standard input or a file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
from confluent_kafka import KafkaError, KafkaException, Producer

from flafka.agent.cli.interrupts import DeferredInterrupt
from flafka.agent.cli.kafka_admin import connect_clients, connection_options, partitions_of
from flafka.agent.cli.output import INTERRUPTED, json_option, utc
from flafka.agent.cli.topic_records import NewRecord, parse_json
from flafka.plugins.kafka.clients import PRODUCER, new_producer
from flafka.plugins.kafka.errors import FATAL_EXCEPTIONS, explain_error
from flafka.plugins.kafka.rights import Access, Role

PRODUCE = Role(
    "`agent topic produce`",
    (
        Access(
            "topic",
            "the topics of `agent topic`",
            ("Write",),
            (("DescribeConfigs", "one record above `max.message.bytes` fails the records beside it"),),
        ),
    ),
)
DELIVERY_SECONDS = 120
"""Longest time until a record is acknowledged or has failed, the default of Java's client."""
SIZE_LIMIT = "max.message.bytes"
MAX_MESSAGE_BYTES = 1_000_000_000
"""Largest value of librdkafka's `message.max.bytes`."""


@click.command()
@click.argument("name")
@connection_options
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Input. If unset, standard input."
)
@click.option("--key-separator", metavar="TEXT", help=r"Each line has a key before this text; \t is a tab.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of all records. May be repeated."
)
@click.option("--partition", type=click.IntRange(min=0), help="Partition. If unset, by the key, else any.")
@click.option(
    "--null-marker", metavar="TEXT", help="A key or value of this text is null; a null value is a tombstone."
)
@click.option(
    "--from-json",
    is_flag=True,
    help="Each line is an object of `agent topic consume --json`: value or value_base64, and optionally key, "
    "headers, partition and timestamp.",
)
@json_option
def produce(
    name: str,
    bootstrap_server: str | None,
    command_config: Path | None,
    file: Path | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    null_marker: str | None,
    from_json: bool,
    as_json: bool,
) -> None:
    """Store each line as a record in a topic, once and on all in-sync replicas, and print the number of records.

    \b
    agent topic create logs --if-not-exists
    echo 'a line' | agent topic produce logs
    # With a key, with a header, and a tombstone.
    echo 'web-1:a line' | agent topic produce logs --key-separator :
    printf 'a\\nb\\n' | agent topic produce logs --header from=me --json
    echo '{"key": "web-1", "value": null}' | agent topic produce logs --from-json

    The command stops at the first line that is wrong or not acknowledged, and names it. With --json, each
    acknowledged record is an object on a line, with its number in the input. Exit code: 0 if all records are
    acknowledged, else 1; 130 after Ctrl-C.
    """
    parse = _line_parser(key_separator, headers, null_marker, from_json)
    with connect_clients(bootstrap_server, command_config, topic=name, right="Write") as (admin, client):
        existing = partitions_of(admin, name, right="Write")
        if partition is not None and partition not in existing:
            raise click.BadParameter(f"{name} has no partition {partition}", param_hint="--partition")
        limit = _size_limit(admin, name)
        largest = min(max(limit, PRODUCER["message.max.bytes"]), MAX_MESSAGE_BYTES)
        sizes = {"batch.size": min(limit, 1_000_000), "message.max.bytes": largest}
        producer = new_producer(PRODUCE, {**client, **sizes, "message.timeout.ms": DELIVERY_SECONDS * 1000})

        def explain(error: Any) -> str:
            text = explain_error(error, topic=name, right="Write", client=client)
            known = error.args[0] if isinstance(error, KafkaException) else error
            too_large = isinstance(known, KafkaError) and known.code() == KafkaError.MSG_SIZE_TOO_LARGE
            return f"{text}: the topic has {SIZE_LIMIT}={limit}" if too_large else text

        production = _Production(producer, name, explain, as_json)
        with contextlib.ExitStack() as stack, DeferredInterrupt() as interrupt:
            lines: BinaryIO = stack.enter_context(file.open("rb")) if file else sys.stdin.buffer
            records = _records(partial(interrupt.read_line, lines), parse, existing, partition)
            production.run(records, is_interactive=not file and sys.stdin.isatty())
    click.echo(f"records stored in {name}: {production.stored}", err=as_json)
    if production.problem:
        raise click.ClickException(production.problem)
    if interrupt.is_set:
        raise SystemExit(INTERRUPTED)


class _Production:
    """Records on their way to brokers, with the number of acknowledged ones and the first problem."""

    def __init__(self, producer: Producer, topic: str, explain: Callable[[Any], str], as_json: bool) -> None:
        self._producer, self._topic, self._explain, self._as_json = producer, topic, explain, as_json
        self.stored = self._sent = 0
        self._refused = 0
        self.problem = ""
        """Sentence about the first line that is wrong or not acknowledged; empty without one."""

    def run(self, records: Iterator[tuple[int, NewRecord]], *, is_interactive: bool) -> None:
        """Produce all records up to the first problem, and wait for their acknowledgements; Ctrl-C ends the wait.

        With `is_interactive`, wait for each.
        """
        try:
            try:
                for number, record in records:
                    self._produce(number, record)
                    self._producer.poll(0)
                    if is_interactive:
                        self._flush()
                    if self.problem:
                        break
            except ValueError as e:
                self.problem = self.problem or str(e)
            self._flush()
        except KeyboardInterrupt:
            pass
        except FATAL_EXCEPTIONS as e:
            self.problem = self.problem or self._explain(e)
        if open_records := self._sent - self.stored - self._refused:
            self.problem += f"{'; ' * bool(self.problem)}records not acknowledged: {open_records}"

    def _produce(self, number: int, record: NewRecord) -> None:
        optional = {"partition": record.partition, "timestamp": record.timestamp}
        given: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=partial(self._report, number),
                    **given,
                )
            except BufferError:  # the client's queue is full
                self._producer.poll(1)
            except KafkaException as e:
                self.problem = self.problem or f"line {number} is not stored: {self._explain(e)}"
                return
            else:
                self._sent += 1
                return

    def _report(self, number: int, error: KafkaError | None, message: Any) -> None:
        """Count the acknowledgement of a record; with an error, the record has failed."""
        if error is not None:
            self._refused += 1
            self.problem = self.problem or f"line {number} is not acknowledged: {self._explain(error)}"
            return
        self.stored += 1
        if self._as_json:
            place = {"line": number, "partition": message.partition(), "offset": message.offset()}
            click.echo(json.dumps({**place, "timestamp": utc(message.timestamp()[1])}))

    def _flush(self) -> None:
        """Block until each record is acknowledged or has failed."""
        while len(self._producer):
            self._producer.flush(0.5)  # a short wait: Python handles Ctrl-C after it


def _line_parser(
    key_separator: str | None, headers: tuple[str, ...], null_marker: str | None, from_json: bool
) -> Callable[[bytes], NewRecord]:
    """Return the function that makes a record of a line; it raises ValueError. Raises click's errors of options."""
    if key_separator == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    if from_json and (key_separator is not None or null_marker is not None):
        raise click.UsageError("--from-json has keys and null in its objects: omit --key-separator and --null-marker")
    if wrong := [text for text in headers if "=" not in text]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--header")
    pairs = [(name, value.encode()) for name, _, value in (text.partition("=") for text in headers)]
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    null = None if null_marker is None else null_marker.encode()

    def parse(line: bytes) -> NewRecord:
        if from_json:
            record = parse_json(line)
            return record._replace(headers=[*pairs, *record.headers])
        key, value = None, line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise ValueError(f"has no key: there is no {key_separator!r} in it")
        return NewRecord(None if value == null else value, None if key == null else key, pairs)

    return parse


def _records(
    read_line: Callable[[], bytes], parse: Callable[[bytes], NewRecord], existing: Any, partition: int | None
) -> Iterator[tuple[int, NewRecord]]:
    """Yield number and record of each line, in this partition if it is not None.

    Raises ValueError for a wrong line, and for a partition that is none of `existing`.
    """
    for number, line in enumerate(iter(read_line, b""), 1):
        try:
            record = parse(line.removesuffix(b"\n"))
        except ValueError as e:
            raise ValueError(f"line {number} {e}") from None
        if partition is not None:
            record = record._replace(partition=partition)
        elif record.partition is not None and record.partition not in existing:
            raise ValueError(f"line {number} has the partition {record.partition}, which the topic does not have")
        yield number, record


def _size_limit(admin: Any, topic: str) -> int:
    """Return the topic's maximum size of a batch in bytes; the default of brokers if this user may not see it.

    Brokers refuse a larger batch as a whole, also for records that would fit alone.
    """
    from kafka.admin import ConfigResource

    resource = ConfigResource("TOPIC", topic, {SIZE_LIMIT: None})
    settings = admin.describe_configs([resource], config_filter="all").get("topic", {}).get(topic, {})
    return int(settings.get(SIZE_LIMIT, {}).get("value") or 1_048_588)

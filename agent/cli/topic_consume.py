"""`agent topic consume`: records to standard output."""

from __future__ import annotations

import errno
import io
import select
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from flafka.agent.cli.interrupts import DeferredInterrupt
from flafka.agent.cli.kafka_admin import connect_clients, connection_options, partitions_of
from flafka.agent.cli.output import json_option
from flafka.agent.cli.positions import find_offsets, parse_position
from flafka.agent.cli.topic_records import RecordDecoder
from flafka.plugins.kafka.admin import committed_offsets
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_consumer
from flafka.plugins.kafka.errors import wrap_callback
from flafka.plugins.kafka.rights import Access, Role

CONSUME = Role(
    "`agent topic consume`",
    (
        Access("topic", "the topics of `agent topic`", ("Read",)),
        Access("group", "the group of `agent topic consume --group`", ("Read",)),
    ),
)
NO_GROUP = "flafka-topic-consume"
"""Group id of a consumer outside of any group, which librdkafka requires."""
RECORD_WAIT_SECONDS = 0.2
"""Longest wait for a record: Python handles Ctrl-C after it."""
COMMIT_RECORDS = 1000
"""Number of printed records after which their offsets are committed while records keep coming."""


@click.command()
@click.argument("name")
@connection_options
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="earliest, latest, an offset, or a time: 2026-11-20T08:00. If unset, latest; with --until-end, earliest. "
    "With --group it counts where the group has no committed offset.",
)
@click.option("--partition", "numbers", type=click.IntRange(min=0), multiple=True, help="May be repeated.")
@click.option("--max-records", type=click.IntRange(min=1), help="Number of records. If unset, all until Ctrl-C.")
@click.option("--until-end", is_flag=True, help="End at the last record that is stored now.")
@click.option("--group", metavar="NAME", help="Consumer group, which commits the offset of what was printed.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="With read_uncommitted, records of open and aborted transactions as well.",
)
@click.option("--offsets", is_flag=True, help="Print partition, offset and time before the value.")
@click.option("--headers", is_flag=True, help="Print the headers before the value.")
@click.option("--keys", is_flag=True, help="Print the key before the value.")
@click.option("--raw", is_flag=True, help="Print a channel's record as it is stored, not its events.")
@json_option
def consume(
    name: str,
    bootstrap_server: str | None,
    command_config: Path | None,
    start: str | None,
    numbers: tuple[int, ...],
    max_records: int | None,
    until_end: bool,
    group: str | None,
    isolation_level: str,
    offsets: bool,
    headers: bool,
    keys: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """Print the records of a topic until Ctrl-C, or with --until-end those that it has now.

    \b
    # All that the topic has now.
    agent topic consume logs --until-end --keys --headers
    # Its first record.
    agent topic consume logs --from earliest --max-records 1 --json
    # A partition, and what a group has not consumed yet.
    agent topic consume logs --until-end --partition 0 --offsets | head -n 1
    agent topic consume logs --group readers --until-end
    # A copy.
    agent topic consume logs --until-end --json |
      agent topic produce logs --from-json

    A column ends with a tab. Without --json, null stands for a missing key or value, and bytes that are no UTF-8 are
    `base64:…`. A record of a Kafka channel is shown as its events, one a line. With --json each record is an object
    on a line, such as for `agent topic produce --from-json`; bytes that are no UTF-8 are in value_base64.

    With --group, an offset is committed after its record was printed: after a kill, records may be printed again. In
    the group of an agent, this command takes records from the sinks. `agent tap` shows events without a group.
    """
    if group is not None and numbers:
        raise click.UsageError("--group has its partitions from Kafka: omit --partition")
    position = parse_position(start or ("earliest" if until_end else "latest"), "--from")
    with connect_clients(bootstrap_server, command_config, topic=name, group=group or "", right="Read") as (
        admin,
        client,
    ):
        existing = partitions_of(admin, name, right="Read")
        if missing := set(numbers) - existing.keys():
            raise click.BadParameter(f"{name} has no partition {min(missing)}", param_hint="--partition")
        partitions = sorted(numbers or existing)
        starts = _offsets(admin, name, partitions, position, isolation_level)
        ends = _offsets(admin, name, partitions, "latest", isolation_level) if until_end else None
        decoder = RecordDecoder(name, events=not raw)
        output = _standard_output()
        is_terminal = sys.stdout.isatty()

        def write(message: Message) -> None:
            record = decoder.record(message)
            lines = (
                [record.json()]
                if as_json
                else record.lines(offsets=offsets, keys=keys, headers=headers, escape=is_terminal)
            )
            for line in lines:
                output.write(line.encode() + b"\n")

        def flush() -> None:
            output.flush()
            if _has_lost_reader(output):
                raise BrokenPipeError(errno.EPIPE, "the reader of the pipe has ended")

        properties = {**client, "isolation.level": isolation_level, "group.id": group or NO_GROUP}
        with closing(RecordPrinter(properties, name, starts, ends, write, flush)) as printer:
            if group is None:
                printer.assign()
            else:
                printer.subscribe()
            with suppress(BrokenPipeError):  # the reader, such as `head`, has all that it wants
                printer.run(max_records)


class RecordPrinter:
    """Consumer that prints the records of a topic, and commits offsets in its group after the output is flushed."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        starts: Mapping[int, int],
        ends: Mapping[int, int] | None,
        write: Callable[[Message], None],
        flush: Callable[[], None],
    ) -> None:
        """`starts` and `ends` are offsets by partition; `ends` of None never come."""
        self._consumer = new_consumer(CONSUME, properties)
        self._topic, self._starts, self._ends = topic, starts, ends
        self._write, self._flush = write, flush
        self._next_offsets: dict[int, int] = {}
        """Next offset of each assigned partition."""
        self._has_group = self._is_closing = False
        self._uncommitted: dict[int, int] = {}

    def assign(self) -> None:
        """Consume the partitions of `starts` outside of any group."""
        self._next_offsets = {**self._starts}
        self._consumer.assign([TopicPartition(self._topic, *start) for start in self._starts.items()])

    def subscribe(self) -> None:
        """Join the group of the properties, and begin at its committed offsets."""
        self._has_group = True
        callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
        self._consumer.subscribe([self._topic], **{name: wrap_callback(call) for name, call in callbacks.items()})

    def run(self, max_records: int | None) -> None:
        """Print up to `max_records` records, until the ends or Ctrl-C. Raises KafkaException."""
        printed = since_commit = 0
        with DeferredInterrupt() as interrupt:
            while not (interrupt.is_set or self._is_at_end() or printed == max_records):
                message = self._consumer.poll(0 if since_commit else RECORD_WAIT_SECONDS)
                if message is None or since_commit == COMMIT_RECORDS:
                    self._commit()
                    since_commit = 0
                if message is not None and self._is_record(message):
                    self._write(message)
                    self._advance(message)
                    printed, since_commit = printed + 1, since_commit + 1
            self._commit(is_last=True)

    def close(self) -> None:
        """Leave the group without a further commit."""
        self._is_closing = True
        self._consumer.close()

    def _is_at_end(self) -> bool:
        """Return True if all assigned partitions are at their ends. A new member of a group first has none."""
        ends = self._ends
        if ends is None or not self._next_offsets:
            return False
        return all(offset >= ends.get(partition, 0) for partition, offset in self._next_offsets.items())

    def _is_record(self, message: Message) -> bool:
        """Return True for a record before the end of its partition. Raises KafkaException for an error."""
        error, (partition, offset) = message.error(), _place(message)
        if error is None and (self._ends is None or offset < self._ends.get(partition, 0)):
            return True
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            # The end may be a marker of a transaction, or have been compacted: no record has the offset before it.
            if partition in self._next_offsets:
                self._next_offsets[partition] = offset
        elif not (error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._has_group):
            raise KafkaException(error)  # a consumer outside of any group needs no coordinator
        return False

    def _advance(self, message: Message) -> None:
        partition, offset = _place(message)
        self._next_offsets[partition] = offset + 1
        if self._has_group:
            self._uncommitted[partition] = offset + 1

    def _commit(self, *, is_last: bool = False) -> None:
        """Flush the output, and commit the offsets of what was printed. Raises KafkaException.

        During a rebalance of the group, a later call commits, unless this is the last one.
        """
        self._flush()
        if not self._uncommitted:
            return
        offsets = [TopicPartition(self._topic, *offset) for offset in self._uncommitted.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as e:
            if is_last or e.args[0].code() != KafkaError.REBALANCE_IN_PROGRESS:
                raise
        else:
            self._uncommitted.clear()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        starts = []
        for committed in committed_offsets(consumer, partitions, REQUEST_SECONDS) if partitions else ():
            begin = self._starts.get(committed.partition, OFFSET_BEGINNING)
            offset = committed.offset if committed.offset >= 0 else begin
            starts.append(TopicPartition(self._topic, committed.partition, offset))
        self._next_offsets |= {one.partition: one.offset for one in starts}
        consumer.incremental_assign(starts)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not self._is_closing:
            self._commit()
        self._forget(partitions)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        """Drop the offsets of partitions that another member has from now on."""
        for offsets in (self._next_offsets, self._uncommitted):
            for one in partitions:
                offsets.pop(one.partition, None)


def _place(message: Message) -> tuple[int, int]:
    """Return partition and offset of a record, or of the end of a partition; an error without them has -1."""
    partition, offset = message.partition(), message.offset()
    return -1 if partition is None else partition, -1 if offset is None else offset


def _standard_output() -> BinaryIO:
    """Return standard output with a buffer, without which Python (`-u`) may write a part of a line only."""
    try:
        return io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False))
    except OSError:  # no file, as in tests
        return sys.stdout.buffer


def _has_lost_reader(output: BinaryIO) -> bool:
    """Return True for a pipe whose reader has closed it: without a further record, no write would fail."""
    try:
        descriptor = output.fileno()
    except OSError:  # no file, as in tests
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLERR is always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _offsets(admin: Any, topic: str, partitions: list[int], position: Any, isolation_level: str) -> dict[int, int]:
    """Return the offset of a position in each of these partitions, as `find_offsets`."""
    from kafka import TopicPartition as Key

    offsets = find_offsets(admin, [Key(topic, number) for number in partitions], position, isolation_level)
    return {key.partition: offset for key, offset in sorted(offsets.items())}

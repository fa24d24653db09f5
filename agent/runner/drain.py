"""Drain of the durable channels of an agent: the wait until every consumer group has reached the end offsets."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import cast

from flafka.agent.runner.delivery import Delivery
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.overflow import OverflowingChannel
from flafka.agent.topology import SinkSpec
from flafka.plugins import FlafkaError, Metrics
from flafka.plugins.kafka.topic import KafkaBackedChannel

DRAIN_STALL_SECONDS = 60.0
"""Time without progress of any group after which a drain fails."""
SPARK_STALL_SECONDS = 600.0
"""Time without progress after which a drain fails while a micro-batch runs, which reports nothing until its end."""
IDLE_CHECK_SECONDS = 1.0
"""Time without progress after which the records up to the end are checked: they may hold nothing to deliver."""


class DrainStalled(FlafkaError):
    """Error for a drain without progress. The text names the undelivered partitions, with their assignees."""


class Drain:
    """Progress of the consumer groups of an agent's sinks, members of other agents included.

    The end offsets are read at the first check, so producers elsewhere may go on. A sink may feed the channel of
    another sink. Once all groups have reached the ends, the ends are therefore read again, once for each durable
    channel. Channels that are not durable are empty, as no source runs.
    """

    def __init__(
        self,
        channels: Mapping[str, ChannelRunner],
        local: Sequence[Delivery],
        remote: Sequence[tuple[SinkSpec, Metrics]],
    ) -> None:
        """`local` are the sinks that threads of this agent run, `remote` the sinks on Spark with their metrics.

        `channels` are all channels of the agent by name. Only durable ones, and overflows, are drained.
        """
        drains: dict[tuple[str, str | None], GroupDrain | ChannelDrain] = {}
        for sink in [*(delivery.spec for delivery in local), *(spec for spec, _ in remote)]:
            channel, group = channels[sink.channel], sink.group
            if not channel.channel.durable:
                continue
            if not isinstance(channel.channel, KafkaBackedChannel):
                drains[channel.name, None] = ChannelDrain(channel)
            elif (key := (channel.name, group)) not in drains:
                local_sinks = [one for one in local if (one.spec.channel, one.spec.group) == key]
                spark_sinks = [one for one in remote if (one[0].channel, one[0].group) == key]
                drains[key] = GroupDrain(channel, group, local_sinks, spark_sinks)
        for channel in channels.values():
            if isinstance(channel, OverflowingChannel):
                drains[channel.overflow.name, None] = ChannelDrain(channel.overflow)
        self._drains = tuple(drains.values())
        self._rounds = len({drain.channel.name for drain in self._drains})
        self._last_progress: float | None = None
        """Time of `time.monotonic` of the latest progress seen, or of the first check."""

    def is_complete(self) -> bool:
        """Return True once all groups have reached the end offsets and all overflows are empty. Does not wait.

        Once True, it stays True. Raises DrainStalled after `DRAIN_STALL_SECONDS` without progress of any unfinished
        group, or after `SPARK_STALL_SECONDS` while Spark runs a micro-batch.
        """
        now = time.monotonic()
        while self._rounds:
            unfinished = [drain for drain in self._drains if not drain.is_complete()]
            if not unfinished:
                self._rounds -= 1
                for drain in self._drains:
                    drain.restart()
                continue
            first = now if self._last_progress is None else self._last_progress
            progress = self._last_progress = max(first, *(drain.last_progress for drain in unfinished))
            in_micro_batch = any(drain.has_micro_batch() for drain in unfinished)
            timeout = SPARK_STALL_SECONDS if in_micro_batch else DRAIN_STALL_SECONDS
            if now - progress > timeout:
                text = "; ".join(drain.describe() for drain in unfinished)
                raise DrainStalled(f"not drained, and nothing was delivered for {timeout:.0f} s: {text}")
            return False
        return True


class ChannelDrain:
    """Drain of a durable channel inside this agent, until the channel is empty."""

    def __init__(self, channel: ChannelRunner) -> None:
        self.channel = channel
        self.last_progress = 0.0
        """Time of `time.monotonic` at which the size was last seen to shrink."""
        self._least = math.inf

    def restart(self) -> None:
        """Start the observation of the size over, as another channel may have put events into this one."""
        self._least = math.inf

    def is_complete(self) -> bool:
        """Return True if the channel is open and holds no event, uncommitted ones included.

        A smaller size is progress.
        """
        if not self.channel.ready.is_set():
            return False
        size = self.channel.metrics.get("ChannelSize")
        if size < self._least:
            self._least, self.last_progress = size, time.monotonic()
        return not size

    def has_micro_batch(self) -> bool:
        """Return False: Spark reads no channel inside an agent."""
        return False

    def describe(self) -> str:
        """Return the text for an error: the reason why the channel is not open, or its size."""
        if not self.channel.ready.is_set():
            return f"{self.channel.path} is not open: {self.channel.metrics.last_error}"
        return f"{self.channel.path} still holds {self.channel.metrics.get('ChannelSize'):.0f} events"


class GroupDrain:
    """Drain of one consumer group on a channel in Kafka, until its committed offsets have reached the end offsets."""

    def __init__(
        self,
        channel: ChannelRunner,
        group: str | None,
        local: Sequence[Delivery],
        remote: Sequence[tuple[SinkSpec, Metrics]],
        until: Mapping[int, int] | None = None,
    ) -> None:
        """`local` and `remote` are the sinks of this group in this process, and on Spark with their metrics.

        `until` has the exclusive end offsets by partition; None reads them from the brokers at the first check. A
        `group` of None is the channel's default group.
        """
        self.channel, self._group = channel, group
        self._stream = cast(KafkaBackedChannel, channel.channel)
        self._local, self._remote, self._until = local, remote, until
        self.last_progress = 0.0
        """Time of `time.monotonic` at which an offset was last seen to grow."""
        self.restart()

    def restart(self) -> None:
        """Forget the progress, so that the next check reads the end offsets again."""
        self._topic = self._name = ""
        self._ends: dict[int, int] = {}
        """End offsets of the partitions that are not complete."""
        self._committed: dict[int, int | None] = {}
        self._highest: dict[int, int] = {}
        self._undelivered: dict[int, int | None] = {}
        """Committed offsets by partition for which records with events were found before the end."""
        self._error = ""
        self._has_ends = self._is_complete = False

    def is_complete(self) -> bool:
        """Return True once the group's committed offset has reached the end offset of every partition.

        Asks the brokers in each call until then. A FlafkaError, such as brokers that do not answer, is kept for
        `describe`, and False is returned.
        """
        if not self._is_complete:
            try:
                self._check()
                self._error = ""
            except FlafkaError as e:
                self._error = str(e)
        return self._is_complete

    def has_micro_batch(self) -> bool:
        """Return True if one of the group's sinks on Spark has no error, and a lag that is not 0 or not known.

        Such a sink runs a micro-batch or starts, and reports nothing before its end.
        """
        return any(not m.last_error and m.snapshot().get("Lag") != 0 for _, m in self._remote)

    def describe(self) -> str:
        """Return the text for an error: the latest error of a check, or the incomplete partitions.

        Each partition has its committed offset, its end offset and its assignee. Asks the brokers; never raises
        FlafkaError.
        """
        channel = self.channel
        if self._error:
            return f"{channel.path} cannot be checked: {self._error}"
        try:
            members = self._stream.kafka.members(self._group)
            assignees = {partition: name for name, partitions in members.items() for partition in partitions}
        except FlafkaError as e:
            assignees = dict.fromkeys(self._ends, f"an unknown member: {e}")
        return "; ".join(
            f"partition {partition} of {channel.path} is delivered up to {self._committed.get(partition) or 0} of "
            f"{end} in group {self._name}, and assigned to {self._assignee(partition, assignees)}"
            for partition, end in sorted(self._ends.items())
        )

    def _check(self) -> None:
        """Read the committed offsets once, and update the progress.

        Raises FlafkaError if the channel cannot be checked.
        """
        if not self.channel.ready.is_set():
            raise FlafkaError(self.channel.metrics.last_error or "it is not open yet")
        channel = self._stream
        committed = channel.kafka.committed(self._group)
        topic, name = next(((one.topic_partition.topic_id, one.group) for one in committed), ("", ""))
        if not self._has_ends or topic != self._topic:  # a recreated topic of the same name has other end offsets
            self.restart()
            ends = self._until if self._until is not None else channel.kafka.end_offsets()
            self._topic, self._name, self._ends, self._has_ends = topic, name, dict(ends), True
        self._committed = {one.partition: one.next_offset for one in committed}
        self._ends = {p: end for p, end in self._ends.items() if (self._committed.get(p) or 0) < end}
        now = time.monotonic()
        if self._has_progressed():
            self.last_progress = now
        if now - self.last_progress >= IDLE_CHECK_SECONDS:
            self._skip_empty_ranges(channel)
        if not self._ends and self._until is None and (errors := channel.kafka.blocking_errors(self._group)):
            self._has_ends = False  # a committed offset beyond the end of the log is an error, not completion
            raise errors[0]
        self._is_complete = not self._ends

    def _has_progressed(self) -> bool:
        """Return True if an incomplete partition has a larger committed or taken offset than at any earlier check."""
        progressed = False
        for partition in self._ends:
            offset = max(self._committed.get(partition) or 0, self._taken(partition))
            if offset > self._highest.get(partition, -1):
                self._highest[partition] = offset
                progressed = True
        return progressed

    def _taken(self, partition: int) -> int:
        """Return the largest offset up to which a sink in this process has taken records; 0 without such a sink.

        A file that grows for a long time before its commit is progress, too.
        """
        ranges = [delivery.ranges.get(partition) for delivery in self._local]
        return max((r.end or 0 for r in ranges if r is not None), default=0)

    def _skip_empty_ranges(self, channel: KafkaBackedChannel) -> None:
        """Drop partitions without an event between committed offset and end, as with end markers of transactions.

        No member commits an offset beyond such records. A partition is read again only after its committed offset
        changes.
        """
        for partition, end in list(self._ends.items()):
            offset = self._committed.get(partition)
            if partition in self._undelivered and self._undelivered[partition] == offset:
                continue
            if channel.kafka.is_empty_range(partition, offset, end):
                del self._ends[partition]
            else:
                self._undelivered[partition] = offset

    def _assignee(self, partition: int, assignees: Mapping[int, str]) -> str:
        """Return the sink of this process that has the partition, else the member in `assignees`.

        Without both, return "no member", or all of the group's sinks on Spark if there are any.
        """
        for delivery in self._local:
            if partition in delivery.ranges:
                return _with_error(delivery.path, delivery.metrics)
        if partition in assignees or not self._remote:
            return assignees.get(partition, "no member")
        return ", ".join(_with_error(f"{spec.path} on Spark", metrics) for spec, metrics in self._remote)


def _with_error(path: str, metrics: Metrics) -> str:
    """Return the path, followed by the latest error in parentheses if the component fails."""
    return f"{path} ({metrics.last_error})" if metrics.last_error else path

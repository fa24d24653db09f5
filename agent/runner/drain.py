"""When a drain is over: every group has come to the end of every partition of its channel."""

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

DRAIN_STUCK_SECONDS = 60.0
"""A drain is given up when no group has come further for so long."""
BATCH_SECONDS = 600.0
"""The same while Spark is at a micro-batch, which may hang, too: of it there is no news before it is over."""
REST_SECONDS = 1.0
"""Where a group has rested for so long before the end, it is asked whether there is anything to deliver up to it."""


class Stuck(FlafkaError):
    """A drain does not come to its end; the text names each partition that is left, and who holds it."""


class Drain:
    """Watches the groups of an agent's sinks, whoever their members are, until durable channels are delivered.

    Up to where a group has to come is asked at the first look, so that producers elsewhere may go on. One sink may
    feed the channel of another: once all groups have come to the ends they are asked again, as often as there are
    durable channels, which no chain is longer than. Channels that are not durable are empty, as no source runs.
    """

    def __init__(
        self,
        channels: Mapping[str, ChannelRunner],
        local: Sequence[Delivery],
        remote: Sequence[tuple[SinkSpec, Metrics]],
    ) -> None:
        """`local` and `remote` are the sinks that threads run and those that Spark runs."""
        goals: dict[tuple[str, str | None], Goal | Emptied] = {}
        for sink in [*(delivery.spec for delivery in local), *(spec for spec, _ in remote)]:
            channel, group = channels[sink.channel], sink.group
            if not channel.channel.durable:
                continue
            if not isinstance(channel.channel, KafkaBackedChannel):
                goals[channel.name, None] = Emptied(channel)
            elif (key := (channel.name, group)) not in goals:
                here = [one for one in local if (one.spec.channel, one.spec.group) == key]
                on_spark = [one for one in remote if (one[0].channel, one[0].group) == key]
                goals[key] = Goal(channel, group, here, on_spark)
        for channel in channels.values():
            if isinstance(channel, OverflowingChannel):
                goals[channel.overflow.name, None] = Emptied(channel.overflow)
        self._goals = tuple(goals.values())
        self._rounds = len({goal.channel.name for goal in self._goals})
        self._moved: float | None = None
        """When one of them was last seen to have come further, or the first look."""

    def over(self) -> bool:
        """Return True if all is delivered. Raises Stuck after `DRAIN_STUCK_SECONDS` or `BATCH_SECONDS` at rest."""
        now = time.monotonic()
        while self._rounds:
            left = [goal for goal in self._goals if not goal.reached()]
            if not left:
                self._rounds -= 1
                for goal in self._goals:
                    goal.again()
                continue
            moved = self._moved = max(now if self._moved is None else self._moved, *(goal.moved for goal in left))
            patience = BATCH_SECONDS if any(goal.at_work() for goal in left) else DRAIN_STUCK_SECONDS
            if now - moved > patience:
                text = "; ".join(goal.told() for goal in left)
                raise Stuck(f"not drained, and nothing was delivered for {patience:.0f} s: {text}")
            return False
        return True


class Emptied:
    """A durable channel of this agent alone, on its way to be empty."""

    def __init__(self, channel: ChannelRunner) -> None:
        self.channel = channel
        self.moved = 0.0
        """When it was last seen to hold less, of `time.monotonic`."""
        self._least = math.inf

    def again(self) -> None:
        """What another channel has put into it meanwhile counts, too."""
        self._least = math.inf

    def reached(self) -> bool:
        """Whether it is empty."""
        if not self.channel.ready.is_set():
            return False
        held = self.channel.metrics.get("ChannelSize")
        if held < self._least:
            self._least, self.moved = held, time.monotonic()
        return not held

    def at_work(self) -> bool:
        """Its sinks run in this agent, which sees what they deliver."""
        return False

    def told(self) -> str:
        """What it still holds, in words."""
        if not self.channel.ready.is_set():
            return f"{self.channel.path} is not open: {self.channel.metrics.last_error}"
        return f"{self.channel.path} still holds {self.channel.metrics.get('ChannelSize'):.0f} events"


class Goal:
    """One group on its way to the end of one channel in Kafka."""

    def __init__(
        self,
        channel: ChannelRunner,
        group: str | None,
        local: Sequence[Delivery],
        remote: Sequence[tuple[SinkSpec, Metrics]],
        until: Mapping[int, int] | None = None,
    ) -> None:
        """`until`: up to where it has to come, by partition; None: to the ends, as they are at the first look."""
        self.channel, self._group = channel, group
        self._stream = cast(KafkaBackedChannel, channel.channel)
        self._local, self._remote, self._until = local, remote, until
        self.moved = 0.0
        """When it was last seen to have come further, of `time.monotonic`."""
        self.again()

    def again(self) -> None:
        """Ask for the ends anew at the next look."""
        self._topic = self._name = ""
        self._ends: dict[int, int] = {}
        """Of partitions where it has not come to the end."""
        self._positions: dict[int, int | None] = {}
        self._furthest: dict[int, int] = {}
        self._waiting: dict[int, int | None] = {}
        """Where something is known to wait for delivery: the group's position at which it was found."""
        self._trouble = ""
        self._asked = self._over = False

    def reached(self) -> bool:
        """Whether the group has come to the end of every partition."""
        if not self._over:
            try:
                self._look()
                self._trouble = ""
            except FlafkaError as e:
                self._trouble = str(e)
        return self._over

    def at_work(self) -> bool:
        """Whether Spark is at a micro-batch or at its start: of neither there is news before it is over."""
        return any(not m.last_error and m.snapshot().get("Lag") != 0 for _, m in self._remote)

    def told(self) -> str:
        """Where it has not come to the end, in words."""
        channel = self.channel
        if self._trouble:
            return f"{channel.path} cannot be looked at: {self._trouble}"
        try:
            members = self._stream.kafka.members(self._group)
            holders = {partition: name for name, partitions in members.items() for partition in partitions}
        except FlafkaError as e:
            holders = dict.fromkeys(self._ends, f"somebody: {e}")
        return "; ".join(
            f"partition {partition} of {channel.path} is delivered up to {self._positions.get(partition) or 0} of "
            f"{end} in group {self._name}, and held by {self._holder(partition, holders)}"
            for partition, end in sorted(self._ends.items())
        )

    def _look(self) -> None:
        if not self.channel.ready.is_set():
            raise FlafkaError(self.channel.metrics.last_error or "it is not open yet")
        channel = self._stream
        committed = channel.kafka.committed(self._group)
        topic, name = next(((one.topic_partition.topic_id, one.group) for one in committed), ("", ""))
        if not self._asked or topic != self._topic:  # one of the same name that was made anew has ends of its own
            self.again()
            ends = self._until if self._until is not None else channel.kafka.ends()
            self._topic, self._name, self._ends, self._asked = topic, name, dict(ends), True
        self._positions = {one.partition: one.next_offset for one in committed}
        self._ends = {p: end for p, end in self._ends.items() if (self._positions.get(p) or 0) < end}
        now = time.monotonic()
        if self._came_further():
            self.moved = now
        if now - self.moved >= REST_SECONDS:
            self._pass_over_nothing(channel)
        if not self._ends and self._until is None and (refusals := channel.kafka.refusals(self._group)):
            self._asked = False  # an offset behind the end of the log is not the end of the work
            raise refusals[0]
        self._over = not self._ends

    def _came_further(self) -> bool:
        further = False
        for partition in self._ends:
            at = max(self._positions.get(partition) or 0, self._taken(partition))
            if at > self._furthest.get(partition, -1):
                self._furthest[partition] = at
                further = True
        return further

    def _taken(self, partition: int) -> int:
        """Up to where our sinks have taken it: a file that is written for long is progress, too."""
        ranges = [delivery.ranges.get(partition) for delivery in self._local]
        return max((r.end or 0 for r in ranges if r is not None), default=0)

    def _pass_over_nothing(self, channel: KafkaBackedChannel) -> None:
        """Drop partitions with nothing to deliver: nobody commits a position behind the end of a transaction."""
        for partition, end in list(self._ends.items()):
            position = self._positions.get(partition)
            if partition in self._waiting and self._waiting[partition] == position:
                continue
            if channel.kafka.is_vacant(partition, position, end):
                del self._ends[partition]
            else:
                self._waiting[partition] = position

    def _holder(self, partition: int, holders: Mapping[int, str]) -> str:
        for delivery in self._local:
            if partition in delivery.ranges:
                return _with_error(delivery.path, delivery.metrics)
        if partition in holders or not self._remote:
            return holders.get(partition, "nobody")
        return ", ".join(_with_error(f"{spec.path} on Spark", metrics) for spec, metrics in self._remote)


def _with_error(path: str, metrics: Metrics) -> str:
    return f"{path} ({metrics.last_error})" if metrics.last_error else path

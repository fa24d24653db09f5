"""The move of a sink's commit log to the place that the configuration names now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flafka.plugins import Assignment, CommittingSink, Retry
from flafka.plugins.kafka.topic import KafkaBackedChannel


class CommitLogMove:
    """The move of one sink's commit log, before the sink begins to read.

    While an agent reads, its commit log stays where it is. So two agents with different paths in one group do not
    take the log from each other in turn: the one that comes second is refused.
    """

    def __init__(self) -> None:
        self._over = False

    def make(
        self, sink: CommittingSink[Any], channel: KafkaBackedChannel[Any], group: str | None, *, joins: bool
    ) -> list[Assignment]:
        """Move the commit log of each partition that is in another place. Return where each is to be resumed.

        The sink is open, and does not read in the group yet. If it `joins` the group, its reader commits the new
        place with the group's offset: brokers take no offset from outside once there are members.
        Raises Retry if the log may not be moved. That is so while others read the topic in the group, which commit
        below the path that they were started with. On Spark, which has no members, it is so later than at the start.
        """
        if not sink.commit_log:
            return []
        offsets = channel.kafka.committed(group)
        readers = sorted(member for member, partitions in channel.kafka.members(group).items() if partitions)
        if readers or (self._over and not joins):
            for committed in offsets:
                if sink.commit_log_moved(committed) and not sink.has_commit_log(committed):
                    there = committed.generation.commit_log
                    raise Retry(refusal(committed.group, there, sink.commit_log, readers))
            self._over = True
            return []
        moved = [start for committed in offsets if (start := sink.move_commit_log(committed)) is not None]
        if moved and not joins:
            channel.kafka.commit_offsets([one.at(one.next_offset or 0, one.last_record) for one in moved])
        self._over = True
        return moved


def refusal(group: str, there: str, here: str, readers: Sequence[str]) -> str:
    """Return why the commit log of a group stays where it is, with the way out."""
    who = f" is read by {', '.join(readers)}, and" if readers else ""
    return (
        f"group {group}{who} has its commit log in {there}, not in {here}: stop all agents of the group, and the "
        f"next one that starts moves it (or: agent group move {group}), or have all of them write below the same "
        "path. An agent that was stopped counts until its session times out"
    )

"""Move of a sink's commit log to the directory that the configuration names now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flafka.plugins import Assignment, CommittingSink, Retry
from flafka.plugins.kafka.topic import KafkaBackedChannel


class CommitLogMove:
    """Move of one sink's commit log, before the sink begins to read.

    The commit log stays where it is while an agent reads. Otherwise two agents of one group with different paths
    would move the log back and forth; instead the second one is refused.
    """

    def __init__(self) -> None:
        self._is_done = False

    def make(
        self, sink: CommittingSink[Any], channel: KafkaBackedChannel[Any], group: str | None, *, joins: bool
    ) -> list[Assignment]:
        """Move the sink's commit logs into the directory that is configured now, and return the moved assignments.

        Empty if the sink has no commit log, or if nothing has to be moved. The sink is open and does not read in the
        group yet. With `joins` False, the new location is committed here. With `joins` True the sink's reader commits
        it later: brokers accept only offsets of members once there are any.

        Raises Retry if a log has to be moved and may not be: a member of the group reads already, or a sink that does
        not join has called this before.
        """
        if not sink.commit_log:
            return []
        offsets = channel.kafka.committed(group)
        readers = sorted(member for member, partitions in channel.kafka.members(group).items() if partitions)
        if readers or (self._is_done and not joins):
            for committed in offsets:
                if sink.commit_log_moved(committed) and not sink.has_commit_log(committed):
                    current = committed.generation.commit_log
                    raise Retry(refusal(committed.group, current, sink.commit_log, readers))
            self._is_done = True
            return []
        moved = [start for committed in offsets if (start := sink.move_commit_log(committed)) is not None]
        if moved and not joins:
            channel.kafka.commit_offsets(
                [start.with_offset(start.next_offset or 0, start.last_record) for start in moved]
            )
        self._is_done = True
        return moved


def refusal(group: str, current: str, configured: str, readers: Sequence[str]) -> str:
    """Return the text for a commit log in `current` that may not be moved to `configured`, with the `readers`."""
    who = f" is read by {', '.join(readers)}, and" if readers else ""
    return (
        f"group {group}{who} has its commit log in {current}, not in {configured}: stop all agents of the group, and "
        f"the next one that starts moves it (or: agent group move {group}), or have all of them write below the same "
        "path. An agent that was stopped counts until its session times out"
    )

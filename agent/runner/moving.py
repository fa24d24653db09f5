"""The move of a sink's commit log to the place that the configuration names now."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from plugins import CommittingSink, KafkaBackedChannel, Retry


class CommitLogMove:
    """The move of one sink's commit log, at the start of an agent or of a Spark driver and at no other time.

    An agent that runs keeps its commit log where it is. So two agents with different paths in one group do not take
    the log from each other in turn: the one that comes second is refused.
    """

    def __init__(self) -> None:
        self._over = False

    def make(self, sink: CommittingSink[Any], channel: KafkaBackedChannel[Any], group: str | None) -> list[str]:
        """Move the commit log of each partition that is in another place, and return these partitions.

        The sink is open, and does not read in the group yet. Raises Retry if the log is elsewhere and may not be
        moved: while the group has members, which commit below the path that they were started with, or later than at
        the start.
        """
        if not sink.record:
            return []
        positions = channel.positions(group)
        members = channel.members(group)
        if self._over or members:
            for claim in positions:
                if sink.is_elsewhere(claim):
                    raise Retry(refusal(claim.group, claim.record, sink.record, members))
            return []
        moved = []
        for claim, committed in positions.items():
            found = sink.move_commit_log(claim, committed)
            if found is not None:
                channel.record({found.claim: found.position or 0}, {claim.partition: found.last})
                moved.append(f"{claim.topic}-{claim.partition}")
        self._over = True
        return moved


def refusal(group: str, there: str, here: str, members: Collection[str]) -> str:
    """Return why the commit log of a group stays where it is, with the way out."""
    who = f" is read by {', '.join(sorted(members))}, and" if members else ""
    return (
        f"group {group}{who} has its commit log in {there}, not in {here}: stop all agents of the group, and the "
        f"next one that starts moves it (or: agent group move {group}), or have all of them write below the same "
        "path. An agent that was stopped counts until its session times out"
    )

"""What happens to agents whose sinks run on Spark, besides what happens to all."""

from __future__ import annotations

from collections import Counter

from plugins.shared.offsets import OffsetMetadata
from tests.simulator.driver import Popen, of_process
from tests.simulator.stories import GROUP, SINKS, TOPIC, Failure, Plan, Run

KINDS = {"kill-driver": 2, "pause-driver": 3, "kill-executor": 1, "pause-executor": 2, "context": 1, "switch": 2}
"""What, by how often."""
UNDONE = "if agent group reset moved the group in that time, this was undone"
"""Said by a driver that slept between a look at the group and a commit, which nothing but its own clock shows."""


class SparkRun(Run):
    """One plan carried out by agents that deliver on Spark, or on threads again after a switch."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        super().__init__(plan, verbose=verbose)
        self.local: set[str] = set()
        """Hosts that deliver on threads."""
        self.epochs: dict[str, dict[int, int]] = {}
        """After the latest reset, by topic id and partition."""

    def text(self, host: str) -> str:
        """An agent's configuration."""
        return SINKS[self.sink] if host in self.local else super().text(host)

    def _driver(self, host: str) -> Popen | None:
        agent = self.agents.get(host)
        spark = agent.agent.spark if agent is not None and agent.agent is not None else None
        driver: Popen | None = spark.process if spark is not None else None
        return driver if driver in of_process().values() and driver.poll() is None else None  # type: ignore[union-attr]

    def do_kill_driver(self, host: str) -> None:
        """The agent begins another one."""
        if (driver := self._driver(host)) is not None:
            driver.kill()

    def do_pause_driver(self, host: str, seconds: float) -> None:
        """Its executors go on."""
        if (driver := self._driver(host)) is not None:
            driver.process.pause(seconds)

    def do_kill_executor(self, host: str) -> None:
        """The one whose turn is next."""
        if (driver := self._driver(host)) is not None and driver.session is not None:
            driver.session.executor().kill()

    def do_pause_executor(self, host: str, seconds: float) -> None:
        """Its driver gives it up, and it goes on later."""
        if (driver := self._driver(host)) is not None and driver.session is not None:
            driver.session.executor().pause(seconds)

    def do_context(self, host: str) -> None:
        """The cluster's manager ends the application."""
        if (driver := self._driver(host)) is not None and driver.session is not None:
            driver.session.stop()

    def do_switch(self, host: str) -> None:
        """The agent is killed, and begun anew with the other runner; its driver may not have noticed yet."""
        self.local ^= {host}
        self.do_kill(host)
        self.do_start(host)

    def do_reset(self, to: str) -> None:
        """On Spark a group has no members: it can be reset beside a running agent."""
        super().do_reset(to)
        if self.brokers.count(TOPIC):
            self.epochs = {self._topic_id(): self._epochs()}

    def do_foreign(self, partition: int, ahead: int) -> None:
        """Another program's commit says nothing of a reset."""
        super().do_foreign(partition, ahead)
        self.epochs.clear()

    def do_delete_group(self, host: str) -> None:
        """Nobody knows of a reset any more."""
        super().do_delete_group(host)
        self.epochs.clear()

    def _epochs(self) -> dict[int, int]:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        return {p: OffsetMetadata.parse(at.metadata).epoch for p, at in committed.items() if at is not None}

    def _check(self) -> None:
        super()._check()
        now = self._epochs()
        for partition, epoch in self.epochs.get(self._topic_id(), {}).items():
            if now.get(partition, 0) < epoch and not any(UNDONE in line for line in self.world.story):
                raise Failure(f"partition {partition} was reset in epoch {epoch}, and is in {now.get(partition)}")

    def _outcome(self) -> Counter[bytes]:
        found = super()._outcome()
        # At least once, told apart by the events' ids: none of the story's events are the same.
        return Counter(dict.fromkeys(found, 1)) if self.sink == "kafka" else found

"""Steps that concern sinks on Spark."""

from __future__ import annotations

from collections import Counter

from tests.simulator.driver import Popen, of_process
from tests.simulator.kafka_steps import LARGE
from tests.simulator.plans import SINKS, Plan
from tests.simulator.stories import Run

KINDS = {"kill-driver": 2, "pause-driver": 3, "kill-executor": 1, "pause-executor": 2, "context": 1, "switch": 2}
"""Weights of the kinds of steps."""


class SparkRun(Run):
    """One plan carried out by agents that deliver on Spark, or on threads again after a switch."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        super().__init__(plan, verbose=verbose)
        self.local: set[str] = set()
        """Hosts that deliver on threads."""

    def text(self, host: str) -> str:
        """An agent's configuration."""
        return SINKS[self.sink] if host in self.local else super().text(host)

    def _driver(self, host: str) -> Popen | None:
        agent = self.agents.get(host)
        spark = agent.agent.spark if agent is not None and agent.agent is not None else None
        driver: Popen | None = spark.process if spark is not None else None
        return driver if driver in of_process().values() and driver.poll() is None else None  # type: ignore[union-attr]

    def _delivering(self, host: str) -> str:
        """The process that commits for that host's agent."""
        driver = self._driver(host)
        return driver.process.name if driver is not None else host

    def do_kill_driver(self, host: str) -> None:
        """The agent begins another one."""
        if (driver := self._driver(host)) is not None:
            driver.kill()

    def do_pause_driver(self, host: str, seconds: float) -> None:
        """Pause the driver; its executors continue."""
        if (driver := self._driver(host)) is not None:
            driver.process.pause(seconds)

    def do_kill_executor(self, host: str) -> None:
        """The one whose turn is next."""
        if (driver := self._driver(host)) is not None and driver.session is not None:
            driver.session.executor().kill()

    def do_pause_executor(self, host: str, seconds: float) -> None:
        """Pause the executor until its driver has given it up; it continues later."""
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

    def _outcome(self) -> Counter[bytes]:
        counts = super()._outcome()
        # At least once, so duplicates are not counted: the bodies of a story's events differ.
        if self.sink != "kafka":
            return counts
        # One task may deliver a large event, and another that repeats it may find that a limit forbids it.
        return Counter({body: 1 for body in counts if not (body.endswith(LARGE) and self.dead_letters[body])})

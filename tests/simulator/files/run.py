"""A plan for the source `taildir` carried out: its agent, and what happens to that and to its journal."""

from __future__ import annotations

import logging
import re

from tests.simulator.agent_steps import carry_out
from tests.simulator.files.disk import Disk, room
from tests.simulator.files.inotify import patched
from tests.simulator.files.outcome import Outcome
from tests.simulator.files.writers import TOPIC
from tests.simulator.kafka import Brokers
from tests.simulator.outcomes import Failure
from tests.simulator.program import AgentProcess, configured, logged, seeded
from tests.simulator.world import simulation

CONFIGURATION = """
a.sources = s
a.channels = c
a.sources.s.type = taildir
a.sources.s.filegroups = g
a.sources.s.filegroups.g = {logs}/{pattern}
a.sources.s.positionFile = {home}/positions.json
a.sources.s.batchSize = 5
a.sources.s.idleTimeout = {idle}
a.sources.s.writePosInterval = 3000
a.sources.s.channels = c
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = sim:9092
a.channels.c.kafka.topic = t
a.channels.c.kafka.consumer.group.id = g
a.channels.c.partitions = 1
a.channels.c.replication = 1
"""


class FileRun(Outcome):
    """One plan carried out."""

    def go(self) -> None:
        """Raises Failure, or what else went wrong."""
        seeded(self.plan.seed)
        level = logging.INFO if self.world.verbose else logging.WARNING
        with room() as home, patched(), simulation(self.world), logged(level):
            self.home = home
            self.directory = home / "logs"
            self.directory.mkdir()
            self.log = self.directory / "app.log"
            self.brokers = self.world.models["kafka"] = Brokers(self.world)
            self.disk = self.world.models["disk"] = Disk(self.world, self.directory)
            pattern = "app[.]log" if self.plan.seed % 2 else "app[.]log([.][0-9]+)?"
            self.matching = re.compile(pattern)
            self.disk.closed_soon = not self.plan.seed % 3
            idle = 5_000 if self.disk.closed_soon else 3_600_000
            self.spec = configured(CONFIGURATION.format(logs=self.directory, home=home, pattern=pattern, idle=idle))
            self.world.run(self._main)

    def _main(self) -> None:
        carry_out(self)
        self._end()
        self._check()

    # --- the agent

    def do_start(self, host: str = "h1") -> None:
        if not self.running:
            agent = self.agent = AgentProcess(self.world, host, self.spec, feeding=False)
            self.agents.append(agent)
            agent.process.ended.append(lambda: self._ended(agent))

    def do_kill(self, host: str) -> None:
        if self.agent is not None:
            self.agent.process.kill()

    def do_stop(self, host: str) -> None:
        if self.running and self.agent is not None:
            self.agent.stop()
            while self.running:
                self.world.sleep(0.5)
            self._ended(self.agent)

    def _ended(self, agent: AgentProcess) -> None:
        """Excuse the lines of files that only the ended agent knew of."""
        seen = set(self._arrived())
        for log in self.all:
            if not log.out:
                log.known = log.known or bool(seen & set(log.lines))
            elif log.keeper is agent and not seen >= set(log.lines):
                log.excused, log.known = True, bool(seen & set(log.lines))

    def do_pause(self, host: str, seconds: float) -> None:
        if self.running and self.agent is not None:
            self.agent.process.pause(seconds)

    def do_kill_opener(self) -> None:
        for instance in [*self.disk.instances]:
            instance.kill()

    def do_damage(self, how: str, where: float) -> None:
        """To the journal, while nobody runs; a backup's or a disk's doing."""
        journal = self.home / "positions.json.journal"
        if self.running or self.emptied or not journal.exists() or not journal.stat().st_size:
            return
        self.harmed += 1
        lines = journal.read_bytes().splitlines(keepends=True)
        if len(lines) < 2:
            return  # without its first line it is refused with a sentence
        index = min(1 + int(where * (len(lines) - 1)), len(lines) - 1)
        line = bytearray(lines[index])
        if how == "flip":
            digit = line.find(b'"pos":') + 6
            if digit >= len(line):
                return  # an earlier damage has torn it
            line[digit] ^= 1
            lines[index] = bytes(line)
        elif how == "torn":
            lines[-1] = lines[-1][: int(where * len(lines[-1]))]
        elif how == "short":
            del lines[index:]
        else:
            lines.clear()
        journal.write_bytes(b"".join(lines))

    # --- the end

    def _end(self) -> None:
        self.world.log("--- nothing goes wrong any more")
        self.world.quiet = True
        self.world.sleep(90)
        self.do_start()
        before, since = -1, self.world.now
        while self.world.now < since + 20:
            self.world.sleep(5)
            if (now := len(self.brokers.records(TOPIC, 0)) if self.brokers.count(TOPIC) else 0) != before:
                before, since = now, self.world.now
        assert self.agent is not None
        self.agent.stop()
        deadline = self.world.now + 300
        while self.agent.running:
            if self.world.now > deadline:
                raise Failure("the agent does not stop")
            self.world.sleep(2)

"""Stories: plans carried out, and what must be true afterwards."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.simulator.agent_steps import AgentSteps, carry_out
from tests.simulator.faults import Fault, Kind
from tests.simulator.kafka import Brokers
from tests.simulator.kafka.topics import TOPIC_DEFAULTS
from tests.simulator.kafka_steps import LARGE
from tests.simulator.outcomes import Failure, Feed
from tests.simulator.plans import GROUP, OUT, SIMPLE, TOPIC, Plan
from tests.simulator.processes import Signal
from tests.simulator.program import AgentProcess, command, in_process, installed, logged, seeded
from tests.simulator.steps import Step
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import simulation

COLLECTED = 20
"""After so many runs the garbage is collected."""
ADVICE = re.compile(
    r"(would be skipped\. )?To (?:accept the loss|continue with these records): "
    r"agent (group reset \S+ --topic \S+:(\d+) --to (\S+)(?: --new-ids)?)"
)
REMOVED = re.compile(r"has committed offset \d+ of \S+-(\d+), .* records (\d+) to (\d+), .* were removed")
UNKNOWN = re.compile(r"has no committed offset in \S+-(\d+), and begins with record (\d+), the first that is left")
UNDONE = "an `agent group reset` made during this time may have been overwritten"
"""Said by a driver that slept between a look at the group and a commit, which nothing but its own clock shows."""
PARTLY_VANISHED = re.compile(r"\S+-(\d+): records (\d+) to (\d+) are delivered again: .* of this commit exist")
"""Said where somebody has removed some files of a commit, and others had their final names already."""
VANISHED = re.compile(r"\S+-(\d+): records (\d+) to (\d+) are delivered again: ")
"""Logged where somebody has removed uploaded files of a commit before they were renamed."""
SAME_PATH = "or have all of them write below the same path"
"""Advice of an agent whose `hdfs.path` is not that of its group's commit log."""
ORPHAN = "kafka.commit comes after the end of driver-"
"""There is nobody left to say so."""
LAST_DRAIN_SECONDS = 300
SETTLE_SECONDS = 30
"""Time in which paused processes and late requests have their effects."""


class Run(AgentSteps):
    """One plan carried out, and looked at."""

    def go(self) -> None:
        """Raises Failure, or what else went wrong."""
        seeded(self.plan.seed)
        with simulation(self.world), logged(logging.INFO if self.world.verbose else logging.WARNING):
            self.brokers = self.world.models["kafka"] = Brokers(self.world)
            self.hdfs = Hdfs(self.world)
            if self.sink == "solr":
                from tests.simulator.stores import Solr

                self.solr = Solr(self.world, "events")
            elif self.sink == "hbase":
                from tests.simulator.stores import HBase

                self.hbase = HBase(self.world)
                self.hbase.create("events", "f")
            self.feed = self.world.models["feed"] = Feed(changed=Signal(self.world))
            self.world.run(self._main)

    def _main(self) -> None:
        self.brokers.create_topic(OUT, 1)
        self.renames: list[tuple[float, str]] = []
        tree, rename = self.hdfs.tree, self.hdfs.tree.rename

        def renamed(source: str, target: str) -> bool:
            done = rename(source, target)
            if done:
                self.renames.append((self.world.now, target))
            return done

        tree.rename = renamed
        carry_out(self)
        self._end()
        self._check()

    # --- the end

    def _end(self) -> None:
        """Wait without faults until all events are delivered."""
        self.world.log("--- nothing goes wrong any more")
        self.world.quiet = True
        for topic in (TOPIC, OUT):
            self._limited(topic, int(TOPIC_DEFAULTS["max.message.bytes"]))
        for root in {*self.roots.values()}:
            if f"/{root}/x" in self.hdfs.tree.files:
                self.hdfs.remove(f"/{root}/x")
        self.world.sleep(max(self._longest_pause() + SETTLE_SECONDS, self.brokers.away_until - self.world.now))
        deadline = self.world.now + 900
        while True:
            if self._follow_advice():
                deadline = self.world.now + 900
            if not self.watching:
                for host in {"h1": None} | self.agents:
                    self.do_start(host)
                if self._delivered() and not self.replaying:
                    self.world.sleep(10)  # what was on its way in comes into the channel
                    if self._delivered() and not self._advised():
                        break
            if self.world.now > deadline:
                if not self._paths_unified():
                    raise Failure(f"not all is delivered after 15 minutes: {self._position()}")
                deadline = self.world.now + 900
            self.world.sleep(5)
        if any(step.name == "drain" for step in self.plan.steps):
            self._last_drain()
        self._stopped(deadline + 300)
        self._replay_late()

    def _stopped(self, deadline: float) -> None:
        for agent in self.agents.values():
            agent.stop()
        while any(agent.running for agent in self.agents.values()):
            if self.world.now > deadline:
                raise Failure("an agent does not stop")
            self.world.sleep(2)

    def _longest_pause(self) -> float:
        """Return the seconds until all paused processes run and all late requests have arrived."""
        return max(0.0, self.world.delayed_until - self.world.now)

    def _paths_unified(self) -> bool:
        """Follow the advice of agents that refuse each other's `hdfs.path`, and return True if there was any.

        Both refuse all partitions if each has moved the commit logs of some of them at the same time.
        """
        refused = any(SAME_PATH in line for line in self.world.story)
        if not refused or len({self.roots[host] for host in self.agents}) < 2:
            return False
        self._ended(*self.agents)
        self.world.sleep(60)
        self.roots = dict.fromkeys(self.roots, self.roots["h1"])
        self.moved += 1
        return True

    def _advised(self) -> set[tuple[str, ...]]:
        """Return the advice of the log that the operator has not read yet."""
        return {advice.groups("") for line in self.world.story[self.advised :] if (advice := ADVICE.search(line))}

    def _follow_advice(self) -> bool:
        """Follow the advice of the log, and return True if there was any."""
        advised = self._advised()
        self.advised = len(self.world.story)
        if not advised:
            return False
        self._ended(*self.agents)
        self.world.sleep(60)
        self.advised = len(self.world.story)
        self._read_log()
        for skips, arguments, partition, to in sorted(advised):
            low, high = self._watermarks(int(partition))
            if not self._carried_out(arguments):
                continue
            self.accepted[int(partition)] = low
            if skips:
                self._mark_removed(self.skipped, int(partition), low, int(to))
            self.resets.append((self._topic_id(), {int(partition): low if to == "earliest" else min(int(to), high)}))
        return True

    def _carried_out(self, arguments: str) -> bool:
        """Run the operator's command, corrected as its error says, and return True if it succeeds."""
        self.world.log(f"the operator: agent {arguments}")
        words = (*arguments.split(), "--yes", "--bootstrap-server", "sim:9092")
        try:
            in_process(self.world, "operator", lambda: command(*words))
        except RuntimeError as e:
            self.world.log(str(e))
            if "--new-ids: leave that out" in str(e):
                return self._carried_out(arguments.removesuffix(" --new-ids"))
            return False  # more was lost since: the agent says what is to be done now
        return True

    def _last_drain(self) -> None:
        """With all servers well, a drain ends, and well: whoever was a member of the group."""
        self._ended("h1")
        for other in {*self.agents} - {"h1"}:  # a live one may hold the group below another path
            self.do_kill(other)
        self._produce(3)
        while (agent := self._drained_to_the_end()).code:
            if not self._follow_advice():  # of what retention took, an operator has to decide
                raise Failure(f"a drain ended with {agent.code}: {agent.complaint}")

    def _drained_to_the_end(self) -> AgentProcess:
        agent, deadline = self._drain("h1"), self.world.now + LAST_DRAIN_SECONDS
        while agent.running:
            if self.world.now > deadline:
                raise Failure(f"a drain does not end: {self._position()}")
            self.world.sleep(2)
        return agent

    def _delivered(self) -> bool:
        if self.feed.waiting or any(
            +self.feed.sending[agent.process] for agent in self.agents.values() if agent.running
        ):
            return False
        if self._hidden() or (self.removed and not self._read()):
            return False
        for partition in range(self.brokers.count(TOPIC)):
            records = self.brokers.records(TOPIC, partition)
            committed = self.brokers.committed(GROUP, TOPIC, partition)
            topic_id = OffsetMetadata.parse(committed.metadata).topic_id if committed is not None else ""
            if records and (
                committed is None or committed.offset <= records[-1].offset or topic_id not in ("", self._topic_id())
            ):
                break
        else:
            return True
        # The group may lag behind a sink's own record, or behind what was delivered, where a commit comes late.
        self._read_log()
        topic, counts = self._topic_id(), self._outcome() + self._dead_letters()
        return all(
            counts[body]
            for body, locations in self.logs[topic].items()
            if body not in self.foreign and not all(self._excused(topic, body, location) for location in locations)
        )

    def _read(self) -> bool:
        """Return True if each partition has an assignee, which reports removed records."""
        if self.plan.sink != self.sink:  # on Spark a query has them all
            return True
        group = self.brokers.groups.get(GROUP)
        assigned = {tp for member in group.members.values() for tp in member.client.owned_now()} if group else set()
        return assigned >= {(TOPIC, partition) for partition in range(self.brokers.count(TOPIC))}

    # --- what must be true

    def _check(self) -> None:
        self._read_log()
        stored = Counter(self.feed.stored)
        logged_: Counter[bytes] = Counter()
        for log in self.logs.values():
            logged_.update({body: len(locations) for body, locations in log.items()})
        dead_letters = self.dead_letters = self._dead_letters()
        delivered = self.delivered = self._outcome()
        if lost := [body for body in stored if not logged_[body] + self.refused[body]]:
            # What was in a topic when it was deleted was seen then.
            raise Failure(f"acknowledged, and never in the channel: {lost[:3]}")
        now = self._topic_id()
        for topic, log in self.logs.items():
            for body, locations in log.items():
                count = delivered[body] + dead_letters[body]
                most = sum(1 + self._repetitions(topic, *location) for location in locations)
                other_topics = sum(len(other.get(body, ())) for t, other in self.logs.items() if t != topic)
                replays = [
                    (t, *location) for t, replayed in self.replays.items() for location in replayed.get(body, ())
                ]
                repetitions = sum(self._repetitions(*record) for record in replays)
                # Dead letters of commits that did not come about, before a changed path, limit or configuration.
                if body.endswith(LARGE) or (self.was_mended and not self.bodies[body]):
                    repetitions += min(dead_letters[body], 1 + self.moved)
                elif not self.bodies[body]:
                    repetitions += self.moved
                if not self.bodies[body]:
                    repetitions += self._documented_repetitions(body, locations)
                if count > most + other_topics + repetitions + self.redelivered[body]:
                    what = "dead letters" if dead_letters[body] else "deliveries"
                    raise Failure(f"{body!r} came {count} times ({what}), not {most}")
                if topic != now or body in self.foreign | self.deleted or count >= len(locations):
                    continue
                # For a replayed dead letter, its new record.
                records = [*locations, *self.replays[topic].get(body, ())]
                removed = [location for location in records if (topic, *location) in self.removed]
                lost = [p for p in records if (topic, *p) in self.skipped or self._is_unclean(topic, body, p)]
                if count < len(locations) - len({*removed, *lost}):
                    raise Failure(f"{body!r} is lost: in the channel at {list(locations)}, delivered {count} times")
                cut = {(t, p) for t, p, _, _ in self.unclean}  # positions mean other records there
                if unreported := [
                    location
                    for location in removed
                    if (topic, location[0]) not in cut and not self._is_reported(*location)
                ]:
                    raise Failure(f"{body!r} was removed before it was delivered, and {unreported} are not reported")
        if refused := [b for b in dead_letters | self.refused if self.bodies[b] and not b.endswith(LARGE)]:
            raise Failure(f"not delivered, and no limit forbids it: {refused[:3]}")
        if strange := [body for body in delivered if not self.bodies.get(body, False) | self.was_mended]:
            raise Failure(f"delivered, and never put or not to be delivered: {strange[:3]}")
        self._check_replays()
        self._check_epochs()
        now = self._epochs()
        for partition, epoch in self.epochs.get(self._topic_id(), {}).items():
            if now.get(partition, 0) < epoch and not self._may_be_overwritten():
                raise Failure(f"partition {partition} was reset in epoch {epoch}, and is in {now.get(partition)}")

        late = any(f.what == "kafka.commit" and f.kind in (Kind.LATE, Kind.DOUBLED) for f in self.world.faults)
        if not late and (back := [commit for group in self.brokers.groups.values() for commit in group.set_back]):
            raise Failure(f"a member has set its group back: {back[0]}")

    def _may_be_overwritten(self) -> bool:
        """Return True if a late commit may have overwritten a reset.

        The log reports that, unless a driver on Spark slept before its commit and was killed right after it.
        """
        if any(UNDONE in line or ORPHAN in line for line in self.world.story):
            return True
        slept = {f.process for f in self.world.faults if f.kind in (Kind.PAUSED, Kind.PAUSED_AFTER)}
        silent = {f.process for f in self.world.faults if (f.what, f.kind) == ("kafka.commit", Kind.KILLED_AFTER)}
        return any(name.startswith("driver-") for name in slept & silent)

    def _is_reported(self, partition: int, offset: int) -> bool:
        """Return True if the log names that record among those that retention removed."""
        if offset < self.accepted.get(partition, 0):
            return True
        for line in self.world.story:
            if (match := REMOVED.search(line)) and int(match[1]) == partition:
                if int(match[2]) <= offset <= int(match[3]):
                    return True
            elif (match := UNKNOWN.search(line)) and int(match[1]) == partition and offset < int(match[2]):
                return True
        return False

    def _repetitions(self, topic: str, partition: int, offset: int) -> int:
        """Return the number of repetitions that resets and documented causes allow for a record."""
        allowed = sum(1 for t, where in self.resets if t == topic and where.get(partition, offset + 1) <= offset)
        if self.sink in SIMPLE and self.lost_metadata and (self.inherited or self.resets):
            allowed += 1  # how the group's events are named, and its epoch, were lost with its offsets
        if self.lost_metadata and self.was_reset_before:
            allowed += 1  # who was about to carry that reset out slept, and nobody else knows of it any more
        if self._location_may_be_overwritten():
            allowed += 1
        partly = filter(None, map(PARTLY_VANISHED.search, self.world.story if self.sink == "hdfs" else ()))
        return allowed + sum(1 for f in partly if int(f[1]) == partition and int(f[2]) <= offset <= int(f[3]))

    def _documented_repetitions(self, body: bytes, locations: Collection[tuple[int, int]]) -> int:
        """Return how often a rejected event may come once more, as the page on dead letters says.

        Its records are redelivered, and it is rejected again, if uploaded files were removed. If its dead letter was
        replayed before the commit of its records, a corrected configuration delivers both.

        The commit is lost with its group, too, if the sink's commit log lacks the records. It does so if all their
        events were rejected.
        """
        early = self.early_replays | (self.unlogged_replays if self.lost_metadata else {})
        redelivered = 0
        for line in self.world.story if self.uploads_removed else ():
            if (match := VANISHED.search(line)) and "again says" not in line and "of this commit exist" not in line:
                partition, first, _ = map(int, match.groups())
                # The later records of the partition have a new epoch as well, and so other dead letters.
                redelivered += any(p == partition and first <= offset for p, offset in locations)
        twice = list(early.values()).count(body) if self.was_mended else 0
        return twice + min(redelivered, self.dead_letters[body])

    def _location_may_be_overwritten(self) -> bool:
        """Return True if a late commit may have overwritten the location of the commit log, as the log reports."""
        return self.moved and any(UNDONE in line for line in self.world.story)

    def _check_epochs(self) -> None:
        """Check that no epoch has a commit after one of a later epoch, whose assignee has fenced it."""
        commits: dict[tuple[str, str, str], dict[int, list[tuple[float, bytes]]]] = defaultdict(dict)
        for when, path in self.renames:
            if "/.flafka/chain/" not in path or path not in self.hdfs.tree.files:
                continue
            parts = path.partition("/.flafka/chain/")[2].split("/")
            if len(parts) != 6:
                continue
            _, topic, group, epoch, partition, _ = parts
            commits[topic, partition, group].setdefault(int(epoch), []).append((when, self.hdfs.tree.files[path]))
        for (_, partition, _), epochs in () if self._location_may_be_overwritten() else commits.items():
            for epoch, committed in epochs.items():
                later = [
                    when
                    for e, entries in epochs.items()
                    for when, content in entries
                    if e > epoch and json.loads(content)["events"]
                ]
                for when, content in committed:
                    manifest = json.loads(content)
                    if later and when > min(later) and manifest["events"]:
                        raise Failure(
                            f"epoch {epoch} committed records {manifest['start']} to {manifest['end'] - 1} of "
                            f"partition {partition} at {when:.1f} s, and a later one did at {min(later):.1f} s"
                        )


_attempts = itertools.count(1)


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="simulated-", dir="/dev/shm")


def attempt(plan: Plan, *, verbose: bool = False) -> tuple[Any, BaseException | None]:
    """Carry it out: what was run, and what went wrong."""
    run = plan.run(verbose=verbose)
    before, tempfile.tempdir = tempfile.tempdir, _directory().name
    try:
        run.go()
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return run, e
    finally:
        for entry in Path(_directory().name).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        tempfile.tempdir = before
        number = next(_attempts)
        if number % COLLECTED == 0:
            gc.collect()
            if number == COLLECTED:
                gc.freeze()  # what has been imported since, and is looked at no more
    return run, None


def run_story(sink: str, *steps: Step, faults: tuple[Fault, ...] = (), seed: int = 1) -> Run:
    """Carry out these steps with these faults and return the run. Raises what went wrong."""
    with installed():
        run, error = attempt(Plan(seed, sink, list(steps), faults=list(faults)))
    if error is not None:
        raise error
    return run

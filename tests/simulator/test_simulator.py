"""Some hundreds of schedules of the simulator; `./dev simulate` runs as many as wanted."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.examples import examples
from tests.fixtures.processes import Forked
from tests.simulator import overflow
from tests.simulator.__main__ import shrink, simulate
from tests.simulator.faults import Fault, Kind
from tests.simulator.mutants import MUTANTS, ROOT, chosen, found
from tests.simulator.outcomes import Failure
from tests.simulator.plans import Plan
from tests.simulator.program import installed
from tests.simulator.steps import kill, put, start
from tests.simulator.stories import Run, attempt

SEEDS = examples(60)
LONG = examples(100) == 100
"""The first schedule of a process takes as long as several others: the quick run tries all sinks in one."""
SINKS = ["hdfs", "kafka", "solr", "hbase", "spark-hdfs", "spark-solr"]
QUICK = ("flush-before-commit", "renamed-already", "replay-noted", "topic-confirmed")
"""Mutants that are found within few schedules; `./dev soak` looks for all of them."""


@pytest.fixture
def simulated(tmp_path: Path, forked: Forked) -> Callable[..., tuple[int | None, str]]:
    """Carries schedules out; its exit code, and what it has said."""

    def simulated(*arguments: str) -> tuple[int | None, str]:
        output = tmp_path / "output"
        process = forked.start(simulate, output, *arguments)
        process.join()
        return process.exitcode, output.read_text()

    return simulated


@pytest.mark.parametrize("sinks", [[sink] for sink in SINKS] if LONG else [SINKS], ids=" ".join)
def test_nothing_is_lost_and_nothing_comes_twice(sinks, simulated):
    seeds = SEEDS * len(sinks)
    code, output = simulated("--seeds", str(seeds), *(word for sink in sinks for word in ("--sink", sink)))
    assert code == 0, output
    assert f"{seeds} passed, 0 failed" in output


@pytest.mark.parametrize("what", ["taildir", "overflow"])
def test_nothing_is_lost_in_silence_on_the_way_in(what, simulated):
    code, output = simulated("--seeds", str(SEEDS), "--source", what)
    assert code == 0, output
    assert f"{SEEDS} passed, 0 failed" in output


@pytest.mark.drawn(1)
@pytest.mark.parametrize("what", [("--sink", "hdfs"), ("--source", "taildir"), ("--source", "overflow")])
@pytest.mark.usefixtures("lengthy")
def test_a_seed_gives_the_same_log_each_time(what):
    command = [sys.executable, "-m", "tests.simulator", "--seeds", "1", "--first", "7", *what, "--tell"]
    # Processes that share nothing, not even the addresses of what they have imported.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    first, second = (
        re.sub(r"/dev/shm/\S+", "", subprocess.check_output(command, env=environment, text=True)) for _ in range(2)
    )
    log = [line for line in first.splitlines() if "schedules in" not in line]
    assert log == [line for line in second.splitlines() if "schedules in" not in line]
    assert len(log) > 10


def test_a_seed_gives_the_same_log_whatever_ran_before(simulated):
    alone, after = (
        simulated("--seeds", str(seeds), "--first", str(first), "--sink", "solr", "--tell")[1].splitlines()
        for seeds, first in ((1, 2), (2, 1))
    )
    assert any("--- in_flight(most=4)" in line for line in after[: -len(alone)])  # what the other one is about
    log = [line for line in alone if "schedules in" not in line and "passed" not in line]
    assert log == after[-len(alone) :][: len(log)]
    assert len(log) > 5


def test_a_failure_is_shrunk_to_what_it_takes(monkeypatch):
    needed = Fault("h1", "solr.update", 1, Kind.REFUSED, 0, life=2)
    faults = [needed._replace(life=1), needed, needed._replace(what="kafka.commit", kind=Kind.LOST)]
    steps = [step("h1", after=1) for step in (start, start, kill, start)]
    steps += [put(good=1, after=time) for time in (20, 60)]  # no fault comes once the last one is over
    check, lost = Run._check, Failure("as if something were lost")

    def fail(run: Run) -> None:
        check(run)
        if needed in run.world.faults:
            raise lost

    monkeypatch.setattr(Run, "_check", fail)
    with installed():
        shrunk = shrink(Plan(1, "solr", steps, faults=faults), lost)
    assert shrunk.faults == [needed]
    assert len(shrunk.steps) < len(steps)
    assert "kill" in {step.name for step in shrunk.steps}


def test_faults_that_came_by_chance_come_about_again_once_each_where_they_are_given():
    """In this one an agent dies, and the next one as well."""
    with installed():
        plan = overflow.plan_of(58000461)
        by_chance, _ = attempt(plan)
        given, _ = attempt(replace(plan, faults=by_chance.world.faults))
    assert [fault.kind for fault in by_chance.world.faults].count(Kind.KILLED) > 0
    assert given.world.story == by_chance.world.story


def test_each_mutant_can_be_made_of_the_present_code():
    assert [m.name for m in MUTANTS if (ROOT / m.file).read_text().count(m.old) != 1] == []
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.usefixtures("lengthy")
def test_a_guard_is_missed_where_it_is_taken_away(name):
    (mutant,) = chosen([name])
    assert found(mutant, attempts=400) is not None, mutant.guard

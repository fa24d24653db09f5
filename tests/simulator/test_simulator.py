"""Some hundreds of schedules of the simulator; `./dev simulate` runs as many as wanted."""

import os
import subprocess
import sys

import pytest

from tests.fixtures.examples import examples
from tests.simulator.mutants import MUTANTS, ROOT, chosen, found

SEEDS = examples(60)
LONG = examples(100) == 100
"""Few schedules take less time than to start a process for them: the quick run tries all sinks in one."""
SINKS = ["hdfs", "kafka", "solr", "hbase", "spark-hdfs", "spark-solr"]
QUICK = ("flush-before-commit", "renamed-already", "replay-noted", "topic-confirmed")
"""Mutants that are found within few schedules; `./dev soak` looks for all of them."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("sinks", [[sink] for sink in SINKS] if LONG else [SINKS], ids=" ".join)
def test_nothing_is_lost_and_nothing_comes_twice(sinks):
    seeds = SEEDS * len(sinks)
    outcome = simulate("--seeds", str(seeds), *(word for sink in sinks for word in ("--sink", sink)))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f"{seeds} passed, 0 failed" in outcome.stdout


def test_nothing_of_files_is_lost_in_silence():
    outcome = simulate("--seeds", str(SEEDS), "--source", "taildir")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f"{SEEDS} passed, 0 failed" in outcome.stdout


@pytest.mark.parametrize("what", [("--sink", "hdfs"), ("--source", "taildir")])
@pytest.mark.usefixtures("lengthy")
def test_a_seed_tells_the_same_story_each_time(what):
    first, second = (simulate("--seeds", "1", "--first", "7", *what, "--tell").stdout for _ in range(2))
    told = [line for line in first.splitlines() if "schedules in" not in line]
    assert told == [line for line in second.splitlines() if "schedules in" not in line]
    assert len(told) > 10


def test_a_seed_tells_the_same_story_whatever_ran_before():
    alone, after = (
        simulate("--seeds", str(seeds), "--first", str(first), "--sink", "solr", "--tell").stdout.splitlines()
        for seeds, first in ((1, 2), (2, 1))
    )
    assert any("--- in-flight 4" in line for line in after[: -len(alone)])  # what the other one is about
    told = [line for line in alone if "schedules in" not in line and "passed" not in line]
    assert told == after[-len(alone) :][: len(told)]
    assert len(told) > 5


def test_each_mutant_can_be_made_of_the_present_code():
    assert [m.name for m in MUTANTS if (ROOT / m.file).read_text().count(m.old) != 1] == []
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.usefixtures("lengthy")
def test_a_guard_is_missed_where_it_is_taken_away(name):
    (mutant,) = chosen([name])
    assert found(mutant, attempts=60) is not None, mutant.guard

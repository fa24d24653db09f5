"""Some hundreds of schedules of the simulator; `./dev simulate` runs as many as wanted."""

import os
import subprocess
import sys

import pytest

SEEDS = 100


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr"])
def test_nothing_is_lost_and_nothing_comes_twice(sink):
    outcome = simulate("--seeds", str(SEEDS), "--sink", sink)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f"{SEEDS} passed, 0 failed" in outcome.stdout


def test_a_seed_tells_the_same_story_each_time():
    first, second = (simulate("--seeds", "1", "--first", "7", "--sink", "hdfs", "--tell").stdout for _ in range(2))
    told = [line for line in first.splitlines() if "schedules in" not in line]
    assert told == [line for line in second.splitlines() if "schedules in" not in line]
    assert len(told) > 10

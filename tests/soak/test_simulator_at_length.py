"""Long version of tests/simulator/test_simulator.py: `./dev soak`.

A million schedules take a day on one core; each core takes a share of them. `FLAFKA_SOAK_SCHEDULES` sets fewer.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.mutants import MUTANTS, Mutant, found

SCHEDULES = int(os.environ.get("FLAFKA_SOAK_SCHEDULES", "1000000"))
ATTEMPTS = 5000
"""Number of schedules that a mutant may survive."""


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_million_schedules_lose_nothing_and_deliver_nothing_twice(
    tmp_path: Path, seed: int, figures: list[str]
) -> None:
    shares = os.cpu_count() or 1
    running = []
    for share in range(shares):
        first, behind = (seed + SCHEDULES * number // shares for number in (share, share + 1))
        command = [sys.executable, "-m", "tests.simulator", "--first", str(first), "--seeds", str(behind - first)]
        with (tmp_path / f"{share}.txt").open("w") as output:
            running.append(subprocess.Popen([*command, "--keep-going"], stdout=output, stderr=subprocess.STDOUT))
    codes = [process.wait() for process in running]
    outputs = "".join((tmp_path / f"{share}.txt").read_text() for share in range(shares))
    passed = sum(map(int, re.findall(r"^(\d+) passed", outputs, re.MULTILINE)))
    figures.append(f"{passed:,} of {SCHEDULES:,} schedules passed, from seed {seed} on")
    assert codes == [0] * shares, outputs
    assert passed == SCHEDULES


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_missing_guard_is_detected(mutant: Mutant, seed: int, figures: list[str]) -> None:
    finding = found(mutant, first=seed, attempts=ATTEMPTS)
    figures.append(f"without {mutant.name}: {finding or f'{ATTEMPTS} schedules passed'}")
    assert finding is not None, mutant.guard

"""Mutants made of the present code, in a copy of the tree, and what finds them there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from tests.simulator.mutants import channel, hdfs, kafka, replays, runner, spark, taildir
from tests.simulator.mutants.mutant import SOURCES, Mutant

ROOT = Path(__file__).resolve().parents[3]
STORIES = "tests/simulator/test_stories.py"
COPIED = ("flafka", "agent", "plugins", "sources", "channels", "interceptors", "sinks", "conf", "tests")
MUTANTS = (
    *hdfs.COMMIT_RECORD,
    *runner.SINKS,
    *runner.DEAD_LETTERS,
    *replays.SPANS,
    *channel.READER,
    *channel.PRODUCER,
    *kafka.KAFKA_SINK,
    *spark.DRIVER,
    *runner.DRAIN,
    *taildir.FILES,
    *channel.OVERFLOW,
)
"""Mutants of all components."""


class Outdated(Exception):
    """A mutant cannot be made of the present code."""


def made(mutant: Mutant, directory: Path) -> None:
    """A copy of the tree with that guard taken away. Raises Outdated."""
    text = (ROOT / mutant.file).read_text()
    if (count := text.count(mutant.old)) != 1:
        raise Outdated(f"mutant {mutant.name}: {mutant.file} has {count} times, not once:\n{mutant.old}")
    for name in COPIED:
        shutil.copytree(
            ROOT / name, directory / name, symlinks=True
        )  # with what is compiled: nothing else is as slow to begin
    shutil.copy(ROOT / "pyproject.toml", directory)  # how tests are run
    (directory / mutant.file).write_text(text.replace(mutant.old, mutant.new))


def chosen(names: Collection[str]) -> list[Mutant]:
    """Return the mutants of these names, or all without names. Raises Outdated for an unknown name."""
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        raise Outdated(f"there is no mutant {min(unknown)}")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def found(mutant: Mutant, *, first: int = 0, attempts: int) -> str | None:
    """Return the failure, which begins with the seed or the story; None if all pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        directory = Path(name)
        made(mutant, directory)
        return _by_story(mutant, directory) if mutant.story else _by_chance(mutant, directory, first, attempts)


def _by_story(mutant: Mutant, directory: Path) -> str | None:
    test = mutant.story if "::" in mutant.story else f"{STORIES}::{mutant.story}"
    outcome = _run(directory, "pytest", "-q", "-p", "no:cacheprovider", test)
    if outcome.returncode == 0:
        return None
    if outcome.returncode != 1:  # pytest's code for tests that failed
        raise RuntimeError(f"mutant {mutant.name} does not run:\n{outcome.stdout}{outcome.stderr}")
    why = re.search(r"^E +(.*)$", outcome.stdout, re.MULTILINE)
    return f"{mutant.story}: {why[1] if why else outcome.stdout}"


def _by_chance(mutant: Mutant, directory: Path, first: int, attempts: int) -> str | None:
    sinks = [word for sink in mutant.sinks for word in ("--source" if sink in SOURCES else "--sink", sink)]
    limits = ["--first", str(first), "--seeds", str(attempts), "--no-shrink"]
    outcome = _run(directory, "tests.simulator", *limits, *sinks)
    failure = re.search(r"^seed (\d+: .*)$", outcome.stdout, re.MULTILINE)
    if failure is None and "passed, 0 failed" not in outcome.stdout:
        raise RuntimeError(f"mutant {mutant.name} does not run:\n{outcome.stdout}{outcome.stderr}")
    return failure[1] if failure is not None else None


def _run(directory: Path, *module: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module in the copy."""
    alone = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, **alone}
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)

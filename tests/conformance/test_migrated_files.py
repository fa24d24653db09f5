"""Output of `agent migrate` for users' real configurations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.config import load
from flafka.agent.config.migration import Migration, Verdict, migrate
from flafka.plugins import Components
from tests.conformance import adapters, real_files
from tests.fixtures.examples import some

COMPONENTS = Components()
CASES = some(real_files.files())
FLOORS: dict[Verdict, int] = {"runs": 32, "differs": 36}
"""Least numbers of all files that run, and that run with differences; `runs` may take from `differs`."""
MOST = 6
"""Most reasons for differing lines of a file that a user can take in. Lines with one reason are reported together."""
ADVICE = re.compile(
    r"did you mean|\b(write|add|take|choose|name|let|remove|install|keep|fetch|carry) |`agent template |"
    r"available types: |built are: |"
    r"expected |must |declared (?:channels|sinks): |set |rename |is not of the form ",
    re.IGNORECASE,
)
"""Words of a sentence with the replacement or the remedy."""

pytestmark = pytest.mark.skipif(
    not CASES, reason=f"no suite {real_files.SUITE} in {adapters.cases()} (set FLUME_CASES)"
)


@dataclass(frozen=True)
class Migrated:
    """Agent of a file before and after the migration."""

    id: str
    name: str | None
    found: Migration
    new: Path
    changed: bool
    """True if the migration changed the agent."""


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Migrated]]:
    directory = tmp_path_factory.mktemp("real")
    all_of_them = []
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("FLUME_CONF_DIR", "HADOOP_CONF_DIR", "HBASE_CONF_DIR"):
            patch.delenv(variable, raising=False)
        for case in CASES:
            file = directory / f"{case['id']}.conf"
            file.write_text(case["input"]["properties"], "utf-8", newline="")
            for name in _agents(case):
                found = migrate(file, name, components=COMPONENTS, system={}, environment={})
                new = directory / f"{case['id']}-{len(all_of_them)}-new.conf"
                new.write_bytes(found.content or b"")
                changed = found.content != file.read_bytes()
                all_of_them.append(Migrated(case["id"], name, found, new, changed))
        yield all_of_them


def _agents(case: dict[str, Any]) -> list[str | None]:
    """Return the agents that Flume would run."""
    return [name for name, kept in case["expected"]["agents"].items() if kept] or [None]


def test_the_number_that_runs_only_rises(migrated: list[Migrated]) -> None:
    if len(CASES) < len(real_files.files()):
        pytest.skip("only a part of the files is tried")
    verdicts: dict[str, list[Verdict]] = {}
    for one in migrated:
        verdicts.setdefault(one.id, []).append(_verdict(one.found))
    order: list[Verdict] = ["needs porting", "differs", "runs"]
    count = Counter(min(several, key=order.index) for several in verdicts.values())
    assert count["runs"] >= FLOORS["runs"], count
    assert count["runs"] + count["differs"] >= sum(FLOORS.values()), count


def _verdict(found: Migration) -> Verdict:
    return "needs porting" if not found.is_complete else "differs" if found.lines_with("differs") else "runs"


def test_migrated_files_without_java_classes_are_accepted(migrated: list[Migrated]) -> None:
    refused = {}
    for one in migrated:
        if not one.found.is_complete or not one.changed:  # the verdicts cover the acceptance of the old one
            continue
        spec, found = load(one.new, one.name, components=COMPONENTS, system={}, environment={})
        if spec is None:
            refused[one.id] = [*map(str, found)]
    assert not refused


def test_a_second_migration_changes_nothing(migrated: list[Migrated]) -> None:
    ported = [one for one in migrated if not one.found.is_complete]
    for one in [*(one for one in migrated if one.found.is_complete and one.changed), *ported[::5]]:
        again = migrate(one.new, one.name, components=COMPONENTS, system={}, environment={})
        assert again.content == one.found.content, one.id
        assert all(line.replacement is None for line in again.lines), one.id


def test_only_lines_that_differ_are_changed(migrated: list[Migrated]) -> None:
    for one in migrated:
        for line in one.found.lines:
            assert line.replacement is None or line.verdict == "differs", (one.id, line)


def test_a_user_sees_few_reasons_at_once(migrated: list[Migrated]) -> None:
    for one in migrated:
        reasons = {reason.message for line in one.found.lines_with("differs") for reason in line.reasons()}
        assert len(reasons) <= MOST, (one.id, reasons)


def test_every_error_has_advice(migrated: list[Migrated]) -> None:
    without = {
        reason.message: one.id
        for one in migrated
        for line in one.found.lines_with("needs porting")
        for reason in line.reasons()
        if reason.severity == "error" and not ADVICE.search(reason.message)
    }
    assert not without

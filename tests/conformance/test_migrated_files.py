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
    migration: Migration
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
                migration = migrate(file, name, components=COMPONENTS, system={}, environment={})
                new = directory / f"{case['id']}-{len(all_of_them)}-new.conf"
                new.write_bytes(migration.content or b"")
                changed = migration.content != file.read_bytes()
                all_of_them.append(Migrated(case["id"], name, migration, new, changed))
        yield all_of_them


def _agents(case: dict[str, Any]) -> list[str | None]:
    """Return the agents that Flume would run."""
    return [name for name, components in case["expected"]["agents"].items() if components] or [None]


def test_the_number_that_runs_only_rises(migrated: list[Migrated]) -> None:
    if len(CASES) < len(real_files.files()):
        pytest.skip("only a part of the files is tried")
    verdicts: dict[str, list[Verdict]] = {}
    for file in migrated:
        verdicts.setdefault(file.id, []).append(_verdict(file.migration))
    order: list[Verdict] = ["needs porting", "differs", "runs"]
    count = Counter(min(several, key=order.index) for several in verdicts.values())
    assert count["runs"] >= FLOORS["runs"], count
    assert count["runs"] + count["differs"] >= sum(FLOORS.values()), count


def _verdict(migration: Migration) -> Verdict:
    return "needs porting" if not migration.is_complete else "differs" if migration.lines_with("differs") else "runs"


def test_migrated_files_without_java_classes_are_accepted(migrated: list[Migrated]) -> None:
    refused = {}
    for file in migrated:
        if not file.migration.is_complete or not file.changed:  # the verdicts cover the acceptance of the old one
            continue
        spec, diagnostics = load(file.new, file.name, components=COMPONENTS, system={}, environment={})
        if spec is None:
            refused[file.id] = [*map(str, diagnostics)]
    assert not refused


def test_a_second_migration_changes_nothing(migrated: list[Migrated]) -> None:
    ported = [file for file in migrated if not file.migration.is_complete]
    for file in [*(file for file in migrated if file.migration.is_complete and file.changed), *ported[::5]]:
        second = migrate(file.new, file.name, components=COMPONENTS, system={}, environment={})
        assert second.content == file.migration.content, file.id
        assert all(line.replacement is None for line in second.lines), file.id


def test_only_lines_that_differ_are_changed(migrated: list[Migrated]) -> None:
    for file in migrated:
        for line in file.migration.lines:
            assert line.replacement is None or line.verdict == "differs", (file.id, line)


def test_a_user_sees_few_reasons_at_once(migrated: list[Migrated]) -> None:
    for file in migrated:
        reasons = {reason.message for line in file.migration.lines_with("differs") for reason in line.reasons()}
        assert len(reasons) <= MOST, (file.id, reasons)


def test_every_error_has_advice(migrated: list[Migrated]) -> None:
    without = {
        reason.message: file.id
        for file in migrated
        for line in file.migration.lines_with("needs porting")
        for reason in line.reasons()
        if reason.severity == "error" and not ADVICE.search(reason.message)
    }
    assert not without

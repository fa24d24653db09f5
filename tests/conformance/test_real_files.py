"""Number of users' real configurations that run: it only rises, and each other one has a reason."""

from __future__ import annotations

import pytest

from tests.conformance import adapters, real_files

FLOOR = 70
"""Least number of running files; raise it when more run."""
REASONS: dict[str, str] = {
    id: reason for kind in ("own-errors", "needs-something") for id, reason in real_files.NOTES[kind].items()
}
"""By id: the reason why a file does not run, unless `check` names Java classes or an unsupported type of Flume's."""

pytestmark = pytest.mark.skipif(
    not real_files.files(), reason=f"no suite {real_files.SUITE} in {adapters.cases()} (set FLUME_CASES)"
)


@pytest.fixture(scope="module")
def verdicts() -> list[real_files.Verdict]:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("FLUME_CONF_DIR", "HADOOP_CONF_DIR", "HBASE_CONF_DIR"):
            patch.delenv(variable, raising=False)
        return [real_files.judge(case, adapters.components()) for case in real_files.files()]


def test_the_number_that_runs_only_rises(verdicts: list[real_files.Verdict]) -> None:
    running = [verdict for verdict in verdicts if not verdict.reason]
    assert len(running) >= FLOOR, f"\n{real_files.table(verdicts)}"


def test_running_files_have_the_parts_that_flume_keeps(verdicts: list[real_files.Verdict]) -> None:
    assert not {verdict.id: verdict.differs for verdict in verdicts if verdict.differs}


def test_every_other_file_has_a_reason(verdicts: list[real_files.Verdict]) -> None:
    by_id = {verdict.id: verdict for verdict in verdicts}
    if not REASONS.keys() <= by_id.keys():
        pytest.skip("these are other files than those whose reasons are written down")
    without = [v for v in verdicts if v.reason == "other" and v.id not in REASONS]
    assert not without, f"\n{real_files.table(without)}"
    wrong = [id for id in REASONS if not by_id[id].reason]
    assert not wrong, f"these run: remove them from real_files.toml, and raise FLOOR: {wrong}"


def test_needed_java_classes_are_named(verdicts: list[real_files.Verdict]) -> None:
    texts = {case["id"]: case["input"]["properties"] for case in real_files.files()}
    for verdict in verdicts:
        if verdict.reason == "java":
            messages = " ".join(error.message for error in verdict.errors)
            assert any(java in messages for java in real_files.own_classes(texts[verdict.id])), verdict.id
            assert "`agent template " in messages

"""Stories of files that are too rare to wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.files import FilePlan, FileRun
from tests.simulator.program import installed
from tests.simulator.steps import (
    Step,
    churn,
    compress,
    copytruncate,
    damage,
    delete,
    kill,
    kill_opener,
    pause,
    remove,
    rotate,
    start,
    stop,
    write,
)
from tests.simulator.stories import attempt

CLOSED_SOON = 3
"""A seed with which idle files are closed after 5 s; renamed ones do not match."""
OPEN = 16
"""One with which they stay open."""
AWAKE = (write(3), start())
MATCHING = 6
"""Seed with which renamed files match."""
REST = (*AWAKE, pause(seconds=20.0, after=15))
MISSED = "files were gone before they could be opened"
PERHAPS = "was not found again: what was written to it after byte"


def run_story(
    *steps: Step, first: tuple[Step, ...] = REST, seed: int = CLOSED_SOON, faults: Sequence[Fault] = ()
) -> tuple[FileRun, str]:
    """Carry out these steps after `first`, and return the run and its log. Raises what went wrong."""
    with installed():
        run, error = attempt(FilePlan(seed, "taildir", [*first, *steps], faults=[*faults]))
    if error is not None:
        raise error
    return run, "\n".join(run.world.story)


@pytest.mark.parametrize("fate", [[remove(after=1)], [rotate(matching=True, after=1), delete()]])
def test_a_closed_file_deleted_with_unread_lines_is_reported(fate: list[Step]) -> None:
    """A closed file that was appended to and deleted while the agent slept is reported as missed."""
    run, log = run_story(write(5, after=1), *fate)
    assert MISSED in log
    assert run._metric("FileMissedCount") == 1


def test_a_closed_file_replaced_with_unread_lines_is_reported() -> None:
    """A closed file that was appended to and replaced while the agent slept is reported."""
    _, log = run_story(write(5, after=1), remove(after=1), write(5, after=1))
    assert PERHAPS in log


def test_a_closed_file_deleted_without_unread_lines_is_not_reported() -> None:
    """A closed file that was deleted unchanged is not reported."""
    _, log = run_story(remove(after=1))
    assert MISSED not in log
    assert PERHAPS not in log


def test_lines_of_a_file_that_replaced_a_closed_one_are_not_missed() -> None:
    """Lines of a file that replaced a closed one do not count as missed."""
    run, _ = run_story(remove(after=15), write(5), first=AWAKE)  # the write is heard of first
    assert run._metric("FileMissedCount") == 0


def test_an_unproven_file_offset_is_not_used_for_another_file() -> None:
    """A file offset without a proof is not used for another file with a line end at that offset."""
    stopped = (write(7), start(), stop(after=5), damage("empty", where=0.5))
    gone = (write(38), remove())
    run, log = run_story(*gone, write(3), rotate(matching=True), first=stopped, seed=MATCHING)
    before, after = (log.lines for log in run.all)
    assert len(b"\n".join(before[:7])) == len(b"\n".join(after[:2])), "the story does not show it any more"
    assert PERHAPS in log


@pytest.mark.parametrize("seed", [3, 9, 15, 21])
def test_a_deleted_file_is_not_read_again_after_a_pause(seed: int) -> None:
    """A file that was read and deleted before the agent slept is not read again."""
    fate = (rotate(matching=True, after=1), delete(after=0.1))
    run, _ = run_story(
        *fate, first=(*AWAKE, remove(after=5), write(3, after=1), pause(seconds=70.0, after=1)), seed=seed
    )
    assert not [line for line, count in Counter(run._arrived()).items() if count > 1]


def test_lines_of_a_renamed_file_are_not_missed_with_its_predecessor() -> None:
    """Lines of a file that was renamed do not count as missed with the file before it."""
    later = (remove(after=12), write(7, after=3), pause(seconds=20.0, after=0.5))
    run, _ = run_story(*later, write(12, after=12), rotate(matching=False, after=0.05), first=AWAKE, seed=MATCHING)
    assert run._metric("FileMissedCount") == 0


def test_a_deleted_file_is_missed_after_its_predecessor_was_read_compressed() -> None:
    """A deleted file counts as missed although its predecessor was read in a compressed copy."""
    before = (*AWAKE, kill(after=2), write(5), rotate(matching=True), write(5))
    closed = (*before, compress(), start(after=1))
    gone = (rotate(matching=True), delete())
    run, log = run_story(write(5, after=15), *gone, first=closed, seed=MATCHING)
    assert MISSED in log
    assert run._metric("FileMissedCount") == 1


@pytest.mark.parametrize("seed", [0, 27, 30, 42])
def test_lines_of_a_new_file_are_not_missed_with_a_deleted_one(seed: int) -> None:
    """Lines of a new file do not count as missed with a closed file that was deleted."""
    first = (start(), write(4, after=2), rotate(matching=True, after=12), write(9, after=12))
    run, _ = run_story(remove(after=12), churn(1, life=3.0, after=3), first=first, seed=seed)
    assert run._metric("FileMissedCount") == 0


def test_lines_cut_off_by_copytruncate_are_read_in_the_copy() -> None:
    """Lines that copytruncate cut off a closed file while the agent slept are read in the copy."""
    run, _ = run_story(write(5, after=1), copytruncate(after=1), write(5, after=1), rotate(matching=False, after=1))
    assert set(run._arrived()) == {line for log in run.all for line in log.lines}


def test_lines_written_after_copytruncate_are_reported_with_their_deleted_file() -> None:
    """Lines written after copytruncate are reported as lost if their file is deleted."""
    cut = (write(5, after=1), copytruncate(after=1), write(5, after=1))
    run, log = run_story(*cut, rotate(matching=False, after=1), delete())
    assert {*run.all[0].lines[:8]} <= {*run._arrived()}
    assert "was written to it after it was copied" in log


@pytest.mark.parametrize("seed", [OPEN, CLOSED_SOON])
def test_a_truncated_open_file_renamed_out_of_its_pattern_is_read(seed: int) -> None:
    """An open file that was truncated and renamed is read, although it seems idle for 8 s."""
    cut = (copytruncate(after=0.05), write(6), rotate(matching=False))
    run_story(write(4, after=2), *cut, first=AWAKE, seed=seed)


def test_a_file_truncated_and_renamed_while_the_agent_sleeps_is_read() -> None:
    """A full scan finds the open file under a name that does not match, before its growth is noticed."""
    asleep = (*AWAKE, pause(seconds=20.0, after=5))
    run_story(copytruncate(after=0.05), write(6, after=0.05), rotate(matching=False), first=asleep)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_file_truncated_between_read_and_proof_is_read_from_its_start(number: int) -> None:
    """A file that is truncated between its read and its proof is read from its start."""
    asleep = Fault("h1", "os.pread", number, Kind.PAUSED_AFTER, 20.0)
    run_story(copytruncate(after=0.05), write(6), first=AWAKE, faults=[asleep])


def test_a_file_waits_for_inotify_events_of_its_predecessor() -> None:
    """A file waits while its predecessor waits for inotify events, instead of a busy loop."""
    run, _ = run_story(
        churn(8, life=0.01, after=0.05), write(1, after=0.5), kill_opener(after=0.05),
        copytruncate(after=0.05), first=(start(),), seed=146,
    )  # fmt: skip
    assert run._arrived()

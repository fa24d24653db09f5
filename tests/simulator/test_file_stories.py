"""Stories of files that are too rare to wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.files import FilePlan, FileRun
from tests.simulator.plans import Step
from tests.simulator.program import installed
from tests.simulator.stories import attempt

CLOSED_SOON = 3
"""A seed with which idle files are closed after 5 s; renamed ones do not match."""
OPEN = 16
"""One with which they stay open."""
AWAKE = (Step(0, "write", (3,)), Step(0, "start"))
MATCHING = 6
"""Another one, with which renamed files match."""
REST = (*AWAKE, Step(15, "pause", (20.0,)))
MISSED = "files were gone before they could be opened"
PERHAPS = "was not found again: what was written to it after byte"


def told(
    *steps: Step, first: tuple[Step, ...] = REST, seed: int = CLOSED_SOON, faults: Sequence[Fault] = ()
) -> tuple[FileRun, str]:
    """What came of it, which has to be well, and what was said."""
    with installed():
        run, error = attempt(FilePlan(seed, "taildir", [*first, *steps], faults=[*faults]))
    if error is not None:
        raise error
    return run, "\n".join(run.world.story)


@pytest.mark.parametrize("fate", [[Step(1, "remove")], [Step(1, "rotate", (True,)), Step(0, "delete")]])
def test_a_closed_file_that_was_written_to_and_deleted_while_the_agent_slept_is_told_of(fate: list[Step]) -> None:
    run, said = told(Step(1, "write", (5,)), *fate)
    assert MISSED in said
    assert run._metric("FileMissedCount") == 1


def test_a_closed_file_that_was_written_to_and_replaced_while_the_agent_slept_is_said_to_be_gone() -> None:
    _, said = told(Step(1, "write", (5,)), Step(1, "remove"), Step(1, "write", (5,)))
    assert PERHAPS in said


def test_a_closed_file_that_was_deleted_as_it_was_is_not_spoken_of() -> None:
    _, said = told(Step(1, "remove"))
    assert MISSED not in said
    assert PERHAPS not in said


def test_what_is_written_to_a_file_in_the_place_of_a_closed_one_does_not_count_as_lost() -> None:
    run, _ = told(Step(15, "remove"), Step(0, "write", (5,)), first=AWAKE)  # the write is heard of first
    assert run._metric("FileMissedCount") == 0


def test_a_position_without_proof_is_not_that_of_another_file_in_which_a_line_happens_to_end_there() -> None:
    stopped = (Step(0, "write", (7,)), Step(0, "start"), Step(5, "stop"), Step(0, "damage", ("empty", 0.5)))
    gone = (Step(0, "write", (38,)), Step(0, "remove"))
    run, said = told(*gone, Step(0, "write", (3,)), Step(0, "rotate", (True,)), first=stopped, seed=MATCHING)
    before, after = (log.lines for log in run.all)
    assert len(b"\n".join(before[:7])) == len(b"\n".join(after[:2])), "the story does not show it any more"
    assert PERHAPS in said


@pytest.mark.parametrize("seed", [3, 9, 15, 21])
def test_a_file_that_was_read_and_deleted_before_the_agent_slept_and_woke_is_not_read_again(seed: int) -> None:
    fate = (Step(1, "rotate", (True,)), Step(0.1, "delete"))
    run, _ = told(
        *fate, first=(*AWAKE, Step(5, "remove"), Step(1, "write", (3,)), Step(1, "pause", (70.0,))), seed=seed
    )
    assert not [line for line, count in Counter(run._arrived()).items() if count > 1]


def test_what_is_written_to_a_file_that_was_renamed_since_does_not_count_as_lost_with_the_one_before() -> None:
    later = (Step(12, "remove"), Step(3, "write", (7,)), Step(0.5, "pause", (20.0,)))
    run, _ = told(*later, Step(12, "write", (12,)), Step(0.05, "rotate", (False,)), first=AWAKE, seed=MATCHING)
    assert run._metric("FileMissedCount") == 0


def test_writes_to_a_file_are_heard_of_after_what_its_name_held_before_was_read_in_a_compressed_copy() -> None:
    before = (*AWAKE, Step(2, "kill"), Step(0, "write", (5,)), Step(0, "rotate", (True,)), Step(0, "write", (5,)))
    closed = (*before, Step(0, "compress"), Step(1, "start"))
    gone = (Step(0, "rotate", (True,)), Step(0, "delete"))
    run, said = told(Step(15, "write", (5,)), *gone, first=closed, seed=MATCHING)
    assert MISSED in said
    assert run._metric("FileMissedCount") == 1


@pytest.mark.parametrize("seed", [0, 27, 30, 42])
def test_writes_to_a_new_file_do_not_count_as_lost_with_a_closed_one_that_is_known_to_be_deleted(seed: int) -> None:
    first = (Step(0, "start"), Step(2, "write", (4,)), Step(12, "rotate", (True,)), Step(12, "write", (9,)))
    run, _ = told(Step(12, "remove"), Step(3, "churn", (1, 3.0)), first=first, seed=seed)
    assert run._metric("FileMissedCount") == 0


def test_what_copytruncate_cut_off_a_closed_file_while_the_agent_slept_is_read_on_in_the_copy() -> None:
    run, _ = told(
        Step(1, "write", (5,)), Step(1, "copytruncate"), Step(1, "write", (5,)), Step(1, "rotate", (False,))
    )
    assert set(run._arrived()) == {line for log in run.all for line in log.lines}


def test_what_was_written_after_the_copy_that_is_read_on_is_said_to_be_lost_with_its_file() -> None:
    cut = (Step(1, "write", (5,)), Step(1, "copytruncate"), Step(1, "write", (5,)))
    run, said = told(*cut, Step(1, "rotate", (False,)), Step(0, "delete"))
    assert {*run.all[0].lines[:8]} <= {*run._arrived()}
    assert "was written to it after it was copied" in said


@pytest.mark.parametrize("seed", [OPEN, CLOSED_SOON])
def test_an_open_file_that_was_truncated_and_renamed_out_of_its_pattern_is_read(seed: int) -> None:
    """The channel takes 8 s for the batch before: for so long the file seems to be idle."""
    cut = (Step(0.05, "copytruncate"), Step(0, "write", (6,)), Step(0, "rotate", (False,)))
    told(Step(2, "write", (4,)), *cut, first=AWAKE, seed=seed)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_file_that_is_truncated_between_its_reading_and_its_proof_is_read_from_its_start(number: int) -> None:
    asleep = Fault("h1", "os.pread", number, Kind.PAUSED_AFTER, 20.0)
    told(Step(0.05, "copytruncate"), Step(0, "write", (6,)), first=AWAKE, faults=[asleep])


def test_a_file_whose_predecessor_waits_for_reports_of_the_kernel_waits_with_it() -> None:
    """Without that, the source looks again and again at once, and in a simulation no time passes."""
    run, _ = told(
        Step(0.05, "churn", (8, 0.01)), Step(0.5, "write", (1,)), Step(0.05, "kill-opener"),
        Step(0.05, "copytruncate"), first=(Step(0, "start"),), seed=146,
    )  # fmt: skip
    assert run._arrived()

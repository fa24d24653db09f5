"""Mutants of the source `taildir`: which file it was that was written to."""

from tests.simulator.mutants.mutant import TAILDIR, Mutant

FILES_PY = "sources/taildir/files.py"
STORIES = "tests/simulator/test_file_stories.py"

FILES = (
    Mutant(
        "taildir-present",
        "of several files that had a name, writes are those of the one that has it now",
        TAILDIR,
        FILES_PY,
        "for named in (False, True):",
        "for named in (True, False):",
        f"{STORIES}::"
        "test_writes_to_a_file_are_heard_of_after_what_its_name_held_before_was_read_in_a_compressed_copy",
    ),
    Mutant(
        "taildir-replaced",
        "what is written under a name that another file had since may be that one's",
        TAILDIR,
        FILES_PY,
        "tail.grown = None if tail.replaced else True",
        "tail.grown = True",
        f"{STORIES}::"
        "test_what_is_written_to_a_file_that_was_renamed_since_does_not_count_as_lost_with_the_one_before",
    ),
)

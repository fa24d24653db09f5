"""Mutants of the source `taildir`: which file it was that was written to."""

from tests.simulator.mutants.mutant import TAILDIR, Mutant

TABLE_PY, DISCOVERY_PY = "sources/taildir/table.py", "sources/taildir/discovery.py"
STORIES = "tests/simulator/test_file_stories.py"

FILES = (
    Mutant(
        "taildir-replaced",
        "what is written under a name that another file had since may be that one's",
        TAILDIR,
        TABLE_PY,
        "tail.growth = Growth.UNCERTAIN if tail.replaced else Growth.SEEN",
        "tail.growth = Growth.SEEN",
        f"{STORIES}::"
        "test_what_is_written_to_a_file_that_was_renamed_since_does_not_count_as_lost_with_the_one_before",
    ),
    Mutant(
        "taildir-copytruncate",
        "what a closed file held that is another one by now may be in a copy",
        TAILDIR,
        TABLE_PY,
        "            self._add_unfound(former)",
        "            pass",
        f"{STORIES}::test_what_copytruncate_cut_off_a_closed_file_while_the_agent_slept_is_read_on_in_the_copy",
    ),
    Mutant(
        "taildir-copied",
        "what is written to a file that went on in a copy is heard of later",
        TAILDIR,
        TABLE_PY,
        "for tail in (*self.away, *self._written, *copied, *before):",
        "for tail in (*self.away, *self._written):",
        f"{STORIES}::test_what_was_written_after_the_copy_that_is_read_on_is_said_to_be_lost_with_its_file",
    ),
    Mutant(
        "taildir-truncated",
        "an open file is the same one whatever is in it",
        TAILDIR,
        "sources/taildir/reading.py",
        "if tail.fd is None and tail.location is not FileLocation.MATCHED:",
        "if tail.location is not FileLocation.MATCHED:",
        f"{STORIES}::test_an_open_file_that_was_truncated_and_renamed_out_of_its_pattern_is_read",
    ),
    Mutant(
        "taildir-unseen",
        "a file is not idle that has changed since the latest look",
        TAILDIR,
        DISCOVERY_PY,
        "or tail.held or tail.has_changed():",
        "or tail.held:",
        f"{STORIES}::test_an_open_file_that_was_truncated_and_renamed_out_of_its_pattern_is_read",
    ),
    Mutant(
        "taildir-proof",
        "a proof is of what was read, not of what is there by now",
        TAILDIR,
        "sources/taildir/tail.py",
        "offset, length, head = self.offset + len(data), self.proof.length, self.proof.head",
        "return Mark.at(self.fd, self.offset + len(data))",
        f"{STORIES}::test_a_file_that_is_truncated_between_its_reading_and_its_proof_is_read_from_its_start",
    ),
)

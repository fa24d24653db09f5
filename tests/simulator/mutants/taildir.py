"""Mutants of the source `taildir`: which file it was that was written to."""

from tests.simulator.mutants.mutant import TAILDIR, Mutant

TABLE_PY, DISCOVERY_PY = "sources/taildir/table.py", "sources/taildir/discovery.py"
STORIES = "tests/simulator/test_file_stories.py"

FILES = (
    Mutant(
        "taildir-replaced",
        "a write to a name that another file had since may belong to that file",
        TAILDIR,
        TABLE_PY,
        "tail.growth = Growth.UNCERTAIN if tail.replaced else Growth.WRITTEN",
        "tail.growth = Growth.WRITTEN",
        f"{STORIES}::test_lines_of_a_renamed_file_are_not_missed_with_its_predecessor",
    ),
    Mutant(
        "taildir-copytruncate",
        "lines of a closed file that was replaced may be in a copy",
        TAILDIR,
        TABLE_PY,
        "            self._add_unmatched(former)",
        "            pass",
        f"{STORIES}::test_lines_cut_off_by_copytruncate_are_read_in_the_copy",
    ),
    Mutant(
        "taildir-copied",
        "writes to a file that continued in a copy are reported later",
        TAILDIR,
        TABLE_PY,
        "for tail in (*self.deleted_before, *self._written, *copied, *before):",
        "for tail in (*self.deleted_before, *self._written):",
        f"{STORIES}::test_lines_written_after_copytruncate_are_reported_with_their_deleted_file",
    ),
    Mutant(
        "taildir-truncated",
        "an open file stays the same file, whatever its contents",
        TAILDIR,
        "sources/taildir/reading.py",
        "if tail.fd is None and tail.location is not FileLocation.MATCHED:",
        "if tail.location is not FileLocation.MATCHED:",
        f"{STORIES}::test_a_truncated_open_file_renamed_out_of_its_pattern_is_read",
    ),
    Mutant(
        "taildir-unseen",
        "a file that has changed since the latest scan is not idle",
        TAILDIR,
        DISCOVERY_PY,
        "or tail.buffered or tail.has_changed():",
        "or tail.buffered:",
        f"{STORIES}::test_a_file_truncated_and_renamed_while_the_agent_sleeps_is_read",
    ),
    Mutant(
        "taildir-proof",
        "a proof covers the bytes that were read, not the present ones",
        TAILDIR,
        "sources/taildir/tail.py",
        "offset, length, head = self.offset + len(data), self.checkpoint.length, self.checkpoint.head",
        "return FileCheckpoint.of_file(self.fd, self.offset + len(data))",
        f"{STORIES}::test_a_file_truncated_between_read_and_proof_is_read_from_its_start",
    ),
)

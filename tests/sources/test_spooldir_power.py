"""Source `spooldir` on a disk with power failures: files may be read again, no line is skipped."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.fixtures.examples import some
from tests.fixtures.power import Disk, Note, is_needed, losses, survives
from tests.sources.spooldir_running import make, put, read_anew

SITES = (
    "append_to_file < Tracker.save",
    "replace_file < SkippedFiles.save",
    "replace_file < Tracker._rewrite",
    "sync_directory < make_directory < SpooldirSource.open",
    "sync_directory < replace_file < SkippedFiles.save",
    "sync_directory < replace_file < Tracker._rewrite",
)
UNSEEN = "sync_directory < replace_file < SkippedFiles.save"
"""Skipped files are recognised by their inodes, which the copies of the directory do not have."""
SEEDS = 10
POLICIES = ({}, {"deletePolicy": "immediate"}, {"trackingPolicy": "tracker_dir"})


def campaign(directory: Path, seed: int, ignored: str = "") -> None:
    chances = random.Random(seed)
    spool, number, lines = directory / "live" / "spool", 0, dict[str, list[bytes]]()
    options = {"batchSize": "2", **POLICIES[seed % len(POLICIES)]}
    for file in range(6):
        name, count = f"f{file}", chances.randrange(1, 9)
        lines[name] = [b"%04d" % n for n in range(number, number + count)]
        number += count
        put(spool / name, b"".join(line + b"\n" for line in lines[name]), age=-file)
    with (spool / "f3").open("ab") as damaged:
        damaged.write(b"\xff\n")  # it is skipped
    times = {name: 1_700_000_000 + number for number, name in enumerate(lines)}
    os.utime(spool / "f3", (times["f3"], times["f3"]))
    os.chdir(spool.parent)
    with Disk(spool.parent, ignored) as disk:
        for _ in range(4):
            source = make(Path("spool"), **options)
            with disk.killing(chances.randrange(50)):
                source.open()
                for batch in source.poll():
                    bodies = batch.bodies.to_pylist()
                    disk.record_note(("in the channel", bodies))
                    source.stored(batch)
                    disk.record_note(("stored", bodies))
            source._exit_stack.close()
    assert disk.sites.keys() <= {*SITES}
    for count, (tree, changes) in enumerate(losses(disk, chances, 0.5)):
        path = directory / str(count)
        tree.write(path)
        for name, time in times.items():
            if (path / "spool" / name).exists():
                os.utime(path / "spool" / name, (time, time))
        notes = [note.what for note in changes if isinstance(note, Note)]
        delivered = {line for _, bodies in notes for line in bodies}
        stored = {line for step, bodies in notes if step == "stored" for line in bodies}
        os.chdir(path)
        reread = read_anew(Path("spool"), **options)
        for name, expected in lines.items():
            repeated = [line for line in reread if line in expected]
            assert {*expected} <= delivered | {*repeated}, f"lines of {name} are lost"
            is_unmarked = repeated == expected and {*expected} <= delivered  # the disk has lost its mark
            assert is_unmarked or not stored & {*repeated}, f"lines of {name} come again"
        shutil.rmtree(path)


@pytest.fixture(autouse=True)
def _back(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(memory)  # positions have relative paths, so that they are valid for copies too


def test_no_line_is_lost_by_a_loss_of_power(memory: Path) -> None:
    survives(campaign, memory, some(range(SEEDS), 4))


@pytest.mark.parametrize("site", [site for site in SITES if site != UNSEEN])
def test_each_sync_is_needed(memory: Path, site: str) -> None:
    is_needed(campaign, memory, site, range(10 * SEEDS))  # usually the first seeds find it

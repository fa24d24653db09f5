"""The source `spooldir` on a disk whose power fails: files may be read again, no line is passed over."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.fixtures.examples import some
from tests.fixtures.power import Disk, Said, is_needed, losses, survives
from tests.sources.spooldir_running import make, put, read_anew

SITES = (
    "append < Tracker.save",
    "replace < Leftovers.save",
    "replace < Tracker._rewrite",
    "sync_directory < make_directory < SpooldirSource.open",
    "sync_directory < replace < Leftovers.save",
    "sync_directory < replace < Tracker._rewrite",
)
UNSEEN = "sync_directory < replace < Leftovers.save"
"""Which files are left is known by their inodes, which the copies that are looked at do not have."""
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
        damaged.write(b"\xff\n")  # it is left
    times = {name: 1_700_000_000 + number for number, name in enumerate(lines)}
    os.utime(spool / "f3", (times["f3"], times["f3"]))
    os.chdir(spool.parent)
    with Disk(spool.parent, ignored) as disk:
        for _ in range(4):
            source = make(Path("spool"), **options)
            with disk.killing(chances.randrange(50)):
                source.open()
                for batch in source.look():
                    bodies = batch.bodies.to_pylist()
                    disk.say(("in the channel", bodies))
                    source.stored(batch)
                    disk.say(("stored", bodies))
            source._held.close()
    assert disk.sites.keys() <= {*SITES}
    for count, (tree, done) in enumerate(losses(disk, chances, 0.5)):
        place = directory / str(count)
        tree.write(place)
        for name, time in times.items():
            if (place / "spool" / name).exists():
                os.utime(place / "spool" / name, (time, time))
        said = [one.what for one in done if isinstance(one, Said)]
        seen = {line for _, these in said for line in these}
        stored = {line for what, these in said if what == "stored" for line in these}
        os.chdir(place)
        again = read_anew(Path("spool"), **options)
        for name, own in lines.items():
            repeated = [line for line in again if line in own]
            assert {*own} <= seen | {*repeated}, f"lines of {name} are lost"
            whole = repeated == own and {*own} <= seen  # the disk has forgotten that it was marked
            assert whole or not stored & {*repeated}, f"lines of {name} come again"
        shutil.rmtree(place)


@pytest.fixture(autouse=True)
def _back(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(memory)  # positions name files from here: they are found elsewhere, too


def test_no_line_is_lost_by_a_loss_of_power(memory: Path) -> None:
    survives(campaign, memory, some(range(SEEDS), 4))


@pytest.mark.parametrize("site", [site for site in SITES if site != UNSEEN])
def test_each_sync_is_needed(memory: Path, site: str) -> None:
    is_needed(campaign, memory, site, range(10 * SEEDS))  # the first find it, most times

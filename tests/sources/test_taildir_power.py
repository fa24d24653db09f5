"""Positions of `taildir` on a disk with power failures: lines may be repeated, none is skipped."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from flafka.sources.taildir import TaildirSource
from flafka.sources.taildir import cursors as cursors_module
from tests.fixtures.examples import some
from tests.fixtures.power import Disk, Note, is_needed, losses, survives
from tests.sources.taildir_running import append, bodies, make, start

SITES = (
    "append_to_file < PositionFile._append",
    "replace_file < PositionFile._rewrite",
    "replace_file < PositionFile.save",
    "sync_directory < make_directory < PositionFile._lock_directory",
    "sync_directory < replace_file < PositionFile._rewrite",
    "sync_directory < replace_file < PositionFile.save",
)
NOT_ALONE = (
    "replace_file < PositionFile.save",
    "sync_directory < replace_file < PositionFile._rewrite",
    "sync_directory < replace_file < PositionFile.save",
)
"""Without one of these the other, or the journal, has the positions."""
SEEDS = 5


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors_module, "_MIN_REWRITE_BYTES", 200)  # the journal is rewritten now and then


def let_go(source: TaildirSource) -> None:
    """End like a process: save nothing."""
    source._positions.save = lambda *_, **__: None  # type: ignore[method-assign]
    source.close()


def campaign(directory: Path, seed: int, ignored: str = "") -> None:
    chances = random.Random(seed)
    logs, home, number = directory / "logs", directory / "state", 0
    logs.mkdir(parents=True)
    home.mkdir()
    options = {"batchSize": "2", "positionFile": str(home / "a" / "taildir.json")}
    options["writePosInterval"] = "100000" if seed % 2 else "0"
    with Disk(home, ignored) as disk:
        for _ in range(4):
            source = make(directory, **options)
            with disk.killing(chances.randrange(60)):
                source.open()
                for _ in range(6):
                    for _ in range(chances.randrange(4)):
                        number += 1
                        append(logs / f"log.{chances.randrange(2)}", b"%04d\n" % number)
                    for batch in source.poll():
                        lines = batch.bodies.to_pylist()
                        disk.record_note(("in the channel", lines))
                        source.stored(batch)
                        disk.record_note(("saved", lines))
            let_go(source)
    assert disk.sites.keys() <= {*SITES}
    wanted = {line for path in logs.iterdir() for line in path.read_bytes().splitlines()}
    for count, (tree, changes) in enumerate(losses(disk, chances, 0.15)):
        state = directory / f"state-{count}"
        tree.write(state)
        notes = [note.what for note in changes if isinstance(note, Note)]
        delivered = {line for step, lines in notes if step == "in the channel" for line in lines}
        saved = {line for step, lines in notes if step == "saved" for line in lines}
        source = start(directory, **{**options, "positionFile": str(state / "a" / "taildir.json")})
        reread = bodies(source)
        source.close()
        assert {*reread} >= wanted - delivered, "lines are lost"
        assert not {*reread} & saved, "lines come again though their position was saved"
        assert len(reread) == len({*reread})
        shutil.rmtree(state)


def test_positions_survive_a_loss_of_power(memory: Path) -> None:
    survives(campaign, memory, some(range(SEEDS), 3))


@pytest.mark.parametrize("site", [site for site in SITES if site not in NOT_ALONE])
def test_each_sync_is_needed(memory: Path, site: str) -> None:
    is_needed(campaign, memory, site, range(10 * SEEDS))  # usually the first seeds find it


@pytest.mark.parametrize("suffix", ["", ".journal"])
def test_a_file_of_zeros_is_reported(memory: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    (memory / "logs").mkdir()
    append(memory / "logs" / "log.1", b"1\n2\n")
    source = start(memory)
    assert bodies(source) == [b"1", b"2"]
    source.close()
    path = memory / "positions" / f"taildir.json{suffix}"
    path.write_bytes(bytes(path.stat().st_size))
    append(memory / "logs" / "log.1", b"3\n")
    source = start(memory)
    assert bodies(source) == [b"3"]
    source.close()
    assert f"{path} holds zeros, as a loss of power leaves them" in caplog.text

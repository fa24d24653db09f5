"""File of dead letters on a disk with power failures: stored dead letters remain readable."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flafka.agent.runner.deadletters.reading import read_dead_letters
from flafka.agent.runner.deadletters.store import DeadLetter, FileDeadLetterStore
from flafka.plugins import Event
from tests.fixtures.examples import some
from tests.fixtures.power import Disk, Note, is_needed, losses, survives

SITES = (
    "FileDeadLetterStore._append",
    "sync_directory < FileDeadLetterStore._append",
    "sync_directory < make_directory < FileDeadLetterStore._append",
)
SEEDS = 20


def dead_letter(number: int) -> DeadLetter:
    return DeadLetter("a1.sinks.k1", None, Event(b"%d" % number * 50), "a reason", 1, name=f"l{number}")


def campaign(directory: Path, seed: int, ignored: str = "") -> None:
    chances = random.Random(seed)
    home = directory / "live"
    home.mkdir(parents=True)
    number = 0
    with Disk(home, ignored) as disk:
        for _ in range(4):
            with disk.killing(chances.randrange(20)):
                kept = FileDeadLetterStore(home / "state" / "flafka" / "letters.jsonl")
                for _ in range(4):
                    number += 2
                    kept.put([dead_letter(number), dead_letter(number + 1)])
                    disk.record_note((f"l{number}", f"l{number + 1}"))
                    kept.mark_replayed([f"l{number}"])
                    disk.record_note((f"l{number} replayed",))
    assert disk.sites.keys() <= {*SITES}
    for count, (tree, done) in enumerate(losses(disk, chances)):
        copy = directory / str(count)
        tree.write(copy)
        known = {what for note in done if isinstance(note, Note) for what in note.what}
        kept = FileDeadLetterStore(copy / "state" / "flafka" / "letters.jsonl")
        kept.put([dead_letter(0)])
        letters = [*read_dead_letters(kept)]
        assert {letter.name for letter in letters} >= {what for what in known if " " not in what} | {"l0"}
        assert {f"{letter.name} replayed" for letter in letters if letter.replayed} >= {
            what for what in known if " " in what
        }
        assert all(letter.event == dead_letter(int(letter.name[1:])).event for letter in letters)


def test_stored_dead_letters_survive_a_loss_of_power(memory: Path) -> None:
    survives(campaign, memory, some(range(SEEDS), 5))


@pytest.mark.parametrize("site", SITES)
def test_each_sync_is_needed(memory: Path, site: str) -> None:
    is_needed(campaign, memory, site, range(10 * SEEDS))  # usually the first seeds find it

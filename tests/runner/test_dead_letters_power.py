"""The file of dead letters on a disk whose power fails: what was kept is there, and can be read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flafka.agent.runner.deadletters.letters import DeadLetter, FileDeadLetters
from flafka.agent.runner.deadletters.stored import read
from flafka.plugins import Event
from tests.fixtures.examples import some
from tests.fixtures.power import Disk, Said, is_needed, losses, survives

SITES = (
    "FileDeadLetters._append",
    "sync_directory < FileDeadLetters._append",
    "sync_directory < make_directory < FileDeadLetters._append",
)
SEEDS = 20


def letter(number: int) -> DeadLetter:
    return DeadLetter("a1.sinks.k1", None, Event(b"%d" % number * 50), "a reason", 1, name=f"l{number}")


def campaign(directory: Path, seed: int, ignored: str = "") -> None:
    chances = random.Random(seed)
    home = directory / "live"
    home.mkdir(parents=True)
    number = 0
    with Disk(home, ignored) as disk:
        for _ in range(4):
            with disk.killing(chances.randrange(20)):
                kept = FileDeadLetters(home / "state" / "flafka" / "letters.jsonl")
                for _ in range(4):
                    number += 2
                    kept.put([letter(number), letter(number + 1)])
                    disk.say((f"l{number}", f"l{number + 1}"))
                    kept.mark([f"l{number}"])
                    disk.say((f"l{number} replayed",))
    assert disk.sites.keys() <= {*SITES}
    for count, (tree, done) in enumerate(losses(disk, chances)):
        place = directory / str(count)
        tree.write(place)
        known = {what for one in done if isinstance(one, Said) for what in one.what}
        kept = FileDeadLetters(place / "state" / "flafka" / "letters.jsonl")
        kept.put([letter(0)])
        found = [*read(kept)]
        assert {one.letter for one in found} >= {what for what in known if " " not in what} | {"l0"}
        assert {f"{one.letter} replayed" for one in found if one.replayed} >= {what for what in known if " " in what}
        assert all(one.event == letter(int(one.letter[1:])).event for one in found)


def test_what_was_kept_survives_a_loss_of_power(memory: Path) -> None:
    survives(campaign, memory, some(range(SEEDS), 5))


@pytest.mark.parametrize("site", SITES)
def test_each_sync_is_needed(memory: Path, site: str) -> None:
    is_needed(campaign, memory, site, range(10 * SEEDS))  # the first find it, most times

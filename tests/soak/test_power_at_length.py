"""Long version of the tests of losses of power: `./dev soak`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from flafka.channels.file import FileChannel
from flafka.channels.spillable import SpillableMemoryChannel
from tests.channels import test_file_power
from tests.fixtures.power import survives
from tests.runner import test_dead_letters_power
from tests.sources import test_spooldir_power, test_taildir_power

SEEDS = int(os.environ.get("FLAFKA_SOAK_POWER", "100"))


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with mock.patch.multiple(os, fsync=lambda _: None, fdatasync=lambda _: None):  # the recorder's own syncs stay
        yield


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [FileChannel, SpillableMemoryChannel])
def test_a_file_channel_survives_losses_of_power(memory: Path, figures: list[str], kind: type[FileChannel]) -> None:
    states = sum(survives(partial(test_file_power.campaign, kind=kind), memory, range(1000, 1000 + SEEDS)))
    figures.append(
        f"channel {kind.type_name}: {SEEDS} disks, each of which lost its power three times, "
        f"looked at in {states} states"
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "campaign",
    [test_dead_letters_power.campaign, test_spooldir_power.campaign, test_taildir_power.campaign],
    ids=["dead letters", "spooldir", "taildir"],
)
def test_files_of_sources_and_dead_letters_survive_losses_of_power(
    memory: Path, campaign: Callable[[Path, int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(memory)  # as that of spooldir uses other directories
    survives(campaign, memory, range(1000, 1000 + SEEDS))

"""The long version of tests/channels/test_file_power.py: `./dev soak`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from channels.file import FileChannel
from channels.spillable import SpillableMemoryChannel
from tests.channels.test_file_power import campaign

SEEDS = int(os.environ.get("FLAFKA_SOAK_POWER", "100"))


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with mock.patch.multiple(os, fsync=lambda _: None, fdatasync=lambda _: None):  # the real power stays
        yield


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [FileChannel, SpillableMemoryChannel])
def test_a_file_channel_survives_losses_of_power(tmp_path: Path, figures: list[str], kind: type[FileChannel]) -> None:
    states = 0
    for seed in range(1000, 1000 + SEEDS):
        print(f"seed {seed}")
        states += campaign(tmp_path / str(seed), seed, kind=kind)
        shutil.rmtree(tmp_path / str(seed))
    figures.append(
        f"channel {kind.type_name}: {SEEDS} disks, each of which lost its power three times, "
        f"looked at in {states} states"
    )

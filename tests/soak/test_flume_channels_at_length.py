"""Files of Flume's file channel after many stories: our import equals Flume's own reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.filechannels import FileChannels, Story

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("servers")]


def test_our_import_agrees_with_flume_in_many_stories(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    with FileChannels(tmp_path / "program") as flumes:
        for seed in range(1_000, 1_300):
            Story(flumes, tmp_path / str(seed), seed).run(steps=300)

from __future__ import annotations

import pytest

from sources import pace
from sources.pace import MAX_WAIT, PAUSE, Pace


class Clock:
    """Stands until it is told otherwise."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def test_what_comes_after_a_quiet_moment_goes_at_once(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    assert ours.patience() == 0
    assert ours.due(quiet=True)


def test_what_follows_soon_goes_together(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    ours.end()
    clock.now += PAUSE / 4
    ours.begin()
    assert ours.patience() == pytest.approx(PAUSE * 3 / 4)
    assert not ours.due(quiet=True)
    clock.now += ours.patience()
    assert ours.patience() == 0
    assert ours.due(quiet=True)


def test_a_batch_fills_while_there_is_more_to_read(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    clock.now += MAX_WAIT * 0.9
    assert not ours.due(quiet=False)
    clock.now += MAX_WAIT * 0.2
    assert ours.due(quiet=False)

"""Each real file that real Flume 1.11 can run with these servers, run by both: the same arrives of the same input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.services import ServiceError
from tests.conformance.arrival import Run
from tests.conformance.outputs import compared
from tests.interop.arrivals import EVENTS, FlumeRun, runs_in_flume
from tests.system.arrivals import Shared, agents, shared

__all__ = ["shared"]

AT_ONCE = 3


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_real_flume_writes_the_same(servers: None, shared: Shared, tmp_path: Path, figures: list[str]) -> None:
    pairs = {}
    for real in agents():
        if runs_in_flume(real.spec):
            name = f"{real.id}-{real.spec.name}"
            ours = Run(*real, tmp_path / name, shared, events=EVENTS)
            theirs = FlumeRun(*real, tmp_path / f"{name}-flume", shared, events=EVENTS, mark="-flume")
            pairs[name] = ours, theirs
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = dict(zip(pairs, pool.map(lambda pair: _told(*pair), pairs.values()), strict=True))
    figures += [f"{name}: {difference[:600]}" for name, each in told.items() for difference in each[:4]]
    figures.append(f"{len(pairs)} agents of real files beside Flume; {sum(not each for each in told.values())} alike")
    assert not {name: each for name, each in told.items() if each}


def _told(ours: Run, theirs: Run) -> list[str]:
    told = []
    for who, run in (("ours", ours), ("Flume", theirs)):
        try:
            run.execute()
            told += [f"{who}: {difference}" for difference in run.differences()]
        except (AssertionError, ServiceError) as e:
            told.append(f"{who}: {str(e)[-1500:]}")
    return told or compared(ours, theirs, ("ours", "Flume"))

"""Runs a test on a model, within a simulation, where its fixture `world` is one."""

from collections.abc import Iterator

import pytest

from tests.simulator.processes import Process
from tests.simulator.running import run_in
from tests.simulator.world import World, simulation


@pytest.fixture(params=["model", "real"])
def world(request: pytest.FixtureRequest) -> Iterator[World | None]:
    """The simulation; None where real servers answer."""
    yield from made(request.param)


def made(side: str) -> Iterator[World | None]:
    """The simulation for that side of a test."""
    if side == "real":
        yield None
        return
    with simulation(World(1)) as world:
        yield world


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    world = pyfuncitem.funcargs.get("world")
    if world is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run_in(world, Process(world, "test"), lambda: pyfuncitem.obj(**given))
    return True

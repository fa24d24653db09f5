"""Running the project's code within a simulation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from tests.simulator.processes import Process
from tests.simulator.threads import REPLACED
from tests.simulator.world import World


@contextlib.contextmanager
def replaced(*modules: ModuleType, imported: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Have these modules use simulated time and threads, and lazy imports find what `imported` says."""
    before = [
        (module, name, value) for module in modules for name, value in vars(module).items() if id(value) in REPLACED
    ]
    hidden = {name: sys.modules.get(name) for name in imported or {}}
    for module, name, value in before:
        setattr(module, name, REPLACED[id(value)])
    sys.modules.update(imported or {})
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        for name, original in hidden.items():
            if original is None:
                del sys.modules[name]
            else:
                sys.modules[name] = original


def run_in(world: World, process: Process, body: Callable[[], Any]) -> Any:
    """Run `body` on a thread of a process and return its result; None if the process is killed first."""
    outcome: list[Any] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            outcome.append(body())
        except Exception as e:  # is raised below
            errors.append(e)

    def main() -> None:
        thread = process.spawn(work, "main")
        process.ended.append(thread.finished.fire)
        if not thread.done and process.alive:
            thread.finished.wait()

    world.run(main)
    if errors:
        raise errors[0]
    return outcome[0] if outcome else None

"""One request to a modelled server and its answer, with all that may become of the two."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from tests.simulator.faults import Kind
from tests.simulator.world import world

R = TypeVar("R")

KINDS = (Kind.LOST, Kind.UNANSWERED, Kind.LATE, Kind.DOUBLED)


def exchange(
    what: str,
    execute: Callable[[], R],
    lost: Callable[[bool], Exception],
    *,
    timeout: float,
    refuse: Callable[[int], R] | None = None,
    cut: Callable[[], None] | None = None,
    away: bool = False,
    seconds: float = 0.01,
    on: str = "",
) -> R:
    """Execute a request on the server and return the answer, in a call named `what` that takes `seconds`.

    `execute` is the work of the server; it must not wait. `lost` makes the error of a connection that was reset
    (True), or of an answer that did not come within `timeout` seconds (False). `refuse` makes the answer of a busy
    server, given the number of the call.

    `cut` is the work of a server that gets only the beginning of the request, as from a caller that dies. With `away`
    no server listens. `on` is the path of the request.

    Choices depend on the number of the call alone, so that a fault that is given again is the same.
    """
    here = world()
    process = here.process
    number = process.calls[what] + 1
    on_death = cut if cut is not None and number % 2 else None
    if on_death is not None:
        process.ended.append(on_death)
    try:
        fault = here.call(what, *KINDS, *((Kind.REFUSED,) if refuse is not None else ()), seconds=seconds, on=on)
    finally:
        if on_death is not None:
            process.ended.remove(on_death)
    if away:
        raise lost(True)
    if fault is None:
        return execute()
    kind, reset = fault.kind, number % 2 == 0
    if kind is Kind.REFUSED and refuse is not None:
        return refuse(number)
    if kind is Kind.LATE:
        here.late(timeout + fault.seconds, lambda: _ignored(execute))
        here.sleep(timeout)
        raise lost(False)
    if kind in (Kind.LOST, Kind.UNANSWERED):
        if kind is Kind.UNANSWERED:
            _ignored(execute)
        elif cut is not None and number // 2 % 2:
            cut()
        if not reset:
            here.sleep(timeout)
        raise lost(reset)
    if kind is Kind.DOUBLED:
        _ignored(execute)
    try:
        return execute()
    finally:
        here.answered(fault)


def _ignored(execute: Callable[[], object]) -> None:
    """Nobody sees the answer, or the error."""
    with contextlib.suppress(Exception):
        execute()

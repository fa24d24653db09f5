"""Recorded function calls of an agent's processes, and the functions that one batch passes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.walks.statements import ROOT, Function, function_at

RECORDER = Path(__file__).parent / "recorder"
OBSERVERS = ("agent/monitoring/", "agent/audit/", "agent/logs.py")
"""Modules that only observe. The audit is off."""
OBSERVING_THREADS = frozenset({"history", "kafka watch", "metrics", "taps", "tap"})
"""Threads of `agent/monitoring`, which read the gauges of components."""

Window = tuple[float, float]
"""Start and end, by the monotonic clock, which all processes of a machine share."""


class Call(NamedTuple):
    """First call of a function: its time, process (the command) and thread."""

    time: float
    process: str
    thread: str


class Thread(NamedTuple):
    """A thread of a recorded process. Successive thread pools count as one."""

    process_id: str
    name: str


Calls = Mapping[Function, Call]


def environment(directory: Path, paths: str = "") -> dict[str, str]:
    """Return the variables that make all Python processes of an agent record their calls into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "PYTHONPATH": ":".join(filter(None, [str(RECORDER), paths])),
        "FLAFKA_WALKS_DIRECTORY": str(directory),
        "FLAFKA_WALKS_ROOT": str(ROOT),
    }


def is_complete(directory: Path, end: float) -> bool:
    """Return True once each process of a recording that still runs has written its calls up to a time."""
    return all(
        not Path(f"/proc/{file.stem}").exists() or max((line["until"] for line in _lines(file)), default=0) > end
        for file in directory.iterdir()
    )


@dataclass(frozen=True)
class Walk:
    """Functions that one batch passes on its way, in the order of their first call."""

    name: str
    batch: Calls
    """Functions that a thread runs for batches alone."""
    loops: Calls
    """Other functions of these threads, which also run while the agent is idle."""

    @property
    def functions(self) -> Calls:
        """Functions of both kinds."""
        return _in_order({**self.batch, **self.loops})

    def without(self, other: Walk, name: str) -> Walk:
        """Return the part of this walk that is not in another one."""
        known = other.functions.keys()
        batch = {function: call for function, call in self.batch.items() if function not in known}
        loops = {function: call for function, call in self.loops.items() if function not in known}
        return Walk(name, batch, loops)


def walk(name: str, directory: Path, batches: Sequence[Window], idle: Window) -> Walk:
    """Return the walk of a recording: the functions that run in each batch.

    A timer that expires during one batch is no part of it. Neither is a thread that does the same when idle, such as
    the one that polls the configuration file.
    """
    idle_calls, first, *later = (_calls_within(directory, window) for window in (idle, *batches))
    called = {key: call for key, call in first.items() if all(key in calls for calls in later)}
    batch_threads = {thread for thread, function in called.keys() - idle_calls.keys()}
    batch: dict[Function, Call] = {}
    loops: dict[Function, Call] = {}
    for (thread, function), call in sorted(called.items(), key=lambda item: item[1].time):
        if (thread, function) not in idle_calls:
            batch.setdefault(function, call)
        elif thread in batch_threads:
            loops.setdefault(function, call)
    return Walk(name, batch, {function: call for function, call in loops.items() if function not in batch})


def _calls_within(directory: Path, window: Window) -> dict[tuple[Thread, Function], Call]:
    """Return the functions that threads called within a window, each with its first call."""
    calls: dict[tuple[Thread, Function], Call] = {}
    for file in directory.iterdir():
        for line in _lines(file):
            process = " ".join(Path(word).name for word in line["process"])
            for time, *code, name in line["calls"]:
                if name in OBSERVING_THREADS or not window[0] <= time <= window[1]:
                    continue
                function = function_at(*code)
                if function is not None and not function.file.startswith(OBSERVERS):
                    thread = Thread(file.stem, re.sub(r"^ThreadPoolExecutor-\d+_\d+$", "ThreadPoolExecutor", name))
                    calls.setdefault((thread, function), Call(time, process, name))
    return calls


def _in_order(calls: Calls) -> Calls:
    return dict(sorted(calls.items(), key=lambda item: item[1].time))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of one process; the last line may be incomplete, and is left out then."""
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


class Size(NamedTuple):
    """Amount of code."""

    files: int
    functions: int
    statements: int


def size(functions: Collection[Function]) -> Size:
    """Return the size of these functions."""
    return Size(len({f.file for f in functions}), len(functions), sum(f.statements for f in functions))

"""Recorded function calls of an agent's processes, and the functions that one batch passes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.walks.statements import ROOT, Function, function_at

RECORDER = Path(__file__).parent / "recorder"
OBSERVERS = ("agent/monitoring/", "agent/audit/", "agent/logs.py")
"""Modules that only observe; the audit is off."""
OBSERVING_THREADS = frozenset({"history", "kafka watch", "metrics", "taps", "tap"})
"""Threads of `agent/monitoring`, which ask components for their gauges."""

Window = tuple[float, float]
"""Start and end, by the monotonic clock, which all processes of a machine share."""


class Call(NamedTuple):
    """First call of a function within windows: time, process by its command, and thread."""

    time: float
    process: str
    thread: str


Calls = Mapping[Function, Call]


def environment(directory: Path, paths: str = "") -> dict[str, str]:
    """Variables with which all Python processes of an agent record their calls into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "PYTHONPATH": ":".join(filter(None, [str(RECORDER), paths])),
        "FLAFKA_WALKS_DIRECTORY": str(directory),
        "FLAFKA_WALKS_ROOT": str(ROOT),
    }


def complete(directory: Path, end: float) -> bool:
    """Return True once each process of a recording that still runs has written its calls up to a time."""
    return all(
        not Path(f"/proc/{file.stem}").exists() or max((line["until"] for line in _lines(file)), default=0) > end
        for file in directory.iterdir()
    )


def calls_within(directory: Path, windows: Sequence[Window]) -> dict[Function, Call]:
    """Return the functions called within the windows, in the order of their first call."""
    found: dict[Function, Call] = {}
    for file in directory.iterdir():
        for line in _lines(file):
            process = " ".join(Path(word).name for word in line["process"])
            for time, *code, thread in line["calls"]:
                if thread in OBSERVING_THREADS or not any(start <= time <= end for start, end in windows):
                    continue
                function = function_at(*code)
                if function is None or function.file.startswith(OBSERVERS):
                    continue
                if function not in found or time < found[function].time:
                    found[function] = Call(time, process, thread)
    return dict(sorted(found.items(), key=lambda item: item[1].time))


def _lines(file: Path) -> Iterator[dict]:
    """Yield what a process has written; the last line may be incomplete."""
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


@dataclass(frozen=True)
class Walk:
    """Functions that one batch passes on its way."""

    name: str
    batch: Calls
    """Functions that run for batches alone."""
    loops: Calls
    """Functions that also run while nothing comes."""

    @property
    def functions(self) -> dict[Function, Call]:
        """All of them, in the order of their first call."""
        return dict(sorted({**self.batch, **self.loops}.items(), key=lambda item: item[1].time))

    def beyond(self, other: Walk, name: str) -> Walk:
        """Return what this walk passes and another does not."""
        known = other.functions.keys()
        batch = {function: call for function, call in self.batch.items() if function not in known}
        loops = {function: call for function, call in self.loops.items() if function not in known}
        return Walk(name, batch, loops)


def walk(name: str, directory: Path, batches: Sequence[Window], idle: Sequence[Window]) -> Walk:
    """Return the walk that a recording shows."""
    called, ran = calls_within(directory, batches), calls_within(directory, idle)
    return Walk(
        name,
        {function: call for function, call in called.items() if function not in ran},
        {function: call for function, call in called.items() if function in ran},
    )


class Size(NamedTuple):
    """Amount of code that somebody has to read."""

    files: int
    functions: int
    statements: int


def size(functions: Collection[Function]) -> Size:
    """Return the size of these functions."""
    return Size(len({f.file for f in functions}), len(functions), sum(f.statements for f in functions))

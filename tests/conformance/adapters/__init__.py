"""Adapters, which run a conformance case on our component.

One module a suite, named by the suite file (`bucket_path.json` → `adapters/bucket_path.py`). It holds one function
for each `op` of that file:

    def op_bucket_path(input: dict[str, Any]) -> Any:
        return {"path": ...}        # Compares equal to the case's `expected`.

- The op's name is the case's `op`; a case without one uses the suite's name (`netcat_wire` → `op_netcat_wire`).
- `input` is the case's own `input` (a copy: it may be changed). Files named in it lie under `adapters.cases()`.
- Return a value shaped like `expected`; compared with `==` after both went through `normalise(op, value)`, where
  the module defines it, else unchanged. Sort "order free" lists there, and drop values that no case can fix
  (process ids, messages in Java's words).
- Where we differ from Flume in every case of a suite, a function `agree(got, expected)` of the module replaces
  `==`: it states the relation of the two.
- Where Flume raises, `expected` has `{"error": "<Java's exception>", "message": ...}`: return the like from an
  error of ours, never by inspecting the single case.
- An adapter recognises no case by its id and no input by its value: it must also run new cases.

A suite without a module here is one plain skip. Intended differences go into `../deviations.toml`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from flafka.plugins import Components

REPOSITORY = Path(__file__).parents[3]


@cache
def components() -> Components:
    """Return all installed components: the search takes longer than a case."""
    return Components()


def cases() -> Path:
    """Return the directory of suite files: `FLUME_CASES`, relative to the repository."""
    return (REPOSITORY / os.environ.get("FLUME_CASES", "../shared/conformance/flume")).resolve()

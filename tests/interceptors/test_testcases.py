"""Cases of interceptors as data: `input.jsonl` are the events of one batch, `expected.jsonl` the resulting ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.fixtures.testcases import Case, describe, each_case, metrics


@each_case("interceptor")
def test_case(directory: Path, tmp_path: Path) -> None:
    case = Case(directory, tmp_path)
    case.compare(_intercepted(case))


def _intercepted(case: Case) -> Iterator[dict[str, Any]]:
    """Yield the resulting events and the dead letters in the order of the input, then the metrics."""
    with closing(case.make("interceptor")) as interceptor:
        interceptor.open()
        passed = interceptor.intercept(case.batch())
        outputs = {id: describe(event) for id, event in zip(passed.ids(), passed, strict=True)}
        for batch, reasons in interceptor.take_rejected():
            for id, event, reason in zip(batch.ids(), batch, reasons, strict=True):
                outputs[id] = {**describe(event), "rejected": reason}
        yield from (outputs[id] for id in sorted(outputs))
        yield from metrics(interceptor)

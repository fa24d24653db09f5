"""File of sample events in place of a channel; arguments of a failed function."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flafka.agent.runner.spark.sample import read_samples
from flafka.plugins import Event, FlafkaError
from flafka.sinks.spark.udferrors import (
    MAX_NOTE_CHARACTERS,
    NOTE_PREFIX,
    annotate_arguments,
    annotate_batches,
)


def test_a_line_is_a_body_unless_it_has_body_and_headers(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    file.write_bytes(
        b'plain \xff\r\n\n{"user": "eve"}\n{"body": "x"}\n{"headers": {"host": "a", "n": 1}, "body": "y"}\n'
        b'{"headers": {}, "body": {"user": "amy"}}\n{"headers": 1, "body": ""}'
    )
    assert read_samples(file) == [
        Event(b"plain \xff"),
        Event(b'{"user": "eve"}'),
        Event(b'{"body": "x"}'),
        Event(b"y", {"host": "a", "n": "1"}),
        Event(b'{"user": "amy"}'),
        Event(b'{"headers": 1, "body": ""}'),
    ]


def test_a_file_without_events_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "samples").write_bytes(b"\n\n")
    with pytest.raises(FlafkaError, match="is empty"):
        read_samples(tmp_path / "samples")
    with pytest.raises(FlafkaError, match="cannot be read: No such file"):
        read_samples(tmp_path / "nowhere")


def test_the_arguments_of_a_function_are_reported_and_cut() -> None:
    with pytest.raises(ZeroDivisionError) as failed:
        annotate_arguments(lambda a, b: a // b)(1, b=0)
    assert failed.value.__notes__ == [f"{NOTE_PREFIX}1, b=0"]
    with pytest.raises(TypeError) as refused:
        annotate_arguments(int)(["x" * 1000])
    assert len(refused.value.__notes__[0]) == len(NOTE_PREFIX) + MAX_NOTE_CHARACTERS + 2
    assert annotate_arguments(len)("abc") == 3


def data_frame(rows: list[Any]) -> Any:
    import pandas as pd  # other workers of a parallel run do not need it

    return pd.DataFrame(rows)


@pytest.mark.parametrize("to_frame", [data_frame, pa.RecordBatch.from_pylist], ids=["DataFrame", "from_pylist"])
def test_the_first_row_of_the_failed_batch_is_reported(to_frame: Callable[[list[Any]], Any]) -> None:
    def counts(key: tuple[str], batches: Iterator[Any]) -> Iterator[int]:
        for batch in batches:
            yield 1 // (len(batch) - 1)

    frames = [to_frame([{"n": 1}, {"n": 2}]), to_frame([{"n": 3}])]
    got = annotate_batches(counts)(("eve",), iter(frames))
    assert next(got) == 1
    with pytest.raises(ZeroDivisionError) as failed:
        next(got)
    assert failed.value.__notes__ == [f"{NOTE_PREFIX}('eve',), rows that begin with {{'n': 3}}"]
    with pytest.raises(ZeroDivisionError) as empty:
        [*annotate_batches(lambda batches: (1 // 0 for _ in batches))(iter([to_frame([{"n": 1}])[:0]]))]
    assert empty.value.__notes__ == [f"{NOTE_PREFIX}no rows"]

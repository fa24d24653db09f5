"""Spark sink: mistakes of processors, and results of good ones."""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
import uuid
from datetime import datetime, time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import fastavro
import pytest
from pyspark import SparkContext

from flafka.agent import testing
from flafka.agent.testing import run_processor, session
from flafka.plugins import Event, FlafkaError, Problem
from flafka.plugins.dataframe import avro_body
from flafka.sinks.spark import SparkSink, SparkSinkConfig
from flafka.sinks.spark.loading import load_processor
from flafka.sinks.spark.sink import as_kafka_records, check_frames
from tests.processors import logins

PROCESSORS = str(Path(logins.__file__).parent)


def problems(**properties: str) -> list[str]:
    texts = {"processor": "logins:both", "processor.path": PROCESSORS, "output.a.type": "console"}
    texts |= {name.replace("__", "."): value for name, value in properties.items()}
    return [f"{p.option}: {p.message}" for p in SparkSinkConfig.parse(texts)[1]]


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ("logins", "must be module:function, not 'logins'"),
        ("logns:both", f"there is no module logns in {PROCESSORS} or on Python's path"),
        ("logins:boht", "module logins has no 'boht', did you mean 'both'?"),
        ("logins:SCHEMA", "logins:SCHEMA is no function"),
        (
            "logins:one_argument",
            "logins:one_argument must take two arguments, the events and its options: "
            "def one_argument(events, options), not def one_argument(events)",
        ),
        ("lacking:f", "module lacking cannot be imported: No module named 'no_such_module'"),
        ("broken:f", "module broken cannot be imported: ZeroDivisionError: division by zero (broken.py, line 3)"),
    ],
)
def test_an_invalid_processor_is_reported_before_the_start(processor: str, message: str) -> None:
    assert problems(processor=processor) == [f"processor: {message}"]


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"output__a__type": "kafak"}, "output.a.type: unknown output type 'kafak', did you mean 'kafka'?"),
        ({"output__b__topic": "t"}, "output.b.type: is required"),
        ({"output__a__type": "kafka"}, "output.a.topic: is required"),
        (
            {"output__a__type": "kafka", "output__a__topic": "a b"},
            "output.a.topic: 'a b' must consist of A-Z, a-z, 0-9, '.', '_' and '-', and has ' '",
        ),
        (
            {"output__a__type": "kafka", "output__a__topic": "__consumer_offsets"},
            "output.a.topic: must not be '__consumer_offsets', an internal topic of the brokers: name another topic",
        ),
        (
            {"output__a__type": "parquet", "output__a__path": "/x", "output__a__mode": "update"},
            "output.a.mode: must be append, as files cannot be changed",
        ),
        (
            {"checkpoint": "webhdfs://n:9870/x"},
            "checkpoint: must be hdfs://host:port/…, not 'webhdfs://n:9870/x': the Hadoop client in pyspark cannot "
            "use WebHDFS",
        ),
        (
            {"output__type": "kafka"},
            "output.type: is not understood; expected output.<name>.<option>, as output.type.type",
        ),
    ],
)
def test_invalid_outputs_are_refused(properties: dict[str, str], message: str) -> None:
    assert problems(**properties) == [message]


EARLY = {
    "udf": '@F.udf("string")\ndef upper(text):\n    return text.upper()\n',
    "pandas_udf": '@F.pandas_udf("string")\ndef same(texts: pd.Series) -> pd.Series:\n    return texts\n',
    "col": 'COLUMN = F.col("body")\n',
}
"""Lines at the top of a module that PySpark runs only within a session."""


@pytest.mark.parametrize("kind", EARLY)
def test_a_module_that_needs_a_session_for_its_import_gets_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    module = f"early_{kind}"
    head = f"import pandas as pd\nfrom pyspark.sql import functions as F\n\n{EARLY[kind]}\n"
    (tmp_path / f"{module}.py").write_text(f"{head}def f(events, options):\n    return events\n")
    texts = {"processor": f"{module}:f", "processor.path": str(tmp_path), "output.a.type": "console"}
    config, problems = SparkSinkConfig.parse(texts)
    assert problems == []
    assert config is not None
    (note,) = pickle.loads(pickle.dumps(config)).warnings()
    assert note == Problem(
        "processor",
        f"is checked only when the agent starts: module {module} needs a Spark session when it is imported "
        f"({module}.py, line 4)",
        is_note=True,
    )


def test_an_assertion_of_a_module_is_reported_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    (tmp_path / "asserting.py").write_text("assert 1 > 2\n")
    (problem,) = problems(processor="asserting:f", processor__path=str(tmp_path))
    assert problem == "processor: module asserting cannot be imported: AssertionError:  (asserting.py, line 1)"


@pytest.mark.usefixtures("spark_session")
def test_a_module_with_a_udf_of_a_text_type_is_imported_within_a_session(tmp_path: Path) -> None:
    (tmp_path / "udfs.py").write_text(
        f"from pyspark.sql import functions as F\n\n{EARLY['udf']}\n"
        'def f(events, options):\n    return events.select(upper(F.col("body").cast("string")).alias("body"))\n'
    )
    session()
    assert [row.body for row in run_processor(load_processor("udfs:f", str(tmp_path)), [Event(b"a")])] == ["A"]


def test_two_modules_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "namesake.py").write_text(f"def where(events, options):\n    return {folder!r}\n")
    for folder in ("a", "b", "a", "a"):
        assert load_processor("namesake:where", str(tmp_path / folder))(None, {}) == folder
    assert load_processor("namesake:where", str(tmp_path / "a")) is load_processor(
        "namesake:where", str(tmp_path / "a")
    )
    assert load_processor("namesake:where", PROCESSORS)(None, {}) == "a"  # the module has none


def test_spark_s_workers_import_the_modules_of_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[Any] = []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(testing, "start_session", lambda *words: arguments.extend(words) or (MagicMock(), None))
    monkeypatch.setattr(testing, "atexit", MagicMock())
    session.__wrapped__()
    assert str(tmp_path) in arguments[3]
    assert not [path for path in arguments[3] if path.startswith(sys.prefix)]


def login(user: str, clock: str, outcome: str = "failed") -> Event:
    return Event(json.dumps({"user": user, "outcome": outcome, "at": f"2024-01-01T{clock}"}).encode())


@pytest.mark.usefixtures("spark_session")
def test_windows_close_and_late_events_are_dropped() -> None:
    rows = run_processor(
        logins.failures,
        [login("eve", "10:00:01"), login("eve", "10:00:30"), login("bob", "10:00:02"), Event(b"no json \xff")],
        [login("eve", "10:00:59"), login("eve", "10:01:30", "ok"), login("amy", "10:02:00")],
        [login("joe", "10:02:30")],
        [login("eve", "10:00:58"), login("amy", "10:03:30")],
        options={"limit": "2"},
    )
    assert [(row.user, row["count"]) for row in rows] == [("eve", 3)]


@pytest.mark.usefixtures("spark_session")
def test_the_example_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/processors.md").read_text("utf-8")
    processor, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(processor + test.replace("from logins import failures", ""), names)
    names["test_two_failures_are_enough"]()


@pytest.mark.usefixtures("spark_session")
def test_streams_are_joined() -> None:
    def event(kind: str, id: str, seconds: int) -> Event:
        return Event(f"{kind} {id}".encode(), {"kind": kind, "id": id, "timestamp": str(seconds * 1000)})

    rows = run_processor(
        logins.joined,
        [event("request", "1", 100), event("request", "2", 100)],
        [event("answer", "1", 104), event("answer", "2", 106), event("answer", "3", 106)],
    )
    assert [(row.id, bytes(row.answer)) for row in rows] == [("1", b"answer 1")]


@pytest.mark.usefixtures("spark_session")
def test_avro_bodies() -> None:
    order = {"id": 7, "note": None, "lines": [{"price": 1.5}]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(logins.ORDER), order)
    rows = run_processor(logins.orders, [Event(body.getvalue()), Event(body.getvalue() + b"x"), Event(b"\xff")])
    assert [row.order and row.order.asDict() for row in rows] == [order, None, None]


@pytest.mark.usefixtures("spark_session")
def test_logical_types_of_avro_that_spark_lacks_become_their_base_types() -> None:
    id, moment = uuid.uuid4(), datetime(2024, 1, 1, 10, 0, 1)
    visit = {"id": id, "time": time(0, 0, 2), "local": moment, "day": moment.date()}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(logins.VISIT), visit)
    (row,) = run_processor(logins.visits, [Event(body.getvalue())])
    assert row.visit
    assert row.visit.asDict() == {"id": str(id), "time": 2000, "local": moment, "day": moment.date()}


def test_an_avro_schema_that_spark_has_no_type_for() -> None:
    with pytest.raises(ValueError, match="Spark has no type for Avro's union"):
        avro_body({"type": "record", "name": "r", "fields": [{"name": "f", "type": ["int", "string"]}]})


@pytest.mark.usefixtures("spark_session")
def test_several_outputs_with_ids_headers_and_bytes() -> None:
    outputs = run_processor(
        logins.both, [Event(b"a\xff", {"host": "w", "x": "1"}), Event(b"b")], [Event(b"c", {"x": ""})]
    )
    rows = [(r.topic, r.offset, r["index"], r.headers, bytes(r.body)) for r in outputs["rows"]]
    assert rows == [
        ("test", 0, 0, {"host": "w", "x": "1"}, b"a\xff"),
        ("test", 1, 0, {}, b"b"),
        ("test", 1_000_000, 0, {"x": ""}, b"c"),
    ]
    assert [row.key for row in outputs["capitals"]] == ["w", None, None]


@pytest.mark.usefixtures("spark_session")
def test_exceptions_of_a_processor_are_reported() -> None:
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run_processor(logins.fails_later, [Event(b"a")])


def sink(processor: str, **outputs: str) -> SparkSink:
    texts = {"processor": f"logins:{processor}", "processor.path": PROCESSORS}
    texts |= {f"output.{name}.type": kind for name, kind in outputs.items()}
    config, wrong = SparkSinkConfig.parse(texts)
    assert config is not None, wrong
    return SparkSink(config)


@pytest.fixture
def events(spark_session: None) -> Any:
    return (
        session()
        .readStream.format("rate")
        .load()
        .selectExpr("CAST(CAST(value AS string) AS binary) body", "map('a', 'b') headers")
    )


def test_mistakes_of_a_processor_are_reported_at_their_line(events: Any) -> None:
    with pytest.raises(
        FlafkaError, match=r"processor logins:raises raised AnalysisException: .* \(logins.py, line 7"
    ):
        sink("raises", a="console").frames(events)
    with pytest.raises(FlafkaError, match=r"processor logins:leaves raised SystemExit: 3 \(logins.py, line"):
        sink("leaves", a="console").frames(events)
    with pytest.raises(
        FlafkaError, match="returned list: it must return a DataFrame, or a dict of them by the names"
    ):
        sink("wrong", a="console").frames(events)


def test_returned_frames_fit_the_outputs(events: Any) -> None:
    assert check_frames("m:f", events, ["a"]) == {"a": events}
    with pytest.raises(FlafkaError, match="returned one DataFrame, and there are outputs a, b"):
        check_frames("m:f", events, ["a", "b"])
    with pytest.raises(FlafkaError, match="returned a, and its outputs are a, b: the names must be the same"):
        check_frames("m:f", {"a": events}, ["a", "b"])
    with pytest.raises(FlafkaError, match="returned a DataFrame that is no stream for output a"):
        check_frames("m:f", session().range(1), ["a"])
    with pytest.raises(FlafkaError, match="returned int for output a"):
        check_frames("m:f", {"a": 1}, ["a"])


@pytest.mark.usefixtures("spark_session")
def test_rows_become_records_that_a_channel_knows() -> None:
    frame = session().createDataFrame(
        [("b1", 5, {"h": "v"}), ("b2", None, None)], "body string, key int, headers map<string,string>"
    )
    mark = ("flafka.format", b"raw/1")
    records = [
        (bytes(r.value), r.key, [(h.key, bytes(h.value)) for h in r.headers])
        for r in as_kafka_records(frame).collect()
    ]
    assert [(value, headers) for value, _, headers in records] == [(b"b1", [("h", b"v"), mark]), (b"b2", [mark])]
    assert records[0][1] == b"5"
    assert records[1][1] is None
    (row,) = as_kafka_records(session().sql("SELECT 'eve' AS user, 3 AS count")).collect()
    assert json.loads(row.value) == {"user": "eve", "count": 3}

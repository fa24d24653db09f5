"""Owner of a checkpoint directory: that of another pipeline is refused, with advice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flafka.agent.config import Diagnostic, load
from flafka.agent.options import AgentOptions
from flafka.agent.runner.retries import add_brokers
from flafka.agent.runner.spark import processing as module
from flafka.agent.runner.spark.job import Job, SinkJob
from flafka.agent.runner.spark.processing import OWNER_FILE, Processing, finished_offsets, wait_for_end
from flafka.agent.testing import session
from flafka.agent.topology import AgentSpec
from flafka.plugins import Assignment, Components, FlafkaError
from flafka.plugins.kafka.offsets import out_of_range_errors
from flafka.sinks.spark import SparkSink, SparkSinkConfig
from tests.fixtures.partitions import assignment
from tests.processors import logins

ASSIGNMENT = assignment("cluster-1", "logs", "topic-id", "group", 0, 0)


def read(directory: Path, *more: str, processor: str = "both") -> tuple[AgentSpec | None, list[Diagnostic]]:
    """Read an agent with a processor, and these additional lines."""
    file = directory / "agent.conf"
    text = f"""
a1.channels = c1
a1.sinks = p
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1
a1.sinks.p.type = spark
a1.sinks.p.channel = c1
a1.sinks.p.processor = logins:{processor}
a1.sinks.p.processor.path = {Path(logins.__file__).parent}
a1.sinks.p.output.rows.type = console
"""
    file.write_text("\n".join((text, *more)))
    return load(file, components=Components())


def processing(directory: Path, processor: str = "both", committed: Assignment = ASSIGNMENT) -> Processing:
    """Return the processing of a sink whose checkpoint is in that directory, with that committed offset."""
    spec, diagnostics = read(directory, f"a1.sinks.p.checkpoint = {directory}/checkpoint", processor=processor)
    assert spec is not None, diagnostics
    job = SinkJob(spec.sinks[0], spec.channels[0])
    made = Processing(Job(spec.name, (job,), AgentOptions(), str(directory / "spark.log"), str(directory)), job)
    made.assignments = {committed.partition: committed}
    return made


@pytest.mark.usefixtures("spark_session")
def test_a_checkpoint_stays_its_pipeline_s(tmp_path: Path) -> None:
    directory = f"{tmp_path}/checkpoint"
    assert processing(tmp_path)._checkpoint(session()) == directory
    assert processing(tmp_path)._checkpoint(session()) == directory  # after a restart
    with pytest.raises(FlafkaError) as other:
        processing(tmp_path, "failures")._checkpoint(session())
    assert str(other.value) == (
        f"checkpoint {directory} belongs to another pipeline (processor logins:both instead of logins:failures): "
        "name another directory with a1.sinks.p.checkpoint, or delete that one to drop its state and begin at the "
        "group's offsets"
    )
    another = assignment("cluster-1", "others", "new", "group", 0, 0)
    with pytest.raises(FlafkaError, match=r"\(topic logs instead of others, topic id topic-id instead of new\)"):
        processing(tmp_path, committed=another)._checkpoint(session())


@pytest.mark.parametrize(
    ("start", "begun", "ends", "warnings"), [(0, None, {}, 0), (7, None, {}, 1), (7, 0, {}, 0), (7, None, {0: 9}, 0)]
)
def test_a_new_group_that_begins_after_lost_records_reports_them(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    start: int,
    begun: int | None,
    ends: dict[int, int],
    warnings: int,
) -> None:
    made: Any = processing(tmp_path, committed=ASSIGNMENT.with_offset(begun))
    made.channel = SimpleNamespace(kafka=SimpleNamespace(beginning_offsets=lambda: {0: start, 1: 3}))
    made._ends = {"rows": ends}
    made._warn_late()
    assert (
        caplog.text.count("has no committed offset in logs-0, and begins with record 7, the first that is left")
        == warnings
    )


@pytest.mark.usefixtures("spark_session")
def test_agents_of_one_name_have_no_checkpoint_in_common(tmp_path: Path) -> None:
    def made(file: str, directory: str | None) -> Processing:
        pipeline: Any = processing(tmp_path)
        pipeline.agent = replace(pipeline.agent, configuration=f"/etc/{file}")
        pipeline.sink = SimpleNamespace(checkpoint=directory, pipeline="logins:both")
        return cast(Processing, pipeline)

    own = made("one.conf", None)._checkpoint(session())
    assert made("one.conf", None)._checkpoint(session()) == own
    with pytest.raises(FlafkaError) as other:
        made("other.conf", None)._checkpoint(session())
    assert str(other.value) == (
        f"checkpoint {own} belongs to the agent of the same name with /etc/one.conf: name another directory with "
        "a1.sinks.p.checkpoint, or this one if that file is /etc/other.conf now"
    )
    assert made("other.conf", own)._checkpoint(session()) == own  # the file was renamed


class Counting:
    """Sink with one stateful query on files, with the part of the interface that `Processing` uses."""

    checkpoint, pipeline = None, "counts:all"

    def __init__(self, directory: Path, counted: Any) -> None:
        self.directory, self.counted = directory, counted

    def frames(self, events: Any) -> dict[str, Any]:
        read = session().readStream.schema("k string, v long").json(str(self.directory))
        return {"rows": read.groupBy("k").agg(self.counted)}

    def writer(self, name: str, frame: Any, stream: Any) -> Any:
        writer = frame.writeStream.format("noop").outputMode("update")
        once = partial(writer.trigger, availableNow=True)
        writer.trigger = lambda processingTime: once()
        return writer

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def topics(self) -> tuple[()]:
        return ()

    def output_directory(self, name: str) -> None:
        """Return None: no output is a directory of files."""


@pytest.mark.usefixtures("spark_session")
def test_an_unusable_checkpoint_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor was changed, or a machine lost power while Spark wrote a file."""
    monkeypatch.setattr("flafka.agent.runner.spark.processing.create_missing_topics", lambda *_: None)
    rows, log = tmp_path / "rows", tmp_path / "a1.sinks.p.checkpoint" / "rows"
    rows.mkdir()

    def run(counted: Any) -> str:
        made: Any = processing(tmp_path)
        made.sink, made.events = Counting(rows, counted), lambda spark: (None, None)
        kafka = SimpleNamespace(beginning_offsets=dict, blocking_errors=lambda *_: ())
        made.channel = SimpleNamespace(open=lambda: None, close=lambda: None, replication=1, kafka=kafka)
        (rows / f"{len(list(rows.iterdir()))}.json").write_text('{"k": "a", "v": 1}\n')
        try:
            made.run(session(), Event())
        except FlafkaError as e:
            return str(e)
        return ""

    session()  # functions need a session
    from pyspark.sql import functions

    assert run(functions.count("*")) == ""
    why = run(functions.collect_list("v"))
    assert why.startswith(f"the processor's state in checkpoint {log.parent} is that of other code: ")
    assert why.endswith(
        "Undo the change of the processor, or name another directory with a1.sinks.p.checkpoint, where it begins "
        "without state at the group's offsets"
    )
    assert "stateSchemaCheck" not in why
    for file in (log / "offsets").glob(".*.crc"):
        file.unlink()
    (log / "offsets" / "1").write_bytes(b"")
    (why,) = {run(functions.count("*")) for _ in range(2)}
    assert why.startswith(f"checkpoint {log.parent} is damaged or incomplete: ")
    assert "offsets/1: that micro-batch is repeated" in why
    (log / "offsets" / "1").unlink()
    assert run(functions.count("*")) == ""


@pytest.mark.usefixtures("spark_session")
def test_a_directory_with_other_files_is_refused_as_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "offsets").touch()
    with pytest.raises(FlafkaError, match="belongs to another pipeline"):
        processing(tmp_path)._checkpoint(session())
    assert not (tmp_path / "checkpoint" / OWNER_FILE).exists()


@pytest.mark.usefixtures("spark_session")
def test_a_half_created_checkpoint_is_created_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / OWNER_FILE).write_text('{"sink": "a1.s')
    for _ in range(2):
        processing(tmp_path)._checkpoint(session())


@pytest.mark.usefixtures("spark_session")
def test_files_that_were_written_with_another_checkpoint_are_refused(tmp_path: Path) -> None:
    made, rows = processing(tmp_path), tmp_path / "rows"
    parquet = {"processor": "logins:both", "processor.path": str(Path(logins.__file__).parent)}
    parquet |= {"output.rows.type": "parquet", "output.rows.path": str(rows), "output.more.type": "console"}
    config, wrong = SparkSinkConfig.parse(parquet)
    assert config is not None, wrong
    made.sink = SparkSink(config)

    def check() -> None:
        made._check_files(session(), f"{tmp_path}/checkpoint", ["rows", "more"])

    check()
    log, offsets = rows / "_spark_metadata", tmp_path / "checkpoint" / "rows" / "offsets"
    log.mkdir(parents=True)
    check()
    for name in ("9.compact", "10", "tmp-11"):
        (log / name).touch()
    with pytest.raises(FlafkaError, match=r"up to its micro-batch 10, and Spark would skip as many"):
        check()
    offsets.mkdir(parents=True)
    (offsets / "9").touch()
    with pytest.raises(FlafkaError, match=f"output rows: {rows} was written to with another checkpoint"):
        check()
    (offsets / "10").touch()
    check()


@pytest.mark.usefixtures("spark_session")
def test_a_restart_commits_finished_and_uncommitted_offsets_to_the_group(tmp_path: Path) -> None:
    made, log = processing(tmp_path), tmp_path / "checkpoint" / "rows"
    assert finished_offsets(session(), str(log)) == {}
    for name, text in {
        "offsets/0": 'v1\n{}\n{"logs":{"0":3,"1":4}}',
        "offsets/1": 'v1\n{}\n{"logs":{"0":9,"1":5}}\n-\n{"logs":{"0":7,"1":8}}\n12',
        "offsets/2": 'v1\n{}\n{"logs":{"0":99,"1":99}}',
        "commits/0": "v1\n{}",
        "commits/1": "v1\n{}",
    }.items():
        (log / name).parent.mkdir(parents=True, exist_ok=True)
        (log / name).write_text(text)
    stored: list[object] = []
    made.channel.kafka.commit_offsets = lambda ends: stored.extend((end.partition, end.next_offset) for end in ends)
    made._ends = {"rows": finished_offsets(session(), str(log))}
    assert made._ends == {"rows": {0: 7, 1: 5}}, "of a join the reading that lags; micro-batch 2 is under way"
    made.on_idle("a1.sinks.p.rows")
    assert stored == [(0, 7)]


def test_events_count_as_delivered_after_all_outputs_have_finished_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reports = processing(tmp_path), []
    monkeypatch.setattr(module, "report", lambda sink, counts, *_, **__: reports.append(dict(counts)))
    made.channel.kafka.commit_offsets = lambda assignments: None
    made._finished = {"rows": 0, "more": 0}
    made._made = SimpleNamespace(
        value={("r", 0): {(0, 0): 3, (1, 0): 2}, ("r", 1): {(0, 3): 4}, ("m", 0): {(0, 0): 3}, ("m", 1): {(1, 0): 2}}
    )

    def finished(output: str, batch: int) -> dict[str, float]:
        rates = {"batchDuration": 1, "processedRowsPerSecond": 1.0, "sources": [], "stateOperators": []}
        made.on_progress(
            SimpleNamespace(name=f"a1.sinks.p.{output}", id=output[0], batchId=batch, numInputRows=1, **rates)
        )
        counts = reports.pop()
        assert counts.pop("BatchCompleteCount") == 1
        return counts

    assert finished("rows", 0) == {}
    assert finished("more", 0) == {"EventDrainAttemptCount": 3, "EventDrainSuccessCount": 3}
    assert finished("rows", 1) == {}
    assert finished("more", 1) == {"EventDrainAttemptCount": 2, "EventDrainSuccessCount": 2}


class Running:
    """Query that is idle from time to time."""

    def __init__(self, rests: Iterable[bool]) -> None:
        self.rests, self.stopped = iter(rests), False

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": not next(self.rests)}

    def awaitTermination(self, _: float) -> bool:
        return self.stopped

    def stop(self) -> None:
        self.stopped = True


def test_queries_that_are_never_idle_together_are_stopped_one_by_one() -> None:
    first, second = Running([True]), Running([False, False, True])
    stopping = Event()
    stopping.set()
    queries: list[Any] = [first, second]
    wait_for_end(queries, stopping)
    assert first.stopped
    assert second.stopped
    assert not queries


def test_a_processor_that_fills_its_own_channel_is_warned_of(tmp_path: Path) -> None:
    loop = "a1.sinks.p.output.more.type = kafka", "a1.sinks.p.output.more.topic = flafka"
    spec, (diagnostic,) = read(tmp_path, *loop)
    assert spec is not None
    assert diagnostic.severity == "warning"
    assert (
        diagnostic.message
        == "writes to topic flafka, which is the topic of its own channel: its events would circulate without end"
    )


def test_on_a_cluster_a_processor_needs_a_checkpoint_that_executors_reach(tmp_path: Path) -> None:
    cluster, reached = "a1.spark.master = spark://there:7077", "a1.sinks.p.checkpoint = hdfs://there:8020/state"
    _, (diagnostic,) = read(tmp_path, cluster)
    assert str(diagnostic).endswith(
        "a1.sinks.p: with spark.master = spark://there:7077 it needs a checkpoint that the executors can reach: "
        "hdfs://host:port/…"
    )
    assert read(tmp_path, cluster, reached)[1] == read(tmp_path)[1] == []


def test_a_checkpoint_past_the_end_of_its_topic_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = processing(tmp_path), []
    made._ends = {"one": {0: 20}, "two": {0: 40}}

    def refusals(_: str | None, starts: Sequence[Assignment]) -> Sequence[FlafkaError]:
        return [*out_of_range_errors(starts, {0: (0, 30)}).values()]

    monkeypatch.setattr(made.channel.kafka, "blocking_errors", refusals)
    monkeypatch.setattr(made.channel.kafka, "store_error", kept.append)
    with pytest.raises(
        FlafkaError, match=r"^name another a1\.sinks\.p\.checkpoint, and reset its group: "
    ) as refused:
        made._refuse_lost()
    text = add_brokers(str(refused.value), {"group": "own:9092"})
    assert text.endswith("--to 30 --new-ids --bootstrap-server own:9092")
    assert [error.assignment.next_offset for error in kept] == [40]

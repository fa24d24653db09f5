"""Query and tasks of the project on the model of Spark, with failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flafka.agent.options import AgentOptions
from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.deadletters import rejections
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.spark import query as query_module
from flafka.agent.runner.spark.driver import failure_reason
from flafka.agent.runner.spark.job import Job, SinkJob
from flafka.agent.runner.spark.query import Query
from flafka.agent.topology import ChannelSpec, ConfigLocation, SinkSpec, Tolerance
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.plugins import Assignment, Batch, Config, KafkaStream, Record, Retry, Sink
from tests.fixtures.partitions import assignment
from tests.simulator import threads
from tests.simulator.faults import Fault, Kind
from tests.simulator.processes import Process
from tests.simulator.running import replaced, run_in
from tests.simulator.spark import Spark, limited
from tests.simulator.world import World, simulation, world

PLACE = ConfigLocation("test.conf", 1)
RAW = [("flafka.format", b"raw/1")]


class Log:
    """A topic of two partitions, without transactions."""

    def __init__(self, *, partitions: int = 2) -> None:
        self.records: dict[int, list[Record]] = {partition: [] for partition in range(partitions)}
        self.low: Counter[int] = Counter()
        self.numbers = 0

    def append(self, count: int) -> None:
        """To all partitions in turn."""
        for _ in range(count):
            self.add(self.numbers % len(self.records), 1)

    def add(self, partition: int, count: int) -> None:
        """To one."""
        log = self.records[partition]
        for _ in range(count):
            log.append(Record(len(log), 7, None, b"%d" % self.numbers, RAW))
            self.numbers += 1

    def partitions(self, topic: str) -> list[int]:
        return list(self.records)

    def low_watermark(self, topic: str, partition: int) -> int:
        return self.low[partition]

    def end_offset(self, topic: str, partition: int) -> int | None:
        return len(self.records[partition]) if partition in self.records else None

    def read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        return self.records[partition][start:end]


class Store(Sink[Config]):
    """Counts what it is given, in the simulation."""

    type_name = "store"

    def write(self, batch: Batch) -> None:
        held = world().models["store"]
        for event in batch:
            if event.body == held.bad:
                raise Retry("the store is away")
            held.bodies[event.body] += 1


class Offsets(KafkaChannel):
    """Keeps offsets in the simulation, in place of Kafka."""

    kafka = property(lambda self: self)

    def stream(self, group: str | None) -> KafkaStream:
        return KafkaStream("127.0.0.1:1", "t", group or "flafka")

    def open(self) -> None:
        pass

    def confirm_topic_id(self, assignment: Assignment) -> None:
        pass

    def committed(self, group: str | None) -> Sequence[Assignment]:
        here = world().models
        return [assignment("c", "t", "i", "g", 0, p, next_offset=here["offsets"].get(p)) for p in here["log"].records]

    def beginning_offsets(self) -> Mapping[int, int]:
        log = world().models["log"]
        return {partition: log.low_watermark("t", partition) for partition in log.partitions("t")}

    def blocking_errors(self, group: str | None, starts: Any = None) -> Any:
        return []

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        world().models["offsets"].update({assignment.partition: assignment.next_offset for assignment in assignments})

    def restore_offsets(self, assignments: Collection[Assignment]) -> None:
        raise Retry("the group has members")


class Letters:
    def put(self, letters: Any) -> None:
        raise AssertionError("nothing is rejected")


def job_of() -> tuple[Job, SinkJob]:
    config, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.topic": "t"})
    assert config is not None
    channel = ChannelSpec("c", "a.channels.c", Offsets, config, {}, PLACE)
    sink = SinkSpec("k", "a.sinks.k", Store, Config(), {}, PLACE, channel="c", tolerance=Tolerance())
    job = SinkJob(sink, channel)
    return Job("a", (job,), AgentOptions(spark_trigger_interval=5), "", ""), job


class Run:
    """A simulation with a driver that runs one query."""

    def __init__(self, *faults: Fault, **options: Any) -> None:
        self.world = World(3, given=list(faults))
        self.log = self.world.models["log"] = Log()
        self.offsets: dict[int, int] = {}
        self.world.models["offsets"] = self.offsets
        self.store = self.world.models["store"] = SimpleNamespace(bodies=Counter(), bad=None)
        self.options = options
        self.errors: list[str] = []

    def go(self, story: Callable[[Run], None]) -> Run:
        """Run the query beside that story, then stop the query."""
        with simulation(self.world), replaced(query_module, rejections):
            self.driver = Process(self.world, "driver")
            self.spark = Spark(self.world, self.log, driver=self.driver, **self.options)
            self.stopping = threads.threading.Event()
            self.driver.spawn(self._query, "query")

            def main() -> None:
                story(self)
                self.stopping.set()
                self.world.sleep(60)

            run_in(self.world, Process(self.world, "story"), main)
        return self

    def _query(self) -> None:
        job, sink = job_of()
        while not self.stopping.is_set():
            self.query = Query(job, sink, Rejections(Letters(), Tolerance()), CommitLogMove())
            self.spark.streams.addListener(
                SimpleNamespace(
                    onQueryStarted=lambda event: None,
                    onQueryProgress=lambda event: self.query.on_progress(event.progress),
                    onQueryIdle=lambda event: self.query.on_idle(""),
                )
            )
            try:
                self.query.run(self.spark, self.stopping)
            except Exception as e:
                self.errors.append(failure_reason(f"{type(e).__name__}: {e}", sink))
                self.world.sleep(1)

    def until(self, condition: Callable[[], Any], seconds: float = 600) -> None:
        deadline = self.world.now + seconds
        while not condition():
            assert self.world.now < deadline, "\n".join(self.world.story)
            self.world.sleep(0.5)

    @property
    def times(self) -> list[int]:
        """Number of deliveries of each event, in order."""
        return [self.store.bodies[b"%d" % n] for n in range(self.log.numbers)]


def deliver(run: Run) -> None:
    for _ in range(3):
        run.log.append(7)
        end = {p: len(records) for p, records in run.log.records.items()}
        run.until(lambda end=end: run.offsets == end)


def test_what_is_appended_is_delivered_once() -> None:
    run = Run().go(deliver)
    assert run.times == [1] * 21
    assert run.errors == []
    assert run.spark.queries[0].ended


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.WELL, Kind.REFUSED)])
def test_a_failed_or_abandoned_attempt_is_repeated(kind: Kind) -> None:
    run = Run(Fault("executor-1", "spark.task", 1, kind, 70.0)).go(deliver)
    assert run.world.faults
    assert run.errors == []
    assert set(run.times) <= {1, 2}
    twice = kind in (Kind.UNANSWERED, Kind.LATE, Kind.DOUBLED, Kind.KILLED_AFTER, Kind.PAUSED, Kind.PAUSED_AFTER)
    assert (2 in run.times) == twice, "its work was done already, or is done yet"


def test_a_task_that_fails_repeatedly_fails_the_query_with_its_python_error() -> None:
    def story(run: Run) -> None:
        run.store.bad = b"3"
        run.log.append(7)
        run.until(lambda: run.errors)
        run.store.bad = None
        run.until(lambda: run.offsets == {0: 4, 1: 3})

    run = Run(max_failures=2).go(story)
    assert run.errors[0] == "the store is away"
    assert run.times[1] > 2
    assert run.times[0] >= 1


def test_an_error_of_the_drivers_function_ends_the_query() -> None:
    def story(run: Run) -> None:
        run.until(lambda: run.spark.queries and run.spark.queries[0].batches)
        run.query.assignments[0] = run.query.assignments[0].with_offset(100)
        run.log.append(7)
        run.until(lambda: run.errors)

    assert Run().go(story).errors == ["records 0–100 of partition 0 were delivered twice"]


@pytest.mark.parametrize("remaining", [0, 2])
def test_a_topic_that_is_made_anew_or_has_lost_records_fails_the_query(remaining: int) -> None:
    def story(run: Run) -> None:
        run.log.append(6)
        run.until(lambda: run.offsets == {0: 3, 1: 3})
        run.log.records[0][remaining:] = []
        run.until(lambda: run.errors)

    assert "the brokers no longer have the records of t" in Run().go(story).errors[0]


def test_a_topic_made_anew_that_has_passed_the_old_offset_is_read_on_in_silence() -> None:
    def story(run: Run) -> None:
        run.log.append(4)
        run.until(lambda: run.offsets == {0: 2, 1: 2})
        run.log.records = {0: [], 1: []}
        run.log.append(10)
        run.until(lambda: run.offsets == {0: 5, 1: 5})

    run = Run().go(story)
    assert run.errors == []
    assert run.times == [1] * 4 + [0] * 4 + [1] * 6


def test_records_that_are_too_old_fail_the_query() -> None:
    def story(run: Run) -> None:
        run.until(lambda: run.spark.queries and run.spark.queries[0].batches)
        run.log.append(8)
        run.log.low[0] = 2
        run.until(lambda: run.errors)

    assert "the brokers no longer have the records of t" in Run().go(story).errors[0]


def test_a_new_partition_is_read_from_its_start() -> None:
    def story(run: Run) -> None:
        run.log.append(4)
        run.until(lambda: run.offsets == {0: 2, 1: 2})
        run.log.records[2] = []
        run.log.append(6)
        run.until(lambda: run.offsets.get(2) == 2)

    run = Run().go(story)
    assert set(run.times) == {1}


def test_a_driver_that_is_killed_leaves_executors_that_go_on_for_a_while() -> None:
    fault = Fault("executor-1", "spark.task", 1, Kind.PAUSED, 1.0)

    def story(run: Run) -> None:
        run.until(lambda: run.spark.queries and run.spark.queries[0].batches)
        run.log.append(1)
        run.until(lambda: run.world.faults)
        run.driver.kill()
        assert not run.times[0]
        run.world.sleep(30)
        assert not [executor for executor in run.spark._executors if executor.alive]

    run = Run(fault).go(story)
    assert run.times == [1]
    assert run.offsets == {0: 0, 1: 0}


def test_a_driver_that_sleeps_goes_on() -> None:
    def story(run: Run) -> None:
        run.log.append(5)
        run.until(lambda: any(run.offsets.values()))
        run.driver.pause(90)
        deliver(run)

    assert set(Run().go(story).times) == {1}


def test_a_context_that_is_stopped_from_outside_takes_no_queries_any_more() -> None:
    def story(run: Run) -> None:
        deliver(run)
        run.spark.stop()
        run.until(lambda: len(run.errors) > 2)

    run = Run().go(story)
    assert all("stopped SparkContext" in error for error in run.errors)


def test_a_query_is_stopped_within_a_micro_batch() -> None:
    def story(run: Run) -> None:
        run.until(lambda: run.spark.queries and run.spark.queries[0].batches)
        run.log.append(5)
        run.until(lambda: run.world.faults)
        run.spark.queries[0].stop()
        assert run.spark.queries[0].ended
        assert run.spark.queries[0].exception() is None

    run = Run(Fault("executor-1", "spark.task", 1, Kind.PAUSED, 20.0)).go(story)
    assert run.errors == []


def test_records_of_a_micro_batch_are_divided_as_there_are() -> None:
    assert limited({0: 0, 1: 0}, {0: 5, 1: 5}, 100) == {0: 5, 1: 5}
    assert limited({0: 0, 1: 10}, {0: 300, 1: 110}, 100) == {0: 75, 1: 35}
    assert limited({0: 0, 1: 0}, {0: 1000, 1: 1}, 10) == {0: 9, 1: 1}
    assert limited({0: 7, 1: 0}, {0: 3, 1: 0}, 10) == {0: 3, 1: 0}

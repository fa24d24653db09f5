"""What a Spark task makes of its records, and what the driver does about what was rejected."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from agent.options import AgentOptions
from agent.runner.deadletters.rejections import Rejections
from agent.runner.spark import query as query_module
from agent.runner.spark.job import EventsTask, Job, PartitionTask, Result, SinkJob
from agent.runner.spark.query import Clock, Query, most_records, read_topic
from agent.testing import session
from agent.topology import ChannelSpec, ComponentSpec, Place, SinkSpec, Tolerance
from channels.kafka import KafkaChannel, KafkaChannelConfig
from interceptors.json import JsonConfig, JsonInterceptor
from plugins import Batch, Config, Conflict, FlafkaError, KafkaStream, PartitionClaim, Rejected, Resumed, Retry, Sink
from tests.runner.test_rejections import Letters

PLACE = Place("test.conf", 1)
CLAIM = PartitionClaim("c", "t", "i", "g", 0, 0)


class Picky(Sink[Config]):
    """Takes all but `bad`."""

    type_name = "picky"

    def write(self, batch: Batch) -> None:
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        if rejected:
            raise Rejected(rejected)


class Recording(KafkaChannel):
    """Keeps the positions that Kafka would; its topic is the claim's."""

    recorded: Mapping[PartitionClaim, int]

    def record(self, positions: Mapping[PartitionClaim, int]) -> None:
        self.recorded = dict(positions)

    def confirm(self, claim: PartitionClaim) -> None:
        assert claim == CLAIM

    def starts(self) -> Mapping[int, int]:
        return {}


class MadeAgain(Recording):
    """Its topic is another one by now."""

    def confirm(self, claim: PartitionClaim) -> None:
        raise Retry("topic t was deleted and created again")


def jobs(tolerance: Tolerance) -> tuple[Job, SinkJob]:
    config, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.topic": "t"})
    assert config is not None
    channel = ChannelSpec("c", "a.channels.c", Recording, config, {}, PLACE)
    sink = SinkSpec("k", "a.sinks.k", Picky, Config(), {}, PLACE, channel="c", tolerance=tolerance)
    job = SinkJob(sink, channel)
    return Job("a", (job,), AgentOptions(), "", ""), job


def records(*bodies: bytes) -> Any:
    rows = [
        {"partition": 0, "offset": at, "timestamp": 7, "key": None, "value": body, "headers": RAW}
        for at, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows)


RAW = [{"key": "flafka.format", "value": b"raw/1"}]


def run(tolerance: Tolerance, *bodies: bytes) -> Result:
    result = PartitionTask(*jobs(tolerance), {0: CLAIM}, CLAIM).run(iter([records(*bodies)]))
    assert result is not None
    return result


def test_a_task_hands_dead_letters_to_the_driver() -> None:
    result = run(Tolerance(), b"1", b"bad", b"2")
    assert [(one.event.body, one.id, one.arrival) for one in result.letters] == [(b"bad", ("t", 0, 1, 0), 7)]
    assert (result.offered, result.receipt.events) == (3, 2)
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_task_hands_over_what_interceptors_reject() -> None:
    job, sink = jobs(Tolerance())
    config, _ = JsonConfig.parse({"fields": "a", "onError": "reject"})
    assert config is not None
    json = ComponentSpec("i", "a.sinks.k.interceptors.i", JsonInterceptor, config, {}, PLACE)
    sink = replace(sink, sink=replace(sink.sink, interceptors=(json,)))
    result = PartitionTask(job, sink, {0: CLAIM}, CLAIM).run(iter([records(b'{"a": 1}', b"no", b"{}")]))
    assert result is not None
    assert [(one.event.body, one.id) for one in result.letters] == [(b"no", ("t", 0, 1, 0))]
    assert (result.offered, result.receipt.events) == (3, 2)
    told: list[Any] = []
    counted: list[Any] = []
    events = EventsTask(job, sink, {0: CLAIM}, CLAIM, counted.append, told.append, keep_dead_letters=False)
    batches = [*events(iter([records(b'{"a": 1}', b"no")]))]
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == [b'{"a": 1}']
    assert counted[0]["i"][0]["EventRejectedCount"] == 1


def test_a_task_whose_events_are_nearly_all_rejected_fails() -> None:
    with pytest.raises(Retry, match="paused: 600 of the latest 600 events"):
        run(Tolerance(), *[b"bad"] * 600)


class Busy:
    """A query that begins the next micro-batch at once, always."""

    status = MappingProxyType({"isTriggerActive": True})

    def __init__(self, query: Query) -> None:
        self.query, self.batches, self.stopped = query, 0, False

    def awaitTermination(self, _: float) -> bool:
        assert self.batches < 3, "not stopped"
        self.query._commit(SimpleNamespace(collect=list), self.batches)
        self.batches += 1
        return False

    def stop(self) -> None:
        self.stopped = True


class Away(Recording):
    """Asks no broker."""

    def open(self) -> None:
        pass

    def positions(self, group: str | None) -> Mapping[PartitionClaim, int | None]:
        return {CLAIM: None}


def test_a_query_that_is_behind_ends_after_the_micro_batch_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Away))
    query = Query(job, sink, Rejections(Letters(), tolerance))
    busy, stopping = Busy(query), threading.Event()
    monkeypatch.setattr(query, "_start", lambda *_: busy)
    stopping.set()
    query.run(None, stopping)
    assert (busy.batches, busy.stopped) == (1, True)
    assert isinstance(query.channel, Away)
    assert query.channel.recorded == {CLAIM: 0}, "whoever has it next does not know what this sink took over"


def test_a_task_that_reads_a_topic_made_again_delivers_nothing() -> None:
    job, sink = jobs(Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=MadeAgain))
    with pytest.raises(Retry, match="created again"):
        PartitionTask(job, sink, {0: CLAIM}, CLAIM).run(iter([records(b"1")]))
    task = EventsTask(job, sink, {0: CLAIM}, CLAIM, [].append, [].append, keep_dead_letters=True)
    with pytest.raises(Retry, match="created again"):
        next(task(iter([records(b"1")])))


def one_batch(query: Query, *bodies: bytes) -> None:
    """Have a query that has partition 0 commit a micro-batch of them."""
    result = SimpleNamespace(result=pickle.dumps(run(query.rejections.tolerance, *bodies)))
    query._commit(SimpleNamespace(collect=lambda: [result]), 0)


def test_a_driver_that_finds_the_topic_made_again_commits_nothing() -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=MadeAgain))
    query = Query(job, sink, Rejections(letters := Letters(), tolerance))
    query.claims = {0: CLAIM}
    with pytest.raises(Retry, match="created again"):
        one_batch(query, b"1", b"bad")
    assert not letters.kept
    assert not hasattr(query.channel, "recorded")


def test_a_driver_takes_partitions_over_before_it_commits_for_them() -> None:
    job, sink = jobs(tolerance := Tolerance())
    query = Query(job, sink, Rejections(letters := Letters(), tolerance))
    query.committing = query.sink  # as if it kept a record of its own, which may have something of that partition
    with pytest.raises(Retry, match=r"partitions \[0\] are new"):
        one_batch(query, b"1", b"bad")
    assert not letters.kept
    assert not hasattr(query.channel, "recorded")


class Overtaken(Recording):
    """Its group says something else by now."""

    found = CLAIM
    ranges: tuple[int, int] = (0, 9)

    def open(self) -> None:
        pass

    def positions(self, group: str | None) -> Mapping[PartitionClaim, int | None]:
        return {self.found: 3}

    def starts(self) -> Mapping[int, int]:
        return {0: self.ranges[0]}

    def ends(self) -> Mapping[int, int]:
        return {0: self.ranges[1]}


def overtaken(**claim: Any) -> tuple[Query, Overtaken]:
    """A query that has partition 0, at 3 of 9, and its channel, whose group says that of the claim."""
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Overtaken))
    query = Query(job, sink, Rejections(Letters(), tolerance))
    query.claims, query.expected = {0: CLAIM._replace(record="hdfs:/a")}, {0: 3}
    source = SimpleNamespace(endOffset='{"t": {"0": 3}}', latestOffset='{"t": {"0": 9}}')
    query.show(SimpleNamespace(batchDuration=1, processedRowsPerSecond=1, sources=[source], stateOperators=[]))
    assert isinstance(query.channel, Overtaken)
    query.channel.found = CLAIM._replace(**claim)
    return query, query.channel


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"epoch": 1}, "group g was reset"),
        ({"record": "hdfs:/b"}, "another sink of group g commits t-0, below hdfs:/b"),
        ({"topic_id": "j"}, "6 records that the old one held when last looked at are lost$"),
    ],
)
def test_a_driver_that_was_overtaken_commits_nothing(claim: dict[str, Any], said: str) -> None:
    query, channel = overtaken(**claim)
    query.committing = SimpleNamespace(commit=None)
    with pytest.raises(Conflict, match=said):
        one_batch(query, b"1")
    assert not hasattr(channel, "recorded")


def test_a_query_that_was_overtaken_while_idle_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    query, channel = overtaken()
    monkeypatch.setattr(query, "_start", lambda *_: Idle(channel))
    monkeypatch.setattr(query_module, "LOOK_SECONDS", 0.0)
    with pytest.raises(Conflict, match="group g was reset"):
        query.run(None, threading.Event())


class Idle:
    """A query that finds nothing new; meanwhile somebody resets the group."""

    status = MappingProxyType({"isTriggerActive": False})

    def __init__(self, channel: Overtaken) -> None:
        self.channel = channel

    def awaitTermination(self, _: float) -> bool:
        self.channel.found = CLAIM._replace(epoch=1)
        time.sleep(0.01)
        return False

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("answer", [None, Retry("the group has members")])
def test_a_position_of_an_earlier_epoch_is_made_that_of_the_query_again(
    answer: Retry | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, channel = overtaken()
    query.claims = {0: CLAIM._replace(epoch=2)}
    restored = []

    def restore(positions: Mapping[PartitionClaim, int]) -> None:
        restored.append(dict(positions))
        if answer is not None:
            raise answer

    monkeypatch.setattr(channel, "restore", restore)
    query._look()
    assert restored == [{query.claims[0]: 3}]
    channel.found = query.claims[0]
    query._look()
    assert len(restored) == 1


def test_a_query_that_spark_ends_says_what_was_behind_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, channel = overtaken()

    def end(*_: Any) -> None:
        channel.found = CLAIM._replace(topic_id="j")
        raise RuntimeError("KAFKA_DATA_LOSS")

    monkeypatch.setattr(query, "_start", end)
    with pytest.raises(Conflict, match="topic t was deleted and created again"):
        query.run(None, threading.Event())
    assert '"TopicRecreatedCount": 1, "RecordLostCount": 6' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        (
            (5, 9),
            r"at offset 3 of t-0, .* records 3 to 4, 2 in all, were removed by retention .*--topic t:0 --to earliest",
        ),
        ((0, 2), r"at offset 3 of t-0, .* t-0 ends at 2: the brokers lost records, .* --topic t:0 --to 2 --new-ids"),
    ],
)
def test_records_that_the_brokers_do_not_have_are_named_with_the_way_out(
    ranges: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, channel = overtaken()

    def end(*_: Any) -> None:
        channel.ranges = ranges
        raise RuntimeError("KAFKA_DATA_LOSS")

    monkeypatch.setattr(query, "_start", end)
    with pytest.raises(FlafkaError, match=said):
        query.run(None, threading.Event())


def test_a_clock_that_is_set_back_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = Clock(), time.time
    clock.look()
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    clock.look()
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    with pytest.raises(Retry, match="set back by 3600 s"):
        clock.look()


class Joined(Recording):
    """Takes no positions while its group has members."""

    members = 1

    def record(self, positions: Mapping[PartitionClaim, int]) -> None:
        if self.members:
            raise Retry("the group has members")
        super().record(positions)


class Ahead(Recording):
    """A group behind the sink's own record."""

    def positions(self, group: str | None) -> Mapping[PartitionClaim, int | None]:
        return {CLAIM: 3}


def test_a_group_that_was_not_told_of_a_commit_is_told_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Ahead))
    query = Query(job, sink, Rejections(Letters(), tolerance))
    query.committing = SimpleNamespace(record="", resume=lambda claim, _: Resumed(claim, 5))
    query._resume()
    assert isinstance(query.channel, Ahead)
    assert query.channel.recorded == {CLAIM: 5}


def test_positions_that_a_group_with_members_did_not_take_are_told_once_they_are_gone() -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Joined))
    query = Query(job, sink, Rejections(Letters(), tolerance))
    assert isinstance(query.channel, Joined)
    query.claims = {0: CLAIM}
    one_batch(query, b"1", b"2")
    query.idle("a.sinks.k")
    query.channel.members = 0
    query.idle("a.sinks.k")
    assert query.channel.recorded == {CLAIM: 2}
    query.channel.recorded = {}
    query.idle("a.sinks.k")
    assert query.channel.recorded == {}


def test_records_of_one_event_come_in_larger_numbers() -> None:
    _, sink = jobs(Tolerance())
    flume, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "format": "flume"})
    assert flume is not None
    single = replace(sink.channel, config=flume)
    assert (most_records(sink.channel.make(), AgentOptions()), most_records(single.make(), AgentOptions())) == (
        "20000",
        "500000",
    )
    assert most_records(single.make(), AgentOptions(spark_max_records=7)) == "7"


@pytest.mark.usefixtures("spark_session")
def test_properties_of_consumers_that_spark_refuses_are_left_out() -> None:
    usual = (
        "auto.offset.reset",
        "enable.auto.commit",
        "value.deserializer",
        "interceptor.classes",
        "max.poll.records",
    )
    stream = KafkaStream("127.0.0.1:1", "t", "g", client=dict.fromkeys(usual, "5"))
    frame = read_topic(session(), stream, {0: None}, "5")
    assert frame.columns == ["partition", "offset", "timestamp", "key", "value", "headers"]


def test_the_driver_keeps_letters_before_it_commits_and_pauses_over_micro_batches() -> None:
    job, sink = jobs(tolerance := Tolerance())
    letters = Letters()
    rejections = Rejections(letters, tolerance)

    def commit(*bodies: bytes) -> Mapping[PartitionClaim, int]:
        """One micro-batch, on a query of its own, as after a failure."""
        query = Query(job, sink, rejections)
        query.claims = {0: CLAIM}
        one_batch(query, *bodies)
        assert isinstance(query.channel, Recording)
        return query.channel.recorded

    assert commit(b"1", b"bad") == {CLAIM: 2}
    assert len(letters.kept) == 1
    commit(*[b"bad"] * 300)
    for _ in range(3):
        with pytest.raises(Retry, match="paused: 501 of the latest 502"):
            commit(*[b"bad"] * 200)
    assert len(letters.kept) == 301
    commit(*[b"mended"] * 200)
    assert not rejections.paused

"""Channel whose events go to the disk of this host while its brokers are unavailable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.monitoring.registry import Registry
from flafka.agent.runner.deadletters.store import DeadLetter
from flafka.agent.runner.drain import Drain, DrainStalled
from flafka.agent.runner.local.channels import ChannelRunner, PendingPut
from flafka.agent.runner.local.overflow import OverflowingChannel
from flafka.agent.services.running import until
from flafka.channels.file import FileChannel
from flafka.plugins import Batch, Config, Event, EventId, Rejected, Retry, Unreachable
from flafka.plugins.kafka.topic import KafkaBackedChannel

SOURCE, OTHER = "a.sources.s", "a.sources.t"
SECONDS = 0.1
"""Time that brokers have for a put."""


class Topic(KafkaBackedChannel[Config]):
    """Brokers that fail on request."""

    type_name = "topic"
    replication = 3
    holds_batches = True
    refusal = ""
    kafka = decode = redelivery = reader = NotImplemented

    def __init__(self) -> None:
        super().__init__(Config(), "c1")
        self.held: list[str] = []
        self.there = threading.Event()
        self.there.set()
        self.refuses: dict[str, Exception] = {}
        """Exception of a put by body."""
        self.opening: Exception | None = None

    def open(self) -> None:
        if self.opening is not None:
            raise self.opening

    def put(self, batch: Batch) -> None:
        texts = [body.decode() for body in batch.bodies.to_pylist()]
        assert not batch.header_names
        while not self.there.wait(0.01):
            if self.stopping.is_set():
                raise Retry("the agent stops")
        for text in texts:
            if text in self.refuses:
                if isinstance(self.refuses[text], Rejected):
                    self.held += [other for other in texts if other != text]
                raise self.refuses[text]
        self.held += texts


class MemoryDeadLetters:
    """Store of dead letters that works once it is enabled."""

    def __init__(self) -> None:
        self.kept: list[DeadLetter] = []
        self.error: Exception | None = None

    def put(self, letters: Iterable[DeadLetter]) -> None:
        if self.error is not None:
            raise self.error
        self.kept += letters

    def close(self) -> None:
        pass


class RecordingAudit:
    """Audit that records its puts."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def open(self) -> None:
        pass

    def put(self, batch: Batch) -> None:
        self.events += batch.bodies.to_pylist()

    def report_alive(self) -> None:
        pass


def pending(*texts: str, source: str = SOURCE) -> PendingPut:
    return PendingPut(Batch.of([Event(text.encode()) for text in texts]), [source])


class Pair:
    """Channel and its overflow, running."""

    def __init__(self, directory: Path, topic: Topic | None = None) -> None:
        self.topic, self.letters, self.audit = topic or Topic(), MemoryDeadLetters(), RecordingAudit()
        config, problems = FileChannel.config_class.parse(
            {
                "checkpointDir": f"{directory}/checkpoint",
                "dataDirs": f"{directory}/data",
                "minimumRequiredSpace": str(1 << 20),
            }
        )
        assert config is not None, problems
        self.disk = ChannelRunner("a.channels.c2", "c2", FileChannel(config, "c2"))
        audit: Any = self.audit
        self.channel = OverflowingChannel("a.channels.c1", "c1", self.topic, audit, self.disk, self.letters, SECONDS)
        self.registry = Registry("a")
        self.registry.add("CHANNEL", "c1", self.channel.metrics, self.channel.declared_metrics)

    def start(self) -> Pair:
        self.disk.start()
        self.channel.start()
        assert self.channel.wait_until_accepting(threading.Event())
        return self

    def put(self, *texts: str, source: str = SOURCE) -> int:
        return self.channel.complete(pending(*texts, source=source), self.letters)

    def count(self, name: str) -> float:
        return self.channel.metrics.get(name)

    def stop(self) -> None:
        self.channel.stop_forwarding()
        for runner in (self.channel, self.disk):
            runner.stopping.set()
            runner.channel.stopping.set()
            runner.may_close.set()
            runner.thread.join(10)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path).start()
    yield made
    made.stop()


def overflowing(pair: Pair) -> Pair:
    """Fixture after its brokers went down, with `late` in flight."""
    pair.topic.there.clear()
    pair.put("late")
    assert pair.count("Overflowing") == 1
    return pair


def test_while_brokers_acknowledge_nothing_goes_to_the_disk(pair: Pair) -> None:
    assert pair.put("a", "b") == 0
    assert pair.topic.held == ["a", "b"]
    assert pair.audit.events == [b"a", b"b"]
    assert pair.count("OverflowEventCount") == pair.count("Overflowing") == 0
    assert pair.registry.degraded() == {}


def test_an_outage_is_reported_and_counted_and_ends_by_itself(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    overflowing(pair).put("more")
    pair.channel.metrics.set_error("no acknowledgement from Kafka")
    assert pair.registry.failing() == {}
    assert "overflows into a.channels.c2 for " in pair.registry.degraded()["CHANNEL.c1"]
    assert "which holds 2 events: no acknowledgement for" in pair.registry.degraded()["CHANNEL.c1"]
    assert pair.audit.events == []
    assert pair.count("OverflowSize") == 2
    pair.topic.there.set()
    until(lambda: not pair.count("Overflowing"), "its end", 20)
    pair.channel.metrics.set_error("")
    assert pair.topic.held == ["late", "more"], "what was late is stored once"
    assert pair.audit.events == [b"late", b"more"]
    assert (pair.count("OverflowEventCount"), pair.count("OverflowForwardedCount")) == (2, 2)
    assert pair.count("OverflowRepeatedCount") == pair.count("OverflowSize") == 0
    assert pair.registry.degraded() == {}
    begin, end = [r.getMessage() for r in caplog.records if r.name == "a.channels.c1"]
    assert begin.startswith(
        "overflows into a.channels.c2, which holds 0 events: no acknowledgement for 0 s; 1 events"
    )
    assert end.endswith("2 events went into a.channels.c2, 2 were forwarded, and 0 may be duplicates")
    pair.put("after")
    assert pair.topic.held[-1] == "after"
    assert pair.count("OverflowEventCount") == 2


def test_it_ends_while_sources_put_all_the_time_and_keeps_the_order_of_each(pair: Pair) -> None:
    over = threading.Event()
    numbers = {SOURCE: 0, OTHER: 0}

    def work(source: str) -> None:
        while not over.is_set():
            pair.put(f"{source} {numbers[source]}", source=source)
            numbers[source] += 1

    threads = [threading.Thread(target=work, args=(source,)) for source in numbers]
    overflowing(pair)
    for thread in threads:
        thread.start()
    until(lambda: min(numbers.values()) > 20, "puts during the outage", 20)
    pair.topic.there.set()
    until(lambda: not pair.count("Overflowing"), "its end", 20)
    before = dict(numbers)
    until(lambda: all(numbers[source] > before[source] + 20 for source in numbers), "puts after it", 20)
    over.set()
    for thread in threads:
        thread.join()
    for source, number in numbers.items():
        own = [text for text in pair.topic.held if text.startswith(source)]
        assert own == [f"{source} {n}" for n in range(number)]


@pytest.mark.parametrize("error", [Retry("Topic authorization failed"), ZeroDivisionError("a bug")])
def test_an_error_that_is_no_outage_is_raised_to_the_source(pair: Pair, error: Exception) -> None:
    pair.topic.refuses["a"] = error
    with pytest.raises(type(error)):
        pair.put("a")
    assert pair.count("Overflowing") == 0


def test_an_outage_that_the_client_reports_begins_at_once(pair: Pair) -> None:
    pair.topic.refuses["a"] = Unreachable("not enough replicas")
    assert pair.put("a", "b") == 0
    assert pair.count("OverflowEventCount") == 2
    assert pair.registry.degraded()["CHANNEL.c1"].endswith("not enough replicas")
    pair.topic.refuses.clear()
    until(lambda: pair.topic.held == ["a", "b"], "them to be forwarded", 20)


def test_an_event_that_the_channel_rejects_becomes_a_dead_letter_of_its_source(pair: Pair) -> None:
    rejected = Rejected({EventId("", -1, -1, 1): "too large"})
    pair.topic.refuses["large"] = rejected
    assert pair.put("a", "large") == 1
    pair.topic.there.clear()
    pair.put("b", "large", source=OTHER)  # is late, and rejected then
    pair.put("c", "large")
    pair.put("d")
    pair.letters.error = Retry("dead letters cannot be written now")
    pair.topic.there.set()
    until(lambda: "b" in pair.topic.held, "the late put", 20)
    pair.letters.error = None
    until(lambda: not pair.count("Overflowing"), "the end of the outage", 30)
    assert pair.topic.held == ["a", "b", "c", "d"]
    rejections = [(letter.component, letter.event.body, letter.event.headers) for letter in pair.letters.kept]
    assert rejections == [(SOURCE, b"large", {}), (OTHER, b"large", {}), (SOURCE, b"large", {})]
    assert sorted(pair.audit.events) == [b"a", b"b", b"c", b"d"]


def test_events_on_the_disk_are_not_put_again_while_dead_letters_cannot_be_stored(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = pair.disk.channel.put_in_order

    def choosy(batch: Batch, enqueued: Callable[[], None]) -> None:
        put(batch.slice(0, 1), enqueued)
        raise Rejected({EventId("", -1, -1, 1): "too large"})

    monkeypatch.setattr(pair.disk.channel, "put_in_order", choosy)
    pair.topic.there.clear()
    pair.letters.error = Retry("dead letters cannot be written now")
    pending_put = pending("a", "large")
    with pytest.raises(Retry, match="dead letters cannot be written now"):
        pair.channel.complete(pending_put, pair.letters)
    pair.letters.error = None
    assert pair.channel.complete(pending_put, pair.letters) == 1
    assert [letter.event.body for letter in pair.letters.kept] == [b"large"]
    assert (pair.count("OverflowEventCount"), pair.disk.metrics.get("ChannelSize")) == (1, 1)


def test_the_next_start_resumes_where_the_last_one_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flafka.agent.runner.local.forwarding.SETTLE_SECONDS", 0.5)
    first = overflowing(Pair(tmp_path).start())
    first.put("more")
    first.stop()
    assert "a.channels.c2 holds 2 events, which are put into a.channels.c1 at the next start" in caplog.text
    second = Pair(tmp_path)
    second.topic.there.clear()
    second.start()
    assert second.count("Overflowing") == 1
    second.put("new")
    assert second.topic.held == []
    second.topic.there.set()
    until(lambda: not second.count("Overflowing"), "its end", 20)
    second.stop()
    assert second.topic.held == ["late", "more", "new"]
    assert 2 <= second.count("OverflowRepeatedCount") <= 3, "what the first one had under way may be there"
    assert "events of an earlier outage are left" in caplog.text


def test_an_agent_starts_without_brokers(tmp_path: Path) -> None:
    topic = Topic()
    topic.opening = Unreachable("no broker answers")
    pair = Pair(tmp_path, topic).start()
    assert pair.registry.failing() == {}
    assert "no broker answers" in pair.registry.degraded()["CHANNEL.c1"]
    assert pair.put("a") == 0
    topic.opening = None
    until(lambda: topic.held == ["a"], "the brokers", 20)
    until(lambda: not pair.count("Overflowing"), "its end", 20)
    assert pair.registry.degraded() == {}
    pair.stop()


def test_brokers_that_refuse_an_agent_at_its_start_are_waited_for(tmp_path: Path) -> None:
    topic = Topic()
    topic.opening = Retry("Cluster authorization failed")
    pair, stopping = Pair(tmp_path, topic), threading.Event()
    pair.disk.start()
    pair.channel.start()
    until(lambda: pair.channel.metrics.last_error, "word of it", 20)
    assert not _within(0.3, lambda: pair.channel.wait_until_accepting(stopping))
    with pytest.raises(Retry, match="Cluster authorization failed"):
        pair.put("a")
    assert pair.registry.failing() == {"CHANNEL.c1": "Cluster authorization failed"}
    stopping.set()
    pair.stop()


def test_brokers_that_refuse_an_agent_at_work_are_waited_for(pair: Pair) -> None:
    pair.topic.refusal = "Authentication failed"
    pair.topic.there.clear()
    waiting = threading.Thread(target=pair.put, args=("a",))
    waiting.start()
    waiting.join(3 * SECONDS)
    assert waiting.is_alive()
    assert pair.count("Overflowing") == 0
    pair.topic.there.set()
    waiting.join(20)
    assert pair.topic.held == ["a"]
    assert pair.count("OverflowEventCount") == 0


def test_a_drain_waits_until_the_overflow_is_empty(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Drain({"c1": overflowing(pair).channel, "c2": pair.disk}, [], [])
    assert not drain.is_complete()
    with monkeypatch.context() as impatient:
        impatient.setattr("flafka.agent.runner.drain.DRAIN_STALL_SECONDS", 0.0)
        with pytest.raises(DrainStalled, match=r"a\.channels\.c2 still holds 1 events"):
            until(drain.is_complete, "its end", 20)
    pair.topic.there.set()
    until(drain.is_complete, "it to be empty", 20)
    assert pair.topic.held == ["late"]


def test_a_put_after_the_stop_raises_that_the_channel_is_closed(pair: Pair) -> None:
    pair.channel.stop_forwarding()
    with pytest.raises(Retry, match="channel c1 is closed"):
        pair.put("late")


def test_a_failing_disk_blocks_an_in_doubt_put_until_its_brokers_have_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(batch: Batch, enqueued: object) -> None:
        raise Retry("the disk fails")

    monkeypatch.setattr(pair.disk.channel, "put_in_order", full)
    pair.topic.there.clear()
    waiting = threading.Thread(target=pair.put, args=("late",))
    waiting.start()
    until(lambda: pair.count("Overflowing"), "the overflow", 20)
    with pytest.raises(Retry, match="the disk fails"):
        pair.put("more")
    assert waiting.is_alive()
    pair.topic.there.set()
    waiting.join(20)
    assert not waiting.is_alive()
    assert pair.topic.held == ["late"]


def _within(seconds: float, work: Callable[[], Any]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.parametrize("version", ["", ".2"])
def test_events_of_version_1_are_forwarded_and_others_are_refused_with_advice(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "flafka.channel").write_text("08cc3c0ef1db40f7a5ce8b5fe4a1a9e4")
    header = f"flafka.08cc3c0ef1db40f7a5ce8b5fe4a1a9e4{version}"
    pair.disk.channel.open()
    pair.disk.channel.put(Batch.of([Event(b"1", {header: SOURCE}), Event(b"2", {header: f"{SOURCE} run-1"})]))
    pair.disk.channel.close()
    pair.start()
    try:
        if not version:
            until(lambda: pair.topic.held == ["1", "2"], "the events", 20)
            return
        sentence = (
            "a.channels.c2 holds events of version 2, and this agent reads version 1: let the agent that wrote them "
            "forward them, with brokers that answer, and start this agent after that"
        )
        until(lambda: sentence in caplog.text, "the refusal", 20)
        assert pair.topic.held == []
    finally:
        pair.stop()

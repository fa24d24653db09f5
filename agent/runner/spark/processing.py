"""A processor's streams on Spark: one query for each output, each with a checkpoint that is its state."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from flafka.agent.monitoring.definitions import BATCH
from flafka.agent.runner.deadletters.notices import Causes, both
from flafka.agent.runner.delivery import intercepted, opened
from flafka.agent.runner.retries import log_failure
from flafka.agent.runner.spark import failures
from flafka.agent.runner.spark.job import (
    EventsTask,
    InterceptorCounts,
    Job,
    SinkJob,
    Summing,
    merge_events,
    sum_counts,
)
from flafka.agent.runner.spark.progress import Offsets, ends_of, ends_of_log, gauges_of, report, report_rejected
from flafka.agent.runner.spark.query import Clock, most_records, read_topic
from flafka.agent.runner.spark.sample import stream_of, write_micro_batch
from flafka.plugins import (
    Assignment,
    Batch,
    Conflict,
    Event,
    FlafkaError,
    KafkaStream,
    Retry,
    StreamingSink,
)
from flafka.plugins.kafka.admin import create_topic
from flafka.plugins.kafka.clients import REQUEST_SECONDS, Access, Role, new_admin, stream_client
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.offsets import RecordsLost, begins_late
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.shared.frames import EVENTS

log = logging.getLogger("spark")

OWNER_FILE = "flafka.json"
"""Within a checkpoint: whose it is."""


class Processing:
    """The queries of one streaming sink."""

    def __init__(self, job: Job, sink: SinkJob) -> None:
        self.agent, self.job, self.options = job, sink, job.options
        self.sink: StreamingSink = sink.sink.make()
        self.channel: KafkaBackedChannel = sink.channel.make()
        self.assignments: dict[int, Assignment] = {}
        """By partition: the committed offset of the group when the queries began."""
        self._ends: dict[str, Offsets] = {}
        self._gauges: dict[str, dict[str, float]] = {}
        self._counted: Any = None
        """Spark's accumulator of what interceptors counted on executors, once for each query."""
        self._told: InterceptorCounts = {}
        self._rejected: Any = None
        """Spark's accumulator of what became dead letters, as a dict of Causes."""
        self._told_rejected: Causes = {}
        self._made: Any = None
        """Spark's accumulator of the events of each micro-batch, as MicroBatches."""
        self._finished: dict[str, int] = {}
        """Events in finished micro-batches, by output."""
        self._delivered = 0
        """Events that were reported as delivered."""

    def run(self, spark: Any, stopping: threading.Event) -> None:
        """Stream until stopping; raises what made a stream fail."""
        queries: list[Any] = []
        directory = ""
        try:
            self.channel.open()
            self.sink.open()
            events, stream = self.events(spark)
            frames = self.sink.frames(events)
            make_topics(stream, self.sink.topics(), len(self.assignments), self.channel.replication)
            directory = self._checkpoint(spark)
            self._check_files(spark, directory, frames)
            self._ends = {name: done(spark, f"{directory}/{name}") for name in frames}
            self._refuse_lost()
            self._tell_late()
            self._gauges = {name: {} for name in frames}
            self._finished, self._delivered = dict.fromkeys(frames, 0), 0
            interval = self.options.spark_trigger_interval
            for name, frame in frames.items():
                writer = self.sink.writer(name, frame, stream).queryName(f"{self.job.sink.path}.{name}")
                writer = writer.option("checkpointLocation", f"{directory}/{name}")
                queries.append(writer.trigger(processingTime=f"{interval} seconds").start())
            await_end(queries, stopping)
        except Exception as e:
            if directory and (
                why := failures.of_checkpoint(f"{type(e).__name__}: {e}", directory, self.job.sink.path)
            ):
                raise FlafkaError(why) from e
            raise
        finally:
            for query in queries:
                query.stop()
            self.sink.close()
            self.channel.close()

    def preview(
        self, spark: Any, rows: int, samples: Sequence[Event] | None = None, *, as_json: bool = False
    ) -> None:
        """Run the processor once over all that the channel holds, or over those events in place of it.

        The results are printed, as tables or an object a row; nothing is kept.
        """
        if samples is not None:
            self._show(self._sampled(spark, samples), rows, as_json)
            return
        self.channel.open()
        try:
            self._show(self.events(spark, preview=True)[0], rows, as_json)
        finally:
            self.channel.close()

    def _show(self, events: Any, rows: int, as_json: bool) -> None:
        show = _show_json if as_json else _show
        for name, frame in self.sink.frames(events).items():
            writer = frame.writeStream.foreachBatch(lambda batch, _, n=name: show(n, batch, rows))
            _started(writer.trigger(availableNow=True)).awaitTermination()

    def _sampled(self, spark: Any, samples: Sequence[Event]) -> Any:
        with opened(self.job.sink.interceptors) as interceptors:
            batch = intercepted(Batch.of(samples), interceptors)
        directory = Path(self.agent.directory, "events")
        write_micro_batch(directory, "samples", 0, list(batch))
        return stream_of(spark, directory)

    def events(self, spark: Any, *, preview: bool = False) -> tuple[Any, KafkaStream]:
        """The channel as a streaming DataFrame, from the group's offsets on or, to preview, from the start."""
        stream = self.channel.kafka.stream(self.job.sink.group)
        committed = self.channel.kafka.committed(self.job.sink.group)
        self.assignments = {one.partition: one for one in committed}
        starts = {one.partition: None if preview else one.next_offset for one in committed}
        template = committed[0].of(epoch=0)
        self._counted = spark.sparkContext.accumulator({}, Summing(sum_counts))
        self._rejected = spark.sparkContext.accumulator({}, Summing(both))
        self._made = spark.sparkContext.accumulator({}, Summing(merge_events))
        task = EventsTask(
            self.agent,
            self.job,
            self.assignments,
            template,
            self._counted.add,
            self._rejected.add,
            self._made.add,
            keep_dead_letters=not preview,
        )
        most = most_records(self.channel, self.options)
        return read_topic(spark, stream, starts, most).mapInArrow(task, EVENTS), stream

    def _refuse_lost(self) -> None:
        """Raise FlafkaError where brokers have lost records that a checkpoint or the group is past."""
        ends = [self._at(ends) for ends in self._ends.values()]
        for starts in ends or [[]]:
            for error in self.channel.kafka.refusals(self.job.sink.group, starts or None):
                if isinstance(error, RecordsLost):  # Spark itself stops at what retention removed
                    with suppress(Retry, Conflict):  # the next attempt finds it again
                        self.channel.kafka.refuse(error)
                    # The error ends with a command, to which the reports of failures add the brokers.
                    raise FlafkaError(f"name another {self.job.sink.path}.checkpoint, and reset its group: {error}")

    def _tell_late(self) -> None:
        """Say where neither the group nor a checkpoint has an offset, and what was the first is gone."""
        oldest, known = self.channel.kafka.starts(), set[int]().union(*self._ends.values())
        for partition, committed in self.assignments.items():
            start = oldest.get(partition, 0)
            if start and committed.next_offset is None and partition not in known:
                log.warning("%s", begins_late(committed.at(start)))

    def _at(self, ends: Offsets) -> list[Assignment]:
        """Return the assignments of these partitions, so far as they are known, at these offsets."""
        return [self.assignments[p].at(end) for p, end in ends.items() if p in self.assignments]

    def show(self, progress: Any) -> None:
        """Set the gauges, and tell the group how far all queries have come."""
        name = progress.name.removeprefix(f"{self.job.sink.path}.")
        self._ends[name], self._gauges[name] = ends_of(progress), gauges_of(progress, {})
        counts = {"BatchCompleteCount": 1} if progress.numInputRows else {}
        if events := self._newly_delivered(name, progress):
            counts |= {"EventDrainAttemptCount": events, "EventDrainSuccessCount": events}
        self._report(counts)
        self._store_offsets()

    def _newly_delivered(self, name: str, progress: Any) -> int:
        """Return the number of events that all outputs have finished now that this one has finished a micro-batch."""
        made = self._made.value if self._made is not None else {}
        events = sum(made.get((str(progress.id), progress.batchId), {}).values())
        self._finished[name] = self._finished.get(name, 0) + events
        before, self._delivered = self._delivered, min(self._finished.values())
        return self._delivered - before

    def _store_offsets(self) -> None:
        if not self._ends or not all(self._ends.values()):
            return
        common = set.intersection(*(set(ends) for ends in self._ends.values()))
        try:
            self.channel.kafka.commit_offsets(self._at({p: min(e[p] for e in self._ends.values()) for p in common}))
        except (Retry, Conflict) as e:
            log_failure(log, logging.INFO, str(e), e)  # the checkpoints are the truth

    def idle(self, query: str) -> None:
        """There is nothing new for one of the queries."""
        self._gauges.setdefault(query.removeprefix(f"{self.job.sink.path}."), {})["Lag"] = 0
        self._report({})
        self._store_offsets()  # an agent that was killed may not have told

    def _report(self, counts: Mapping[str, float]) -> None:
        """The figures of all queries in one; a lag once all are known."""
        gauges: dict[str, float] = {}
        for told in self._gauges.values():
            for gauge, value in told.items():
                summed = gauge not in ("Lag", BATCH.name)
                gauges[gauge] = gauges.get(gauge, 0) + value if summed else max(gauges.get(gauge, 0), value)
        if not all("Lag" in told for told in self._gauges.values()):
            gauges.pop("Lag", None)
        if rejected := self._news_of_rejected():
            report_rejected(self.job.sink.path, rejected)
            counts = {**counts, "EventRejectedCount": sum(events for _, events in rejected.values())}
        report(self.job.sink.name, counts, gauges, interceptors=self._news())

    def _news_of_rejected(self) -> Causes:
        """Return the causes of new dead letters since the last call."""
        before, self._told_rejected = (
            self._told_rejected,
            dict(self._rejected.value if self._rejected is not None else {}),
        )
        news = {cause: (why, n - before.get(cause, ("", 0))[1]) for cause, (why, n) in self._told_rejected.items()}
        return {cause: (why, events) for cause, (why, events) in news.items() if events}

    def _news(self) -> InterceptorCounts:
        """Return what interceptors counted since the last call."""
        before, self._told = self._told, dict(self._counted.value if self._counted is not None else {})
        return {
            name: ({count: n - before.get(name, ({}, ""))[0].get(count, 0) for count, n in counts.items()}, error)
            for name, (counts, error) in self._told.items()
        }

    def _checkpoint(self, spark: Any) -> str:
        """The directory of the checkpoints, once it is certain that they are this pipeline's."""
        path = self.job.sink.path
        own = Path(self.agent.log_file).with_name(f"{path}.checkpoint")
        directory = self.sink.checkpoint or str(own)
        topic = next(iter(self.assignments.values())).topic_partition
        owner = {
            "sink": path,
            "processor": self.sink.pipeline,
            "topic": topic.topic,
            "topic id": topic.topic_id,
            "cluster": topic.cluster,
        }
        configuration = self.agent.configuration if self.sink.checkpoint is None else ""
        found = owner_of(spark, directory, owner | ({"configuration": configuration} if configuration else {}))
        other = [
            f"{name} {found.get(name)} instead of {value}"
            for name, value in owner.items()
            if found.get(name) != value
        ]
        if other:
            raise FlafkaError(
                f"checkpoint {directory} belongs to another pipeline ({', '.join(other)}): name another directory "
                f"with {path}.checkpoint, or delete that one to forget its state and begin at the group's positions"
            )
        if configuration and found.get("configuration", configuration) != configuration:
            raise FlafkaError(
                f"checkpoint {directory} belongs to the agent of the same name with {found['configuration']}: name "
                f"another directory with {path}.checkpoint, or this one if that file is {configuration} now"
            )
        return directory

    def _check_files(self, spark: Any, directory: str, outputs: Iterable[str]) -> None:
        """Raise FlafkaError where files of an output were written with another checkpoint.

        Spark leaves out micro-batches that a directory of files has already, by number, so ours would be lost."""
        for name in outputs:
            if (place := self.sink.files(name)) is None:
                continue
            written = latest_batch(spark, f"{place}/_spark_metadata")
            if written > latest_batch(spark, f"{directory}/{name}/offsets"):
                raise FlafkaError(
                    f"output {name}: {place} was written to with another checkpoint, up to its micro-batch "
                    f"{written}, and Spark would leave out as many of this one's: name another path, or move "
                    f"{place}/_spark_metadata away, whereupon readers take all files that are there"
                )


OUTPUTS = Role(
    "the outputs of a sink `spark`",
    (Access("topics of the outputs of a sink `spark`", ("Write", "Describe", "Create")),),
)


def make_topics(stream: KafkaStream, topics: Iterable[str], partitions: int, replication: int) -> None:
    """Create those that are not there, on the brokers of a channel. Raises Retry where that is not possible."""
    admin = new_admin(OUTPUTS, stream_client(stream))
    try:
        there = admin.list_topics(timeout=REQUEST_SECONDS).topics
        for topic in sorted(set(topics) - set(there)):
            try:
                if create_topic(admin, topic, partitions, replication, {}, REQUEST_SECONDS):
                    log.info("created topic %s: %d partitions, %d replicas", topic, partitions, replication)
            except KafkaException as e:
                raise Retry(
                    f"topic {topic} cannot be created: {sentence(e)}: agent topic create {topic} "
                    f"--bootstrap-server {stream.bootstrap_servers}"
                ) from e
    except KafkaException as e:
        raise Retry(f"no Kafka broker answers at {stream.bootstrap_servers} ({sentence(e)})") from e


def await_end(queries: list[Any], stopping: threading.Event) -> None:
    """Return when one has ended; when stopping, stop each once it is at rest: together they may never be."""
    clock = Clock()
    while queries and not any(query.awaitTermination(0.2) for query in queries):
        clock.look()
        for query in [q for q in queries if stopping.is_set() and not q.status["isTriggerActive"]]:
            query.stop()
            queries.remove(query)


def latest_batch(spark: Any, directory: str) -> int:
    """The highest number of a micro-batch in a log of Spark's; -1 where there is none."""
    path = spark._jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    there = files.listStatus(path) if files.exists(path) else ()
    names = (status.getPath().getName().removesuffix(".compact") for status in there)
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def done(spark: Any, directory: str) -> Offsets:
    """Up to where the query of that checkpoint has finished its micro-batches; empty where there is none."""
    latest = latest_batch(spark, f"{directory}/commits")
    if latest < 0:
        return {}
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{directory}/offsets/{latest}")
    content = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
    try:
        return ends_of_log(bytes(content.readAllBytes()).decode())
    except ValueError as e:
        raise FlafkaError(f"Failed to read log file {directory}/offsets/{latest}. Incomplete log file") from e
    finally:
        content.close()


def owner_of(spark: Any, directory: str, owner: Mapping[str, str]) -> dict[str, str]:
    """Return the owner of a checkpoint, on any file system of Hadoop's; take it where it has none."""
    file = spark._jvm.org.apache.hadoop.fs.Path(directory, OWNER_FILE)
    files = file.getFileSystem(spark._jsc.hadoopConfiguration())
    if files.exists(file):
        with_content = files.open(file)
        try:
            return dict(json.loads(bytes(with_content.readAllBytes())))
        except ValueError:
            pass  # its writer was killed, before anything else was there
        finally:
            with_content.close()
    there = files.listStatus(file.getParent()) if files.exists(file.getParent()) else ()
    if any(status.getPath().getName() != OWNER_FILE for status in there):
        return {}
    out = files.create(file, True)
    out.write(bytearray(json.dumps(owner).encode()))
    out.close()
    return dict(owner)


def _started(writer: Any) -> Any:
    """Shows what changes, so that windows that are still open are seen; a join shows finished rows only."""
    from pyspark.errors import AnalysisException

    try:
        return writer.outputMode("update").start()
    except AnalysisException:
        return writer.outputMode("append").start()


def _show_json(name: str, batch: Any, rows: int) -> None:
    for (text,) in batch.selectExpr("to_json(struct(*))").take(rows):
        print(json.dumps({"output": name, "row": json.loads(text)}, ensure_ascii=False))


def _show(name: str, batch: Any, rows: int) -> None:
    if not batch.isEmpty():
        print(f"{name}:")
        batch.show(rows, truncate=False)

"""Streaming queries of a processor on Spark: one for each output, with a checkpoint that has its state."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from flafka.agent.monitoring.definitions import BATCH
from flafka.agent.runner.deadletters.alerts import ErrorGroups, merge_groups
from flafka.agent.runner.delivery import intercept, open_interceptors
from flafka.agent.runner.retries import log_failure
from flafka.agent.runner.spark import failures
from flafka.agent.runner.spark.job import (
    DictAccumulator,
    EventsTask,
    InterceptorCounts,
    Job,
    SinkJob,
    merge_events,
    sum_counts,
)
from flafka.agent.runner.spark.progress import (
    Offsets,
    end_offsets_of,
    end_offsets_of_log,
    gauges_of,
    report,
    report_rejected,
)
from flafka.agent.runner.spark.query import ClockMonitor, max_records, read_topic
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
from flafka.plugins.dataframe import EVENTS
from flafka.plugins.kafka.admin import (
    create_topic,
    has_write_access,
    refused_operations,
    visibility_error,
)
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_admin, stream_client
from flafka.plugins.kafka.errors import explain_error
from flafka.plugins.kafka.offsets import RecordsLost, missing_offset_warning
from flafka.plugins.kafka.rights import Access, Role
from flafka.plugins.kafka.topic import KafkaBackedChannel

log = logging.getLogger("spark")

OWNER_FILE = "flafka.json"
"""Name of the file in a checkpoint directory that has the checkpoint's owner."""


class Processing:
    """Streaming queries of one processor."""

    def __init__(self, job: Job, sink: SinkJob) -> None:
        self.agent, self.job, self.options = job, sink, job.options
        self.sink: StreamingSink = sink.sink.make()
        self.channel: KafkaBackedChannel = sink.channel.make()
        self.assignments: dict[int, Assignment] = {}
        """Committed offsets of the group at the start of the queries, by partition."""
        self._ends: dict[str, Offsets] = {}
        """Offsets up to which each output's query has read."""
        self._gauges: dict[str, dict[str, float]] = {}
        """Latest gauges of each output's query."""
        self._counted: Any = None
        """Spark accumulator of the counts of interceptors on executors, as InterceptorCounts."""
        self._reported_counts: InterceptorCounts = {}
        self._rejected: Any = None
        """Spark accumulator of new dead letters, as ErrorGroups."""
        self._reported_groups: ErrorGroups = {}
        self._made: Any = None
        """Spark accumulator of the events of each micro-batch, as MicroBatches."""
        self._finished: dict[str, int] = {}
        """Number of events in finished micro-batches, by output."""
        self._delivered = 0
        """Number of events that were reported as delivered."""

    def run(self, spark: Any, stopping: threading.Event) -> None:
        """Run a query for each output until `stopping` is set and each query is idle.

        Raises the error that ended a query, or FlafkaError for a checkpoint that is damaged or belongs to another
        pipeline.
        """
        queries: list[Any] = []
        directory = ""
        try:
            self.channel.open()
            self.sink.open()
            events, stream = self.events(spark)
            frames = self.sink.frames(events)
            create_missing_topics(stream, self.sink.topics(), len(self.assignments), self.channel.replication)
            directory = self._checkpoint(spark)
            self._check_files(spark, directory, frames)
            self._ends = {name: finished_offsets(spark, f"{directory}/{name}") for name in frames}
            self._refuse_lost()
            self._warn_late()
            self._gauges = {name: {} for name in frames}
            self._finished, self._delivered = dict.fromkeys(frames, 0), 0
            interval = self.options.spark_trigger_interval
            for name, frame in frames.items():
                writer = self.sink.writer(name, frame, stream).queryName(f"{self.job.sink.path}.{name}")
                writer = writer.option("checkpointLocation", f"{directory}/{name}")
                queries.append(writer.trigger(processingTime=f"{interval} seconds").start())
            wait_for_end(queries, stopping)
        except Exception as e:
            if directory and (
                why := failures.checkpoint_error(f"{type(e).__name__}: {e}", directory, self.job.sink.path)
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
        """Run the processor once over all present events of the channel, or over `samples`, and print its rows.

        Prints up to `rows` rows of each micro-batch of an output, as tables or as one JSON object per row. Stores no
        offsets, no dead letters and no state.
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
        """Run the processor once over all `events`, and print up to `rows` rows of each micro-batch of an output."""
        show = _show_json if as_json else _show
        for name, frame in self.sink.frames(events).items():
            writer = frame.writeStream.foreachBatch(lambda batch, _, n=name: show(n, batch, rows))
            _start_preview(writer.trigger(availableNow=True)).awaitTermination()

    def _sampled(self, spark: Any, samples: Sequence[Event]) -> Any:
        """Return `samples`, after the sink's interceptors, as a streaming DataFrame."""
        with open_interceptors(self.job.sink.interceptors) as interceptors:
            batch = intercept(Batch.of(samples), interceptors)
        directory = Path(self.agent.directory, "events")
        write_micro_batch(directory, "samples", 0, list(batch))
        return stream_of(spark, directory)

    def events(self, spark: Any, *, preview: bool = False) -> tuple[Any, KafkaStream]:
        """Return the channel's events as a streaming DataFrame, and its topic.

        The events begin at the group's committed offsets; for a preview, at the first record, and without dead
        letters.
        """
        stream = self.channel.kafka.stream(self.job.sink.group)
        committed = self.channel.kafka.committed(self.job.sink.group)
        self.assignments = {one.partition: one for one in committed}
        starts = {one.partition: None if preview else one.next_offset for one in committed}
        template = committed[0].replace(epoch=0)
        self._counted = spark.sparkContext.accumulator({}, DictAccumulator(sum_counts))
        self._rejected = spark.sparkContext.accumulator({}, DictAccumulator(merge_groups))
        self._made = spark.sparkContext.accumulator({}, DictAccumulator(merge_events))
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
        most = max_records(self.channel, self.options)
        return read_topic(spark, stream, starts, most).mapInArrow(task, EVENTS), stream

    def _refuse_lost(self) -> None:
        """Raise FlafkaError if brokers have lost records before the offsets of a checkpoint or of the group."""
        ends = [self._at(ends) for ends in self._ends.values()]
        for starts in ends or [[]]:
            for error in self.channel.kafka.blocking_errors(self.job.sink.group, starts or None):
                if isinstance(error, RecordsLost):  # Spark itself notices records that retention removed
                    with suppress(Retry, Conflict):  # the next attempt finds the error again
                        self.channel.kafka.store_error(error)
                    # The error ends with a command, to which `add_brokers` appends the brokers.
                    raise FlafkaError(f"name another {self.job.sink.path}.checkpoint, and reset its group: {error}")

    def _warn_late(self) -> None:
        """Log a warning for partitions whose first records were removed before any query has read them.

        These have neither a committed offset of the group nor an offset in a checkpoint.
        """
        oldest, known = self.channel.kafka.beginning_offsets(), set[int]().union(*self._ends.values())
        for partition, committed in self.assignments.items():
            start = oldest.get(partition, 0)
            if start and committed.next_offset is None and partition not in known:
                log.warning("%s", missing_offset_warning(committed.with_offset(start)))

    def _at(self, ends: Offsets) -> list[Assignment]:
        """Return assignments with these offsets, for the partitions in `ends` that the group knows."""
        return [self.assignments[p].with_offset(end) for p, end in ends.items() if p in self.assignments]

    def on_progress(self, progress: Any) -> None:
        """Report gauges and newly delivered events, and commit the offsets that all outputs' queries have reached."""
        name = progress.name.removeprefix(f"{self.job.sink.path}.")
        self._ends[name], self._gauges[name] = end_offsets_of(progress), gauges_of(progress, {})
        counts = {"BatchCompleteCount": 1} if progress.numInputRows else {}
        if events := self._newly_delivered(name, progress):
            counts |= {"EventDrainAttemptCount": events, "EventDrainSuccessCount": events}
        self._report(counts)
        self._store_offsets()

    def _newly_delivered(self, name: str, progress: Any) -> int:
        """Return the number of events that all outputs have delivered since the last call.

        `name` is an output that has finished the micro-batch of `progress`.
        """
        made = self._made.value if self._made is not None else {}
        events = sum(made.get((str(progress.id), progress.batchId), {}).values())
        self._finished[name] = self._finished.get(name, 0) + events
        before, self._delivered = self._delivered, min(self._finished.values())
        return self._delivered - before

    def _store_offsets(self) -> None:
        """Commit the least of the outputs' offsets for each partition that all outputs have read.

        Errors are only logged.
        """
        if not self._ends or not all(self._ends.values()):
            return
        common = set.intersection(*(set(ends) for ends in self._ends.values()))
        try:
            self.channel.kafka.commit_offsets(self._at({p: min(e[p] for e in self._ends.values()) for p in common}))
        except (Retry, Conflict) as e:
            log_failure(log, logging.INFO, str(e), e)  # queries resume from their checkpoints, not from offsets

    def on_idle(self, query: str) -> None:
        """Report a lag of 0 for the output of `query`, as there are no new records, and commit the offsets again."""
        self._gauges.setdefault(query.removeprefix(f"{self.job.sink.path}."), {})["Lag"] = 0
        self._report({})
        self._store_offsets()  # again, as an agent that was killed may not have committed them

    def _report(self, counts: Mapping[str, float]) -> None:
        """Report counts, the gauges of all queries, and new dead letters to the agent.

        Gauges are sums; lag and duration are maxima. The lag is reported only once all queries have one.
        """
        gauges: dict[str, float] = {}
        for gauges_of_query in self._gauges.values():
            for gauge, value in gauges_of_query.items():
                is_summed = gauge not in ("Lag", BATCH.name)
                gauges[gauge] = gauges.get(gauge, 0) + value if is_summed else max(gauges.get(gauge, 0), value)
        if not all("Lag" in gauges_of_query for gauges_of_query in self._gauges.values()):
            gauges.pop("Lag", None)
        if rejected := self._new_error_groups():
            report_rejected(self.job.sink.path, rejected)
            counts = {**counts, "EventRejectedCount": sum(events for _, events in rejected.values())}
        report(self.job.sink.name, counts, gauges, interceptors=self._new_interceptor_counts())

    def _new_error_groups(self) -> ErrorGroups:
        """Return the error groups of dead letters that executors have stored since the last call."""
        before = self._reported_groups
        self._reported_groups = dict(self._rejected.value if self._rejected is not None else {})
        new = {key: (why, n - before.get(key, ("", 0))[1]) for key, (why, n) in self._reported_groups.items()}
        return {key: (why, events) for key, (why, events) in new.items() if events}

    def _new_interceptor_counts(self) -> InterceptorCounts:
        """Return counts and latest error of each interceptor on executors; counts since the last call."""
        before = self._reported_counts
        self._reported_counts = dict(self._counted.value if self._counted is not None else {})
        return {
            name: ({count: n - before.get(name, ({}, ""))[0].get(count, 0) for count, n in counts.items()}, error)
            for name, (counts, error) in self._reported_counts.items()
        }

    def _checkpoint(self, spark: Any) -> str:
        """Return the checkpoint directory, and make this pipeline the owner of a new one.

        Raises FlafkaError if it belongs to another pipeline or another configuration file.
        """
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
        stored = checkpoint_owner(
            spark, directory, owner | ({"configuration": configuration} if configuration else {})
        )
        different = [
            f"{name} {stored.get(name)} instead of {value}"
            for name, value in owner.items()
            if stored.get(name) != value
        ]
        if different:
            raise FlafkaError(
                f"checkpoint {directory} belongs to another pipeline ({', '.join(different)}): name another "
                f"directory with {path}.checkpoint, or delete that one to drop its state and begin at the group's "
                "offsets"
            )
        if configuration and stored.get("configuration", configuration) != configuration:
            raise FlafkaError(
                f"checkpoint {directory} belongs to the agent of the same name with {stored['configuration']}: name "
                f"another directory with {path}.checkpoint, or this one if that file is {configuration} now"
            )
        return directory

    def _check_files(self, spark: Any, directory: str, outputs: Iterable[str]) -> None:
        """Raise FlafkaError if files of an output were written with another checkpoint.

        Spark skips micro-batches whose numbers a directory of files has already, so new ones would be lost.
        """
        for name in outputs:
            if (path := self.sink.output_directory(name)) is None:
                continue
            written = latest_batch(spark, f"{path}/_spark_metadata")
            if written > latest_batch(spark, f"{directory}/{name}/offsets"):
                raise FlafkaError(
                    f"output {name}: {path} was written to with another checkpoint, up to its micro-batch "
                    f"{written}, and Spark would skip as many micro-batches of this one: name another path, or move "
                    f"{path}/_spark_metadata away, after which readers read all files that are there"
                )


OUTPUTS = Role(
    "the outputs of a sink `spark`",
    (Access("topic", "topics of the outputs of a sink `spark`", ("Write", "Create")),),
)


def create_missing_topics(stream: KafkaStream, topics: Iterable[str], partitions: int, replication: int) -> None:
    """Create the missing ones of these topics on the brokers of `stream`.

    Raises Retry if that fails, or if the client may not write to one of the topics.
    """
    client = stream_client(stream)
    admin = new_admin(OUTPUTS, client)
    try:
        existing = admin.list_topics(timeout=REQUEST_SECONDS).topics
        for topic in sorted(set(topics) & set(existing)):
            if not has_write_access(admin, topic):  # Spark would end the query, with a stack trace
                denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                raise Retry(explain_error(denied, topic=topic, right="Write", client=client))
        for topic in sorted(set(topics) - set(existing)):
            try:
                if create_topic(admin, topic, partitions, replication, {}, REQUEST_SECONDS):
                    log.info("created topic %s: %d partitions, %d replicas", topic, partitions, replication)
                elif refusal := visibility_error(client, topic, ["Write"]):
                    raise Retry(refusal)
            except KafkaException as e:
                right = refused_operations(admin, topic, ["Write"])
                why = explain_error(e, topic=topic, right=right, client=client)
                command = f"agent topic create {topic} --bootstrap-server {stream.bootstrap_servers}"
                raise Retry(f"topic {topic} cannot be created, try `{command}`: {why}") from e
    except KafkaException as e:
        raise Retry(f"no Kafka broker answers at {stream.bootstrap_servers} ({explain_error(e)})") from e


def wait_for_end(queries: list[Any], stopping: threading.Event) -> None:
    """Block until one query has ended by itself, or all were stopped. Raises the error of a query that failed.

    Once `stopping` is set, stop each query when it is idle: they may never be idle all at once. Raises Retry if the
    clock was set back.
    """
    clock = ClockMonitor()
    while queries and not any(query.awaitTermination(0.2) for query in queries):
        clock.check()
        for query in [q for q in queries if stopping.is_set() and not q.status["isTriggerActive"]]:
            query.stop()
            queries.remove(query)


def latest_batch(spark: Any, directory: str) -> int:
    """Return the highest number of a micro-batch in a metadata log of Spark; -1 for an empty or missing log."""
    path = spark._jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    entries = files.listStatus(path) if files.exists(path) else ()
    names = (status.getPath().getName().removesuffix(".compact") for status in entries)
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def finished_offsets(spark: Any, directory: str) -> Offsets:
    """Return the offsets up to which a checkpoint's query has finished micro-batches; empty without a checkpoint.

    Raises FlafkaError for a damaged entry.
    """
    latest = latest_batch(spark, f"{directory}/commits")
    if latest < 0:
        return {}
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{directory}/offsets/{latest}")
    content = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
    try:
        return end_offsets_of_log(bytes(content.readAllBytes()).decode())
    except ValueError as e:
        raise FlafkaError(f"Failed to read log file {directory}/offsets/{latest}. Incomplete log file") from e
    finally:
        content.close()


def checkpoint_owner(spark: Any, directory: str, owner: Mapping[str, str]) -> dict[str, str]:
    """Return the owner that a checkpoint on a Hadoop file system has, as it was written; empty if it has none.

    A directory without other files becomes a checkpoint of `owner`, which is then returned.
    """
    file = spark._jvm.org.apache.hadoop.fs.Path(directory, OWNER_FILE)
    files = file.getFileSystem(spark._jsc.hadoopConfiguration())
    if files.exists(file):
        stream = files.open(file)
        try:
            return dict(json.loads(bytes(stream.readAllBytes())))
        except ValueError:
            pass  # its writer was killed, before the checkpoint had any other file
        finally:
            stream.close()
    entries = files.listStatus(file.getParent()) if files.exists(file.getParent()) else ()
    if any(status.getPath().getName() != OWNER_FILE for status in entries):
        return {}
    out = files.create(file, True)
    out.write(bytearray(json.dumps(owner).encode()))
    out.close()
    return dict(owner)


def _start_preview(writer: Any) -> Any:
    """Start a query in update mode, which also shows open windows, and return it; else in append mode."""
    from pyspark.errors import AnalysisException

    try:
        return writer.outputMode("update").start()
    except AnalysisException:
        return writer.outputMode("append").start()


def _show_json(name: str, batch: Any, rows: int) -> None:
    """Print up to `rows` rows of a micro-batch, each as one line of JSON with the name of the output."""
    for (text,) in batch.selectExpr("to_json(struct(*))").take(rows):
        print(json.dumps({"output": name, "row": json.loads(text)}, ensure_ascii=False))


def _show(name: str, batch: Any, rows: int) -> None:
    """Print the name of an output and up to `rows` rows of its micro-batch as a table; nothing for an empty one."""
    if not batch.isEmpty():
        print(f"{name}:")
        batch.show(rows, truncate=False)

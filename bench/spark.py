"""Events out of Kafka, masked, into text and Parquet on HDFS: Spark with two cores, and plain Structured Streaming.

The same events are in two topics of the same brokers: Flafka's, in which a record is an Arrow batch, and a plain one
with a record per event. The sink `hdfs` with `runner = spark` delivers the first. A handwritten query delivers the
other, with a regular expression in place of the mask. Both run in one session, `local[2]`, without checkpoints to
continue from.

Time runs from the start of a query, a new one in each round, to its last commit. Every file is read back and
verified. Memory is the peak of the resident sets of the JVM and its Python workers.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator

from bench.frame import RATE, Bench, Figures, without_setup
from bench.frame.delivery import ARROW, FORMS, INTO_HDFS, PLAIN, StoredEvents, configuration, peak_memory
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.config import load
from flafka.agent.options import AgentOptions
from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.deadletters.store import dead_letter_store
from flafka.agent.runner.spark.job import Job, SinkJob
from flafka.agent.runner.spark.query import Query
from flafka.agent.runner.spark.session import start_session, stop_session
from flafka.agent.services.hdfs import CLOSE_DELAY
from flafka.agent.services.running import until
from flafka.plugins import Components, Retry

ADDRESS = r"[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}"
"""Regular expression of the interceptor `mask`."""
PEER = "plain Structured Streaming"
MEMORY = "MB at most"
CONFIGURATION = (
    INTO_HDFS
    + """\
a.sinks.k.interceptors = m
a.sinks.k.interceptors.m.type = mask
a.sinks.k.interceptors.m.patterns = ipv4
a.runner = spark
a.spark.triggerInterval = 1
"""
)


def run(bench: Bench) -> None:
    """Compare both formats, in one session."""
    stored = StoredEvents(bench.kafka, bench.events(4_000_000, 20_000))
    with _Deliveries(bench, stored) as deliveries:
        for form in ("text",) if bench.smoke else FORMS:
            bench.compare(
                f"channel, mask, {form} on Spark",
                without_setup(deliveries.contestant(deliveries.ours, form)),
                {PEER: without_setup(deliveries.contestant(deliveries.plain, form))},
            )


class _Deliveries:
    """Deliveries in one Spark session."""

    def __init__(self, bench: Bench, stored: StoredEvents) -> None:
        self.bench, self.stored = bench, stored
        self.reader = HdfsReader(bench.hdfs.webhdfs)
        self.home = bench.directory("spark")
        self.log = self.home / "spark.log"

    def __enter__(self) -> _Deliveries:
        conf = {
            "spark.driver.memory": "1g",
            f"spark.hadoop.{CLOSE_DELAY}": "10",  # as for the DataNode, which writes for the sink `hdfs`
        }
        self.spark, self.gateway = start_session(
            "bench", AgentOptions(spark_conf=conf), self.log, keeps_checkpoints=False
        )
        return self

    def __exit__(self, *_: object) -> None:
        stop_session(self.spark, self.gateway)

    def contestant(self, deliver: Callable[[str, str], Iterator[None]], form: str) -> Callable[[], Figures]:
        """Return a contestant with a directory of its own, which measures between the steps of `deliver`."""

        def once() -> Figures:
            root = f"/{self.bench.directory('spark').name}"
            steps = deliver(root, form)
            next(steps)
            with peak_memory(self.gateway.process.pid) as peak:
                started = time.perf_counter()
                next(steps, None)
                seconds = time.perf_counter() - started
            next(steps, None)
            self.stored.check(self.reader, root, form, masked=True)
            return {RATE: self.stored.events / seconds, MEMORY: peak[0]}

        return once

    def ours(self, root: str, form: str) -> Iterator[None]:
        """Deliver the stored events by the sink on Spark, as the driver of an agent runs it, in three steps.

        The generator yields before the query starts, and again once all events are committed. Then it stops the
        query. `root` is the directory on HDFS, and `form` a key of `FORMS`. Raises AssertionError if the query ends
        early.
        """
        topic = self.stored.topic(ARROW)
        text = CONFIGURATION.format(
            servers=topic.servers,
            topic=topic.name,
            webhdfs=self.bench.hdfs.webhdfs,
            root=root,
            group=root[1:],
            form=FORMS[form],
        )
        spec, diagnostics = load(configuration(self.home, text), None, components=Components())
        assert spec is not None, diagnostics
        sink, channel = spec.sinks[0], spec.channels[0]
        job = SinkJob(sink, channel)
        rejections = Rejections(dead_letter_store("a", channel, channel.make(), spec.options), sink.tolerance)
        move = CommitLogMove()
        query = Query(Job("a", (job,), spec.options, str(self.log), str(self.home)), job, rejections, move)
        ends, stopping = topic.ends(), threading.Event()
        until(lambda: _has_coordinator(query), "a group coordinator")
        yield
        # No agent reads the messages of the driver on standard output.
        with contextlib.redirect_stdout(io.StringIO()):
            thread = threading.Thread(target=query.run, args=(self.spark, stopping))
            thread.start()
            while query.next_offsets() != ends:
                assert thread.is_alive(), f"the query ended; its log: {self.log}"
                time.sleep(0.01)
            yield
            stopping.set()
            thread.join()

    def plain(self, root: str, form: str) -> Iterator[None]:
        """Deliver by plain Structured Streaming."""
        topic = self.stored.topic(PLAIN)
        options = {
            "kafka.bootstrap.servers": topic.servers,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
        }
        yield
        stream = self.spark.readStream.format("kafka").options(**options).load()
        masked = stream.selectExpr(f"regexp_replace(CAST(value AS string), r'{ADDRESS}', '***') AS body")
        writer = masked.writeStream.format(form.lower()).option("path", f"{self.bench.hdfs.rpc}{root}")
        writer = writer.option("checkpointLocation", f"{self.home}/checkpoint{root}").trigger(availableNow=True)
        writer.start().awaitTermination()


def _has_coordinator(query: Query) -> bool:
    """Return True if the group of a query has a coordinator, as it has soon after its first request."""
    try:
        query.channel.kafka.committed(query.job.sink.group)
    except Retry:
        return False
    return True

"""Events out of Kafka, masked, into text and Parquet on HDFS, on Spark with two cores, beside Structured Streaming.

The same events lie in two topics of the same brokers: ours (a record is an Arrow batch) and a plain one (a record for
each event, as most producers write it). The sink `hdfs` with `runner = spark` delivers the one; Structured Streaming
as one writes it by hand, with a regular expression in the place of the mask, the other. Both run in one session,
`local[2]`, in which no checkpoint is gone on from. Time runs from the start of a query, which is a new one in each
round, to its last commit. Every file is read back and compared. Memory is the highest sum of resident sets seen, of
the JVM and its Python workers.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator

from bench.frame import RATE, Bench, Figures, simply
from bench.frame.delivery import ARROW, FORMS, INTO_HDFS, PLAIN, Stored, configuration, peak_memory
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.config import load
from flafka.agent.options import AgentOptions
from flafka.agent.runner.deadletters.letters import dead_letters_of
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.moving import CommitLogMove
from flafka.agent.runner.spark.job import Job, SinkJob
from flafka.agent.runner.spark.query import Query
from flafka.agent.runner.spark.session import start_session, stop_session
from flafka.agent.services.hdfs import CLOSE_DELAY
from flafka.agent.services.running import until
from flafka.plugins import Components, Retry

ADDRESS = r"[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}"
"""As the interceptor `mask` has it."""
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
    """Both forms, in one session."""
    stored = Stored(bench.kafka, bench.events(4_000_000, 20_000))
    with _Deliveries(bench, stored) as deliveries:
        for form in ("text",) if bench.smoke else FORMS:
            bench.compare(
                f"channel, mask, {form} on Spark",
                simply(deliveries.each(deliveries.ours, form)),
                {PEER: simply(deliveries.each(deliveries.plain, form))},
            )


class _Deliveries:
    """One Spark session and what is delivered in it."""

    def __init__(self, bench: Bench, stored: Stored) -> None:
        self.bench, self.stored = bench, stored
        self.reader = HdfsReader(bench.hdfs.webhdfs)
        self.home = bench.directory("spark")
        self.log = self.home / "spark.log"

    def __enter__(self) -> _Deliveries:
        conf = {
            "spark.driver.memory": "1g",
            f"spark.hadoop.{CLOSE_DELAY}": "10",  # as the DataNode has it, which writes for our sink
        }
        self.spark, self.gateway = start_session(
            "bench", AgentOptions(spark_conf=conf), self.log, keeps_checkpoints=False
        )
        return self

    def __exit__(self, *_: object) -> None:
        stop_session(self.spark, self.gateway)

    def each(self, deliver: Callable[[str, str], Iterator[None]], form: str) -> Callable[[], Figures]:
        """Deliver into a directory of its own, with all that there is to measure between its two steps."""

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
        """The sink on Spark, as the driver of an agent runs it."""
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
        rejections = Rejections(dead_letters_of("a", channel, channel.make(), spec.options), sink.tolerance)
        move = CommitLogMove()
        query = Query(Job("a", (job,), spec.options, str(self.log), str(self.home)), job, rejections, move)
        ends, stopping = topic.ends(), threading.Event()
        until(lambda: _answered(query), "brokers that look after groups")
        yield
        # What the driver tells the agent on its standard output is heard by nobody here.
        with contextlib.redirect_stdout(io.StringIO()):
            thread = threading.Thread(target=query.run, args=(self.spark, stopping))
            thread.start()
            while query.expected() != ends:
                assert thread.is_alive(), f"the query ended; its log: {self.log}"
                time.sleep(0.01)
            yield
            stopping.set()
            thread.join()

    def plain(self, root: str, form: str) -> Iterator[None]:
        """Structured Streaming alone."""
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


def _answered(query: Query) -> bool:
    """Whether its group has a coordinator, as it has soon after the first group was asked for."""
    try:
        query.channel.kafka.committed(query.job.sink.group)
    except Retry:
        return False
    return True

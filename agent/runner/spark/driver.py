"""The driver process: `python -m agent.runner.spark.driver`, started and watched by the agent.

Reads a pickled `Job` from its standard input, reports counters as lines of JSON on its standard output, and ends
when told to (SIGTERM: after the micro-batch under way) or when the agent is gone (its standard input closes).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.runner.deadletters import DeadLetters, dead_letters_of
from agent.runner.spark.gateway import start_gateway
from agent.runner.spark.job import Job, PartitionTask, Result, SinkJob
from agent.runner.supervise import Backoff
from plugins import Channel, Claim, CommittingSink, FlafkaError, Retry

log = logging.getLogger("spark")

TRIGGER_SECONDS = "60"
MAX_RECORDS_PER_TRIGGER = "20000"


class Query:
    """One sink's stream: its commits happen here, and here only."""

    def __init__(self, job: SinkJob, options: Mapping[str, str], dead_letters: DeadLetters) -> None:
        self.job, self.options, self.dead_letters = job, options, dead_letters
        self.sink: CommittingSink = job.sink.make()  # type: ignore[type-arg]
        self.channel: Channel = job.channel.make()  # type: ignore[type-arg]
        self.expected: dict[int, int | None] = {}
        self.claims: dict[int, Claim] = {}
        self._shown = ""

    def run(self, spark: Any, stopping: threading.Event) -> None:
        """Stream until stopping; raises what made the stream fail."""
        directory = tempfile.mkdtemp(prefix="flafka-checkpoint-")
        try:
            self.channel.open()
            self.sink.open()
            self._resume()
            query = self._start(spark, directory)
            try:
                while not query.awaitTermination(0.2):
                    self._show_lag(query.lastProgress)
                    if stopping.is_set() and not query.status["isTriggerActive"]:
                        break
            finally:
                query.stop()
        finally:
            self.sink.close()
            self.channel.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _resume(self) -> None:
        positions = self.channel.positions(self.job.sink.group)
        self.claims = {claim.partition: claim for claim in positions}
        self.expected = {claim.partition: self.sink.resume(claim, end) for claim, end in positions.items()}

    def _start(self, spark: Any, checkpoint: str) -> Any:
        stream = self.channel.stream(self.job.sink.group)
        assert stream is not None
        earliest = -2
        offsets = {str(p): earliest if offset is None else offset for p, offset in self.expected.items()}
        reader = spark.readStream.format("kafka").options(
            **{f"kafka.{name}": value for name, value in stream.client.items()},
            **{
                "kafka.bootstrap.servers": stream.bootstrap_servers,
                "kafka.isolation.level": "read_committed",
                "subscribe": stream.topic,
                "startingOffsets": json.dumps({stream.topic: offsets}),
                "includeHeaders": "true",
                "failOnDataLoss": "true",
                "maxOffsetsPerTrigger": self.options.get("spark.maxRecordsPerTrigger", MAX_RECORDS_PER_TRIGGER),
            },
        )
        records = reader.load().selectExpr(
            "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers"
        )
        template = next(iter(self.claims.values()))._replace(epoch=0)
        task = PartitionTask(self.job, self.claims, template)
        interval = self.options.get("spark.triggerInterval", TRIGGER_SECONDS)
        return (
            records.mapInArrow(task, "result binary")
            .writeStream.foreachBatch(self._commit)
            .queryName(self.job.sink.path)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{interval} seconds")
            .start()
        )

    def _show_lag(self, progress: Any) -> None:
        if progress is None or progress["timestamp"] == self._shown:
            return
        self._shown = progress["timestamp"]
        (source,) = progress["sources"]
        latest, read = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        # What was read may end in offsets without records, which no commit covers.
        behind = sum(end - max(read.get(p, 0), self.expected.get(p) or 0) for p, end in latest.items())
        report(self.job.sink.name, {}, {"Lag": behind})

    def _commit(self, frame: Any, _: int) -> None:
        """Make one micro-batch visible, partition by partition, then move the group along."""
        results: list[Result] = [pickle.loads(row.result) for row in frame.collect()]  # noqa: S301  # our executors'
        ends: dict[Claim, int] = {}
        for result in results:
            if result.dead_letters:
                self.dead_letters.put(result.dead_letters)
            receipt = result.receipt
            partition = receipt.claim.partition
            expected = self.expected.get(partition)
            if expected is not None and receipt.start < expected:
                raise FlafkaError(f"records {receipt.start}–{expected} of partition {partition} were delivered twice")
            self.sink.commit(receipt)
            self.expected[partition] = ends[receipt.claim] = receipt.end
            report(
                self.job.sink.name,
                {**result.counts, "EventDrainSuccessCount": receipt.events, "BatchCompleteCount": 1},
            )
        try:
            if ends:
                self.channel.record(ends)
        except Retry as e:
            # The sink's record is the truth; the group is told again with the next batch.
            log.info("%s", e)


def _offsets(text: str | None) -> dict[int, int]:
    """Spark's `{"topic": {"0": 17}}` by partition."""
    return {int(p): offset for partitions in json.loads(text or "{}").values() for p, offset in partitions.items()}


def report(
    sink: str, counts: Mapping[str, float], gauges: Mapping[str, float] | None = None, error: str | None = None
) -> None:
    """One line for the agent: what to add, what to set, and what failed."""
    print(json.dumps({"sink": sink, "counts": counts, "gauges": gauges or {}, "error": error}), flush=True)


def main() -> None:
    """Run the job on standard input."""
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  # the agent's own
    _log_to_stderr()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the agent decides
    threading.Thread(target=_end_with_the_agent, args=(job.directory,), daemon=True).start()
    master = job.options.get("spark.master", "local[2]")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.app.name": f"flafka-{job.agent}",
        # Records are whole batches of events: the bytes bound what a Python worker holds at once.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        "spark.sql.session.timeZone": "UTC",
        **{k.removeprefix("spark.conf."): v for k, v in job.options.items() if k.startswith("spark.conf.")},
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    gateway = start_gateway(master, conf, Path(job.log_file))
    done = threading.Event()
    threading.Thread(target=_end_with_the_jvm, args=(gateway, job.log_file, done), daemon=True).start()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    log.info("Spark %s on %s", spark.version, master)
    threads = [
        threading.Thread(target=_supervise, args=(spark, sink, job, stopping), name=sink.sink.path)
        for sink in job.sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spark.stop()
    done.set()
    assert gateway.stdin is not None
    gateway.stdin.close()
    gateway.wait(10)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    # It tells failures at length, in two languages, and raises them as well; what they mean is said by `_supervise`.
    handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=text, handlers=[handler])


def _supervise(spark: Any, sink: SinkJob, job: Job, stopping: threading.Event) -> None:
    backoff = Backoff()
    last = ""
    while not stopping.is_set():
        started = time.monotonic()
        try:
            letters = dead_letters_of(job.agent, sink.channel, sink.channel.make(), job.options)
            Query(sink, job.options, letters).run(spark, stopping)
            return
        except Exception as e:  # noqa: BLE001  # one sink's failure must not take the others down
            text = reason(str(e) if isinstance(e, FlafkaError) else f"{type(e).__name__}: {e}")
            report(sink.sink.name, {"FailureCount": 1}, error=text)
            if text != last:
                log.warning("%s: %s", sink.sink.path, text)
            last = text
        if time.monotonic() - started > 60:
            backoff.reset()
        backoff.wait(stopping)


def reason(failure: str) -> str:
    """What happened, out of a failure's text: Spark wraps Python's trace in its own and in Java's."""
    _, trace, end = failure.rpartition("Traceback (most recent call last):")
    if trace:
        for line in end.splitlines():
            if line.strip() and not line[0].isspace():
                return line.strip().removeprefix("plugins.errors.")
    return " ".join(line.strip() for line in failure.splitlines()[:3])


def _end_with_the_agent(directory: str) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(directory, ignore_errors=True)  # else the agent does it
    # Nothing of a micro-batch is visible before its commit, so ending in the middle loses and repeats nothing.
    os._exit(1)


def _end_with_the_jvm(gateway: subprocess.Popen[bytes], log_file: str, done: threading.Event) -> None:
    code = gateway.wait()
    if not done.is_set():
        # No session can be made anew within this process: the agent starts another.
        log.error("Spark's JVM ended with code %d; its log: %s", code, log_file)
        os._exit(1)


if __name__ == "__main__":
    main()

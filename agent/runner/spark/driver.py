"""The driver process: `python -m agent.runner.spark.driver`, started and watched by the agent.

Reads a pickled `Job` from its standard input, reports counters as lines of JSON on its standard output, and ends
when told to (SIGTERM: after the micro-batch under way) or when the agent is gone (its standard input closes).
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agent.config.options import is_local
from agent.runner.deadletters import dead_letters_of
from agent.runner.rejections import Rejections
from agent.runner.spark.gateway import kill_gateway
from agent.runner.spark.job import NOT_STARTED, Job, SinkJob
from agent.runner.spark.processing import Processing
from agent.runner.spark.progress import listener, report
from agent.runner.spark.query import Query
from agent.runner.spark.session import start_session, stop_session
from agent.runner.supervise import Backoff
from agent.services import ServiceError
from plugins import FlafkaError, StreamingSink

log = logging.getLogger("spark")

WORKERS_PYTHON = (
    "the cluster's workers need a {} on their PATH (its packages come from here); "
    "spark.conf.spark.pyspark.python names another one of that version"
).format("python{}.{}".format(*sys.version_info))
HINTS = {"[PYTHON_VERSION_MISMATCH]": WORKERS_PYTHON, "Cannot run program": WORKERS_PYTHON}
"""What Spark says where Python on its workers is not what it has to be, and what there is to do."""
GONE = "failOnDataLoss"
"""What Spark speaks of where records that it was to read are gone."""
EXECUTOR_SECONDS = 30.0
"""So long a cluster may give no executor before the sinks are told to fail."""


def main() -> None:
    """Run the job on standard input."""
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  # the agent's own
    try:
        _run(job)
    finally:  # the agent does it too, unless it is gone
        _leave_nothing(job)


def _run(job: Job) -> None:
    _log_to_stderr()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the agent decides
    done = threading.Event()
    threading.Thread(target=_end_with_the_agent, args=(job, done), daemon=True).start()
    try:
        spark, gateway = start_session(job.agent, job.options, Path(job.log_file), job.modules)
    except Exception as e:  # noqa: BLE001  # Spark raises many kinds over its own properties
        text = str(e) if isinstance(e, FlafkaError | ServiceError) else reason(f"{type(e).__name__}: {e}")
        for sink in job.sinks:
            report(sink.sink.name, {"FailureCount": 1}, error=text)
        log.error("Spark does not start: %s", text)
        sys.exit(NOT_STARTED)
    threading.Thread(target=_end_with_the_jvm, args=(gateway, job.log_file, done), daemon=True).start()
    log.info("Spark %s on %s", spark.version, spark.sparkContext.master)
    if not is_local(spark.sparkContext.master):
        threading.Thread(target=_miss_executors, args=(spark, job, done), daemon=True).start()
    running: dict[str, Query | Processing] = {}

    def sink_of(query: str) -> Query | Processing:
        return running[".".join(query.split(".")[:3])]  # a1.sinks.k1, and what may follow it

    on_progress, on_idle = lambda name, told: sink_of(name).show(told), lambda name: sink_of(name).idle(name)
    spark.streams.addListener(listener(log, on_progress, on_idle))
    threads = [
        threading.Thread(target=_supervise, args=(spark, sink, job, running, stopping), name=sink.sink.path)
        for sink in job.sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    stop_session(spark, gateway)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    # It tells failures at length, in two languages, and raises them as well; what they mean is said by `_supervise`.
    handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=text, handlers=[handler])


def _supervise(
    spark: Any, sink: SinkJob, job: Job, running: dict[str, Query | Processing], stopping: threading.Event
) -> None:
    backoff = Backoff()
    last = ""
    channel = sink.channel
    letters = dead_letters_of(job.agent, channel, channel.make(), job.options)
    rejections = Rejections(letters, sink.sink.tolerance)
    while not stopping.is_set():
        started = time.monotonic()
        try:
            streams = issubclass(sink.sink.cls, StreamingSink)
            query = running[sink.sink.path] = Processing(job, sink) if streams else Query(job, sink, rejections)
            query.run(spark, stopping)
            return
        except Exception as e:  # noqa: BLE001  # one sink's failure must not take the others down
            text = reason(str(e) if isinstance(e, FlafkaError) else f"{type(e).__name__}: {e}", sink)
            report(sink.sink.name, {"FailureCount": 1}, error=text)
            if text != last:
                log.warning("%s: %s", sink.sink.path, text)
            last = text
        if time.monotonic() - started > 60:
            backoff.reset()
        backoff.wait(stopping)


def reason(failure: str, sink: SinkJob | None = None) -> str:
    """What happened, out of a failure's text: Spark wraps Python's trace in its own and in Java's."""
    if GONE in failure and sink is not None:
        return _gone(sink)
    for said, hint in HINTS.items():
        if said in failure:
            return hint
    _, trace, end = failure.rpartition("Traceback (most recent call last):")
    if trace:
        for line in end.splitlines():
            # Of a failure of Java's, py4j says first which call it was.
            if line.strip() and not line[0].isspace() and not line.startswith("py4j."):
                return re.sub(r"^plugins\.errors\.\w+: ", "", line.strip(": "))
    return " ".join(line.strip() for line in failure.splitlines()[:3])


def _gone(sink: SinkJob) -> str:
    """Records are gone that were not read: Spark advises an option that is not its users' here."""
    stream = sink.channel.make().stream(sink.sink.group)
    own = f", and name another {sink.sink.path}.checkpoint" if issubclass(sink.sink.cls, StreamingSink) else ""
    return (
        f"the brokers no longer have the records of {stream.topic} that come next: retention removed them, or the "
        f"topic was made anew. To accept the loss: agent group reset {stream.group} --topic {stream.topic} "
        f"--to earliest{own}"
    )


def _leave_nothing(job: Job) -> None:
    kill_gateway()
    deadline = time.monotonic() + 10
    while Path(job.directory).exists() and time.monotonic() < deadline:  # its workers may write until they notice
        shutil.rmtree(job.directory, ignore_errors=True)
        time.sleep(0.05)


def _end_with_the_agent(job: Job, done: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    done.set()
    _leave_nothing(job)
    # Nothing of a micro-batch is visible before its commit, so ending in the middle loses and repeats nothing.
    os._exit(1)


def _end_with_the_jvm(gateway: subprocess.Popen[bytes], log_file: str, done: threading.Event) -> None:
    code = gateway.wait()
    if not done.is_set():
        # No session can be made anew within this process: the agent starts another.
        log.error("Spark's JVM ended with code %d; its log: %s", code, log_file)
        os._exit(1)


def _miss_executors(spark: Any, job: Job, done: threading.Event) -> None:
    """Say it where the cluster gives no executor: Spark itself waits without end, and says so in its log alone."""
    tracker, since = spark.sparkContext._jsc.sc().statusTracker(), time.monotonic()
    while not done.wait(1):
        try:
            executors = len(tracker.getExecutorInfos()) - 1  # the driver is one of them
        except Exception:  # noqa: BLE001  # py4j's, many; Spark is ending
            return
        if executors:
            since = time.monotonic()
        elif time.monotonic() - since > EXECUTOR_SECONDS:
            since = time.monotonic()
            memory = spark.sparkContext.getConf().get("spark.executor.memory", "1g")
            needed = f"a worker with {memory} (spark.conf.spark.executor.memory) and a core to spare"
            text = f"{spark.sparkContext.master} gives no executor: it needs {needed}"
            log.warning("%s", text)
            for sink in job.sinks:
                report(sink.sink.name, {}, error=text)


if __name__ == "__main__":
    main()

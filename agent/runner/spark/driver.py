"""The driver process: `python -m flafka.agent.runner.spark.driver`, started and watched by the agent.

Reads a pickled `Job` from its standard input, and reports counters as lines of JSON on its standard output. Ends at
SIGTERM, after the micro-batch under way, or when the agent is gone and so closes the standard input. Ends also when
its SparkContext or its JVM is gone: then its last line says why.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from flafka.agent.jvm import ServiceError
from flafka.agent.logs import log_to_stderr
from flafka.agent.onyarn import OnYarn, agent_on_yarn
from flafka.agent.options import YARN, is_local
from flafka.agent.runner.deadletters.letters import dead_letters_of
from flafka.agent.runner.deadletters.notices import Heard
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.moving import CommitLogMove
from flafka.agent.runner.retries import Retries, log_failure
from flafka.agent.runner.spark import failures
from flafka.agent.runner.spark.gateway import Gateway, kill_gateway
from flafka.agent.runner.spark.job import GAVE_UP, Job, SinkJob
from flafka.agent.runner.spark.processing import Processing
from flafka.agent.runner.spark.progress import listener, report, report_application, report_end, report_rejected
from flafka.agent.runner.spark.query import Query
from flafka.agent.runner.spark.session import start_session, stop_session
from flafka.agent.stacks import tell
from flafka.plugins import FlafkaError, Retry, StreamingSink

log = logging.getLogger("spark")

WORKERS_PYTHON = (
    "the cluster's workers need a {} on their PATH (its packages come from here); "
    "spark.conf.spark.pyspark.python names another one of that version"
).format("python{}.{}".format(*sys.version_info))
HINTS = {"[PYTHON_VERSION_MISMATCH]": WORKERS_PYTHON, "Cannot run program": WORKERS_PYTHON}
"""Spark's words where Python on its workers is not what it has to be, and what there is to do."""
GONE = "failOnDataLoss"
"""Option that Spark names where records that it was to read are gone."""
EXECUTOR_SECONDS = 30.0
"""Maximum time in which a cluster may give no executor before the sinks count as failing."""
CONTAINER_SECONDS = 10.0
"""Maximum time in which YARN may give no container to an application that runs."""
SPARK_END_SECONDS = 20.0
"""Maximum time that Spark may take to end after its queries, before it is killed."""
WATCH_SECONDS = 1.0
"""Interval at which this process checks that its Spark is there, and has executors."""


def main() -> None:
    """Run the job on standard input."""
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  # the agent's own
    try:
        _run(job)
    finally:  # the agent does it too, unless it is gone
        _leave_nothing(job)


def _run(job: Job) -> None:
    log_to_stderr(keep=_ours)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the agent decides
    done, begun = threading.Event(), threading.Event()
    threading.Thread(target=_end_with_the_agent, args=(job, done), daemon=True).start()
    on_yarn = None
    if job.options.spark_master == YARN:
        on_yarn = agent_on_yarn(job.agent, job.configuration, partial(_missing, job), report_application)
    threading.Thread(target=_end_before_it_begins, args=(job, on_yarn, stopping, begun), daemon=True).start()
    try:
        spark, gateway = start_session(
            job.agent,
            job.options,
            Path(job.log_file),
            job.modules,
            on_yarn,
            keeps_checkpoints=job.keeps_checkpoints,
        )
    except Exception as e:  # noqa: BLE001  # Spark raises many kinds over its own properties
        log_failure(log, logging.DEBUG, "no Spark session", e)
        report_end(str(e) if isinstance(e, FlafkaError | ServiceError) else reason(f"{type(e).__name__}: {e}"))
        sys.exit(GAVE_UP)
    begun.set()
    watch = SparkWatchdog(spark, gateway, done, on_yarn)
    threading.Thread(target=watch.run, daemon=True).start()
    log.info("Spark %s on %s", spark.version, spark.sparkContext.master)
    if not is_local(spark.sparkContext.master):
        threading.Thread(target=_miss_executors, args=(spark, job, done, on_yarn), daemon=True).start()
    running: Running = {}
    spark.streams.addListener(listener(log, partial(sink_of, running)))
    threads = [
        threading.Thread(target=_supervise, args=(watch, sink, job, running, stopping), name=sink.sink.path)
        for sink in job.sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    _end(spark, gateway)


Running = dict[str, Query | Processing]
"""The queries of each sink, by its path, as long as they have not failed."""


def sink_of(running: Running, query: str) -> Query | Processing | None:
    """Return what runs the query of that name.

    Spark reports late: after a query has failed, what it did before is no sign that its sink works again.
    """
    # The path of the sink is the query's name, or what stands before an output's.
    return next((sink for path, sink in running.items() if f"{query}.".startswith(f"{path}.")), None)


def _ours(record: logging.LogRecord) -> bool:
    """Filter of log records. Py4J logs failures at length and raises them as well; `_supervise` reports them."""
    return "py4j" not in Path(record.pathname).parts


class SparkWatchdog:
    """Ends this process, with the reason, when its Spark is gone: no session can be made anew within it."""

    def __init__(self, spark: Any, gateway: Gateway, done: threading.Event, on_yarn: OnYarn | None = None) -> None:
        """Once `done` is set, the end is a regular one."""
        self.spark, self._gateway, self._done, self._on_yarn = spark, gateway, done, on_yarn
        self._lock = threading.Lock()

    def run(self) -> None:
        """Look again and again."""
        while not self._done.wait(WATCH_SECONDS):
            self.look()

    def look(self) -> None:
        """Look now. Does not return where Spark is gone: what failed then is not a sink."""
        with self._lock:
            gone = self._gone()
            if gone is None or self._done.is_set():
                return
            report_end(gone)
            kill_gateway()
            os._exit(GAVE_UP)  # threads may wait for Spark without end

    def _gone(self) -> str | None:
        """Return why there is no SparkContext any more."""
        try:
            stopped = self.spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001  # py4j's, many
            return self._gateway.why_ended(5)
        if not stopped:
            return None
        return (self._on_yarn is not None and self._on_yarn.why_over()) or self._gateway.why_stopped()


_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in (\S+)$', re.MULTILINE)
_JAVA = re.compile(r"An error occurred while calling [^\n]*\n: (?:[\w.$]+: )*(?:\w+\.)+(\w+): ([^\n]+)")
"""py4j's words around an exception of Java's: the innermost one's name, and what it says."""
NOTE = "its arguments were: "
"""Begin of the line of a trace that has the arguments of a processor's function that raised."""


def _supervise(watch: SparkWatchdog, sink: SinkJob, job: Job, running: Running, stopping: threading.Event) -> None:
    retries = Retries(sink.sink.path)
    channel = sink.channel
    letters = Heard(dead_letters_of(job.agent, channel, channel.make(), job.options), report_rejected)
    rejections, move = Rejections(letters, sink.sink.tolerance), CommitLogMove()
    while not stopping.is_set():
        retries.begin()
        try:
            streams = issubclass(sink.sink.cls, StreamingSink)
            query = running[sink.sink.path] = Processing(job, sink) if streams else Query(job, sink, rejections, move)
            query.run(watch.spark, stopping)
            if stopping.is_set():
                return
            raise Retry("its query ended, though nobody has stopped it")
        except Exception as e:  # noqa: BLE001  # one sink's failure must not take the others down
            watch.look()
            running.pop(sink.sink.path, None)
            text = reason(str(e) if isinstance(e, FlafkaError) else f"{type(e).__name__}: {e}", sink)
            failure = Retry(text, e.after if isinstance(e, Retry) else None)
            failure.__cause__ = e
            seconds = retries.failed(failure)
            report(sink.sink.name, {"FailureCount": 1}, retries.gauges(), error=text)
        stopping.wait(seconds)


def reason(failure: str, sink: SinkJob | None = None) -> str:
    """Return the cause in a failure's text: Spark wraps Python's trace in its own and in Java's."""
    if GONE in failure and sink is not None:
        return _gone(sink)
    for said, hint in HINTS.items():
        if said in failure:
            return hint
    _, trace, end = failure.rpartition("Traceback (most recent call last):")
    if trace:
        lines = end.splitlines()
        for number, line in enumerate(lines):
            # Of a failure of Java's, py4j says first which call it was.
            if line.strip() and not line[0].isspace() and not line.startswith("py4j."):
                said = re.sub(r"^flafka\.plugins\.errors\.\w+: ", "", line.strip(": "))
                notes = [text.strip() for text in lines[number + 1 :] if text.startswith(NOTE)]
                return "; ".join([said + _place(end, sink), *notes[:1]])
    if java := _JAVA.search(failure):
        return f"{java[1]}: {java[2].strip()}"
    return " ".join(line.strip() for line in failures.core(failure).splitlines()[:3])


def _place(trace: str, sink: SinkJob | None) -> str:
    """` in fails (logins.py, line 70)`: the innermost place in a processor's own module, or in one beside it."""
    if sink is None or not issubclass(sink.sink.cls, StreamingSink):
        return ""
    made = sink.sink.make()
    module = sys.modules.get(made.pipeline.partition(":")[0])
    own = (getattr(module, "__file__", None) or "-", *((made.modules,) if made.modules else ()))
    frames = [f for f in _FRAME.findall(trace) if f[0] == own[0] or any(f[0].startswith(f"{d}/") for d in own[1:])]
    if not frames:
        return ""
    file, line, name = frames[-1]
    return f" in {name} ({Path(file).name}, line {line}; processor {made.pipeline})"


def _gone(sink: SinkJob) -> str:
    """Records are gone that were not read: Spark advises an option that is not its users' here."""
    stream = sink.channel.make().kafka.stream(sink.sink.group)
    own = f", and name another {sink.sink.path}.checkpoint" if issubclass(sink.sink.cls, StreamingSink) else ""
    return (
        f"the brokers no longer have the records of {stream.topic} that come next: retention removed them, or the "
        f"topic was created again. To accept the loss: agent group reset {stream.group} --topic {stream.topic} "
        f"--to earliest --bootstrap-server {stream.bootstrap_servers}{own}"
    )


def _end(spark: Any, gateway: Gateway) -> None:
    """End Spark, or leave it: nothing is under way, and who asks a ResourceManager that is away waits for minutes."""

    def stop() -> None:
        with suppress(Exception), warnings.catch_warnings():  # py4j's, many: its JVM may be gone
            warnings.simplefilter("ignore")  # of PySpark's, that it is
            stop_session(spark, gateway)

    ending = threading.Thread(target=stop, name="end", daemon=True)
    ending.start()
    ending.join(SPARK_END_SECONDS)


def _leave_nothing(job: Job) -> None:
    kill_gateway()
    if not job.directory:
        return
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


def _end_before_it_begins(
    job: Job, on_yarn: OnYarn | None, stopping: threading.Event, begun: threading.Event
) -> None:
    """End at SIGTERM while Spark starts: no micro-batch is under way yet.

    The JVM may take more than a minute on a busy host, and YARN may let its application wait for hours.
    """
    while not begun.wait(0.2):
        if stopping.is_set():
            if on_yarn is not None:
                on_yarn.end()
            _leave_nothing(job)
            os._exit(0)


def _missing(job: Job, text: str) -> None:
    log.warning("%s", text)
    for sink in job.sinks:
        report(sink.sink.name, {}, error=text)


def _miss_executors(spark: Any, job: Job, done: threading.Event, on_yarn: OnYarn | None) -> None:
    """Say it where the cluster gives no executor: Spark itself waits without end, and says so in its log alone."""
    tracker, since = spark.sparkContext._jsc.sc().statusTracker(), time.monotonic()
    memory = spark.sparkContext.getConf().get("spark.executor.memory", "1g")
    size, said = f"{memory} (spark.conf.spark.executor.memory)", ""
    while not done.wait(WATCH_SECONDS):
        try:
            executors = len(tracker.getExecutorInfos()) - 1  # the driver is one of them
        except Exception:  # noqa: BLE001  # py4j's, many; Spark is ending
            return
        waited = time.monotonic() - since
        if executors:
            since, said = time.monotonic(), ""
        elif on_yarn is not None and waited > CONTAINER_SECONDS:
            text = None
            with suppress(Exception):  # py4j's, many: the ResourceManager may be away
                text = on_yarn.lacking(f"a container with {size} and Spark's overhead")
            if text is None:
                since = time.monotonic()
            elif text != said:
                said = text
                _missing(job, text)
        elif on_yarn is None and waited > EXECUTOR_SECONDS:
            since = time.monotonic()
            needed = f"a worker with {size} and a core to spare"
            _missing(job, f"{spark.sparkContext.master} gives no executor: it needs {needed}")


if __name__ == "__main__":
    signal.signal(signal.SIGQUIT, tell)  # Ctrl-\ reaches the whole group
    main()

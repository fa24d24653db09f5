"""Spark driver process: `python -m flafka.agent.runner.spark.driver`, started and supervised by the agent.

Reads a pickled `Job` from its standard input, and reports counters as lines of JSON on its standard output. Ends at
SIGTERM after the current micro-batch, and at the end of standard input, when the agent has ended. Ends also when its
SparkContext or its JVM has ended; its last line then has the reason.
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
from flafka.agent.options import YARN, is_local_master
from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.deadletters.alerts import AlertingStore
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.deadletters.store import dead_letter_store
from flafka.agent.runner.kafkalogin import log_in_to_kafka
from flafka.agent.runner.retries import Retries, log_failure
from flafka.agent.runner.spark import failures
from flafka.agent.runner.spark.gateway import Gateway, kill_gateway
from flafka.agent.runner.spark.job import NO_SPARK_EXIT_CODE, Job, SinkJob
from flafka.agent.runner.spark.processing import Processing
from flafka.agent.runner.spark.progress import (
    progress_listener,
    report,
    report_application,
    report_end,
    report_rejected,
)
from flafka.agent.runner.spark.query import Query
from flafka.agent.runner.spark.session import start_session, stop_session
from flafka.agent.threaddump import write_thread_dump
from flafka.plugins import FlafkaError, Retry, StreamingSink

log = logging.getLogger("spark")

WORKERS_PYTHON_HINT = (
    "the cluster's workers need a {} on their PATH (its packages come from here); "
    "spark.conf.spark.pyspark.python names another one of that version"
).format("python{}.{}".format(*sys.version_info))
HINTS = {"[PYTHON_VERSION_MISMATCH]": WORKERS_PYTHON_HINT, "Cannot run program": WORKERS_PYTHON_HINT}
"""Hints for users by a part of Spark's error message."""
DATA_LOSS_MARK = "failOnDataLoss"
"""Option that Spark's error message names if records that it was to read are no longer there."""
EXECUTOR_SECONDS = 30.0
"""Longest time without an executor before the sinks count as failing."""
CONTAINER_SECONDS = 10.0
"""Longest time without a container for a running application on YARN before the sinks count as failing."""
SPARK_END_SECONDS = 20.0
"""Longest wait for the end of Spark after its queries have ended."""
WATCHDOG_SECONDS = 1.0
"""Interval of the checks that the SparkContext runs and has executors."""


def main() -> None:
    """Read a pickled Job from standard input, run it until SIGTERM, and clean up.

    The process ends by itself without a SparkContext, and when the agent ends.
    """
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  # the agent's own
    try:
        _run(job)
    finally:  # the agent does the same, unless it was killed
        _clean_up(job)


def _run(job: Job) -> None:
    """Start Spark and a query for each sink, and block until all of them have stopped after SIGTERM.

    Without a Spark session, report the reason, and exit with `NO_SPARK_EXIT_CODE`.
    """
    log_to_stderr(record_filter=_is_own_record)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group, and the agent handles it
    log_in_to_kafka(component for sink in job.sinks for component in (sink.channel, sink.sink))
    done, begun = threading.Event(), threading.Event()
    threading.Thread(target=_end_with_agent, args=(job, done), daemon=True).start()
    on_yarn = None
    if job.options.spark_master == YARN:
        on_yarn = agent_on_yarn(job.agent, job.configuration, partial(_report_shortage, job), report_application)
    threading.Thread(target=_end_while_starting, args=(job, on_yarn, stopping, begun), daemon=True).start()
    try:
        spark, gateway = start_session(
            job.agent,
            job.options,
            Path(job.log_file),
            job.modules,
            on_yarn,
            keeps_checkpoints=job.keeps_checkpoints,
        )
    except Exception as e:  # noqa: BLE001  # Spark raises many kinds of errors about its properties
        log_failure(log, logging.DEBUG, "no Spark session", e)
        report_end(
            str(e) if isinstance(e, FlafkaError | ServiceError) else failure_reason(f"{type(e).__name__}: {e}")
        )
        sys.exit(NO_SPARK_EXIT_CODE)
    begun.set()
    watchdog = SparkWatchdog(spark, gateway, done, on_yarn)
    threading.Thread(target=watchdog.run, daemon=True).start()
    log.info("Spark %s on %s", spark.version, spark.sparkContext.master)
    if not is_local_master(spark.sparkContext.master):
        threading.Thread(target=_watch_executors, args=(spark, job, done, on_yarn), daemon=True).start()
    running: Running = {}
    spark.streams.addListener(progress_listener(log, partial(sink_of, running)))
    threads = [
        threading.Thread(target=_supervise, args=(watchdog, sink, job, running, stopping), name=sink.sink.path)
        for sink in job.sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    _stop_spark(spark, gateway)


Running = dict[str, Query | Processing]
"""Queries by path of their sink, unless they have failed."""


def sink_of(running: Running, query: str) -> Query | Processing | None:
    """Return the object in `running` whose query has the name `query`; None if its sink has failed.

    Spark reports progress late. Progress before a failure is no sign that the sink works again.
    """
    # The name of a query is the path of its sink, or that path with a dot and the name of an output.
    return next((sink for path, sink in running.items() if f"{query}.".startswith(f"{path}.")), None)


def _is_own_record(record: logging.LogRecord) -> bool:
    """Return False for log records of Py4J, which also raises the failures that it logs at length."""
    return "py4j" not in Path(record.pathname).parts


class SparkWatchdog:
    """Watchdog that ends this process, with the reason, when its SparkContext or JVM has ended.

    Within one process, PySpark cannot start a second JVM.
    """

    def __init__(self, spark: Any, gateway: Gateway, done: threading.Event, on_yarn: OnYarn | None = None) -> None:
        """`done` is set before a regular end of Spark, from which on nothing is checked.

        `on_yarn` is None without YARN.
        """
        self.spark, self._gateway, self._done, self._on_yarn = spark, gateway, done, on_yarn
        self._lock = threading.Lock()

    def run(self) -> None:
        """Call `check` every `WATCHDOG_SECONDS` until `done` is set."""
        while not self._done.wait(WATCHDOG_SECONDS):
            self.check()

    def check(self) -> None:
        """Return if the SparkContext runs, or its regular end has begun. Thread-safe.

        Otherwise report the reason to the agent, kill the JVM, and end this process with `NO_SPARK_EXIT_CODE`.
        """
        with self._lock:
            reason = self._end_reason()
            if reason is None or self._done.is_set():
                return
            report_end(reason)
            kill_gateway()
            os._exit(NO_SPARK_EXIT_CODE)  # a regular exit would join threads that wait for Spark forever

    def _end_reason(self) -> str | None:
        """Return the reason why the SparkContext has ended; None if it runs.

        Waits up to 5 s for the end of the JVM.
        """
        try:
            stopped = self.spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001  # py4j raises many kinds of errors
            return self._gateway.why_ended(5)
        if not stopped:
            return None
        return (self._on_yarn is not None and self._on_yarn.end_reason()) or self._gateway.why_stopped()


_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in (\S+)$', re.MULTILINE)
_JAVA = re.compile(r"An error occurred while calling [^\n]*\n: (?:[\w.$]+: )*(?:\w+\.)+(\w+): ([^\n]+)")
"""Py4J's text around a Java exception: name and message of the innermost one."""
ARGUMENTS_PREFIX = "its arguments were: "
"""Prefix of the line of a traceback with the arguments of a processor's function that raised."""


def _supervise(watchdog: SparkWatchdog, sink: SinkJob, job: Job, running: Running, stopping: threading.Event) -> None:
    """Run the query of one sink until `stopping` is set. After a failure, report it, wait, and run a new query."""
    retries = Retries(sink.sink.path)
    channel = sink.channel
    store = AlertingStore(dead_letter_store(job.agent, channel, channel.make(), job.options), report_rejected)
    rejections, move = Rejections(store, sink.sink.tolerance), CommitLogMove()
    while not stopping.is_set():
        retries.start_attempt()
        try:
            is_processor = issubclass(sink.sink.cls, StreamingSink)
            query = Processing(job, sink) if is_processor else Query(job, sink, rejections, move)
            running[sink.sink.path] = query
            query.run(watchdog.spark, stopping)
            if stopping.is_set():
                return
            raise Retry("its query ended without a stop")
        except Exception as e:  # noqa: BLE001  # an unexpected error of one sink must not stop the others
            watchdog.check()
            running.pop(sink.sink.path, None)
            text = failure_reason(str(e) if isinstance(e, FlafkaError) else f"{type(e).__name__}: {e}", sink)
            failure = Retry(text, e.after if isinstance(e, Retry) else None)
            failure.__cause__ = e
            seconds = retries.failed(failure)
            report(sink.sink.name, {"FailureCount": 1}, retries.gauges(), error=text)
        stopping.wait(seconds)


def failure_reason(failure: str, sink: SinkJob | None = None) -> str:
    """Return the cause from an error text in which Spark wraps a Python traceback or a Java exception.

    For errors with a known remedy, return the remedy. `sink` adds the line of its processor; without it, lost records
    are not recognized. A text without a traceback or exception is shortened to its first three lines.
    """
    if DATA_LOSS_MARK in failure and sink is not None:
        return _data_loss(sink)
    for message, hint in HINTS.items():
        if message in failure:
            return hint
    _, traceback, end = failure.rpartition("Traceback (most recent call last):")
    if traceback:
        lines = end.splitlines()
        for number, line in enumerate(lines):
            # Py4J puts a line with the Java call before the error line.
            if line.strip() and not line[0].isspace() and not line.startswith("py4j."):
                message = re.sub(r"^flafka\.plugins\.errors\.\w+: ", "", line.strip(": "))
                arguments = [text.strip() for text in lines[number + 1 :] if text.startswith(ARGUMENTS_PREFIX)]
                return "; ".join([message + _location(end, sink), *arguments[:1]])
    if java := _JAVA.search(failure):
        return f"{java[1]}: {java[2].strip()}"
    return " ".join(line.strip() for line in failures.core_message(failure).splitlines()[:3])


def _location(traceback: str, sink: SinkJob | None) -> str:
    """Return ` in fails (logins.py, line 70; …)`, the innermost frame in a processor's modules.

    Empty without such a frame, and for a sink that is no processor.
    """
    if sink is None or not issubclass(sink.sink.cls, StreamingSink):
        return ""
    processor = sink.sink.make()
    module = sys.modules.get(processor.pipeline.partition(":")[0])
    file = getattr(module, "__file__", None) or "-"
    frames = [
        frame
        for frame in _FRAME.findall(traceback)
        if frame[0] == file or (processor.module_directory and frame[0].startswith(f"{processor.module_directory}/"))
    ]
    if not frames:
        return ""
    file, line, name = frames[-1]
    return f" in {name} ({Path(file).name}, line {line}; processor {processor.pipeline})"


def _data_loss(sink: SinkJob) -> str:
    """Return the error for lost records, with the command that accepts the loss.

    Spark's own text advises an option that users cannot set here.
    """
    stream = sink.channel.make().kafka.stream(sink.sink.group)
    own = f", and name another {sink.sink.path}.checkpoint" if issubclass(sink.sink.cls, StreamingSink) else ""
    return (
        f"the brokers no longer have the records of {stream.topic} that come next: retention removed them, or the "
        f"topic was recreated. To accept the loss: agent group reset {stream.group} --topic {stream.topic} "
        f"--to earliest --bootstrap-server {stream.bootstrap_servers}{own}"
    )


def _stop_spark(spark: Any, gateway: Gateway) -> None:
    """Stop Spark and its JVM, but return after `SPARK_END_SECONDS` at the latest. Errors are ignored.

    A ResourceManager that does not answer would delay this for minutes.
    """

    def stop() -> None:
        with suppress(Exception), warnings.catch_warnings():  # py4j raises many kinds of errors without its JVM
            warnings.simplefilter("ignore")  # PySpark warns that the JVM has ended
            stop_session(spark, gateway)

    ending = threading.Thread(target=stop, name="end", daemon=True)
    ending.start()
    ending.join(SPARK_END_SECONDS)


def _clean_up(job: Job) -> None:
    """Kill the JVM and remove the scratch directory, with retries for 10 s, as Spark's workers may still write."""
    kill_gateway()
    if not job.directory:
        return
    deadline = time.monotonic() + 10
    while Path(job.directory).exists() and time.monotonic() < deadline:  # Spark's workers write until they end, too
        shutil.rmtree(job.directory, ignore_errors=True)
        time.sleep(0.05)


def _end_with_agent(job: Job, done: threading.Event) -> None:
    """Block until the end of standard input, when the agent has ended; then clean up and exit at once."""
    while os.read(0, 4096):
        pass
    done.set()
    _clean_up(job)
    # Safe in the middle of a micro-batch, none of which is visible before its commit.
    os._exit(1)


def _end_while_starting(job: Job, on_yarn: OnYarn | None, stopping: threading.Event, begun: threading.Event) -> None:
    """End the process at SIGTERM while Spark starts, when no micro-batch runs yet.

    The start of the JVM may take more than a minute on a busy host, and YARN may let its application wait for hours.
    """
    while not begun.wait(0.2):
        if stopping.is_set():
            if on_yarn is not None:
                on_yarn.end()
            _clean_up(job)
            os._exit(0)


def _report_shortage(job: Job, text: str) -> None:
    """Log a text, and report it to the agent as the error of every sink."""
    log.warning("%s", text)
    for sink in job.sinks:
        report(sink.sink.name, {}, error=text)


def _watch_executors(spark: Any, job: Job, done: threading.Event, on_yarn: OnYarn | None) -> None:
    """Report a cluster that gives no executor, until `done` is set. Spark itself would wait forever without a report.

    `on_yarn` is the application on YARN, whose state names the shortage; None on a standalone cluster.
    """
    tracker, since = spark.sparkContext._jsc.sc().statusTracker(), time.monotonic()
    memory = spark.sparkContext.getConf().get("spark.executor.memory", "1g")
    size, reported = f"{memory} (spark.conf.spark.executor.memory)", ""
    while not done.wait(WATCHDOG_SECONDS):
        try:
            executors = len(tracker.getExecutorInfos()) - 1  # the driver counts as one
        except Exception:  # noqa: BLE001  # py4j raises many kinds of errors while Spark ends
            return
        waited = time.monotonic() - since
        if executors:
            since, reported = time.monotonic(), ""
        elif on_yarn is not None and waited > CONTAINER_SECONDS:
            text = None
            with suppress(Exception):  # py4j raises many kinds of errors if the ResourceManager is away
                text = on_yarn.executor_shortage(f"a container with {size} and Spark's overhead")
            if text is None:
                since = time.monotonic()
            elif text != reported:
                reported = text
                _report_shortage(job, text)
        elif on_yarn is None and waited > EXECUTOR_SECONDS:
            since = time.monotonic()
            needed = f"a worker with {size} and a free core"
            _report_shortage(job, f"{spark.sparkContext.master} gives no executor: it needs {needed}")


if __name__ == "__main__":
    signal.signal(signal.SIGQUIT, write_thread_dump)  # Ctrl-\ reaches the whole group
    main()

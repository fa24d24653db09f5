"""Supervisor of the Spark driver process: starts it, restarts it when it ends, and publishes its metrics."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flafka.agent.runner.deadletters.alerts import ErrorGroups
from flafka.agent.runner.retries import Retries, clear_retry_gauges, describe_error
from flafka.agent.runner.spark.gateway import describe_exit
from flafka.agent.runner.spark.job import Job, SinkJob
from flafka.agent.runner.spark.scratch import scratch_directory
from flafka.agent.state import state_directory
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import Metrics, Retry
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import start_thread

log = logging.getLogger("spark")


class SparkRunner:
    """Runner of all sinks with `runner = spark`, in one driver process."""

    def __init__(self, spec: AgentSpec, sinks: list[SinkSpec], rejected: Callable[[str, ErrorGroups], None]) -> None:
        """`sinks` are the sinks on Spark.

        `rejected` is called with a sink's path and error groups of new dead letters.
        """
        self._rejected = rejected
        self.metrics = {sink.name: Metrics() for sink in sinks}
        self.interceptors = {
            (sink.name, interceptor.name): Metrics() for sink in sinks for interceptor in sink.interceptors
        }
        """Metrics of interceptors, by name of the sink and of the interceptor."""
        self.job = Job(
            spec.name,
            tuple(SinkJob(sink, spec.channel(sink.channel)) for sink in sinks),
            spec.options,
            str(state_directory() / f"{spec.name}.spark.log"),
            directory="",
            configuration=str(Path(spec.file).absolute()),
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.application: dict[str, str] = {}
        """ID and web page of the driver's application on a cluster; empty without a cluster."""
        self._end_reason = ""
        """Reason that the latest driver gave for its end; empty if it gave none."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark", daemon=True)

    def start(self) -> None:
        """Start the supervising thread, which starts the driver.

        Raises RuntimeError if the system refuses a thread for 5 s.
        """
        start_thread(self._thread)

    def running(self) -> bool:
        """Return True if the supervising thread runs: a driver runs, or is about to be started again."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> bool:
        """End the driver after its current micro-batch, block until it has ended, and return True.

        Kill it after `seconds`, and return False then; no events are lost.
        """
        self._stopping.set()
        process = self.process
        if process is not None and process.poll() is None:
            process.terminate()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive() and process is not None:
            log.warning("the Spark driver did not end within %.0f s and is killed; no events are lost", seconds)
            process.kill()
            self._thread.join(5)
            return False
        return True

    def _run(self) -> None:
        """Run a driver, and another one after a wait whenever one has ended, until `stop`."""
        retries = Retries("spark", *self.metrics.values())  # a failure of the driver is one of every sink
        while not self._stopping.is_set():
            self._end_reason, cause = "", None
            retries.start_attempt()
            try:
                # Spark, PySpark and sinks leave files behind when they are killed: in this directory.
                with scratch_directory() as directory:
                    code = self._run_driver(directory)
            except ANY_FAILURE as e:  # an error such as too many open files must not end this thread
                self._end_reason = f"the Spark driver cannot be started: {describe_error(e)}"
                code, cause = 1, e
            self.application = {}
            if self._stopping.is_set():
                return
            text = self._end_reason or f"the Spark driver {describe_exit(code)}; its log: {self.job.log_file}"
            for metrics in self.metrics.values():
                metrics.remove("Lag")
            what = "the Spark driver has ended and is restarted"
            failure = Retry(text)
            failure.__cause__ = cause
            if self._stopping.wait(retries.failed(failure, what=what)):
                return
            for metrics in self.metrics.values():
                metrics.add("DriverRestartCount")

    def _run_driver(self, directory: str) -> int:
        """Start a driver with the scratch directory, handle its reports until it ends, and return its exit code."""
        process = self.process = subprocess.Popen(
            [sys.executable, "-m", "flafka.agent.runner.spark.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SPARK_LOCAL_DIRS": directory, **os.environ, "TMPDIR": directory},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps(replace(self.job, directory=directory)))
            process.stdin.flush()  # stays open, as its end has the driver end: the agent may be killed
            if self._stopping.is_set():
                process.terminate()
            for line in process.stdout:
                self._handle_report(line)
        except BrokenPipeError:
            pass
        finally:
            process.stdin.close()
            process.stdout.close()
        return process.wait()

    def _handle_report(self, line: bytes) -> None:
        """Handle one line from the driver: a report in JSON, or else a line for the log.

        A report of a sink has counts to add, and gauges and errors to set, or error groups of new dead letters. Other
        reports have the driver's application, or the reason of its end.
        """
        try:
            report = json.loads(line)
            if "end" in report:
                self._end_reason = report["end"]
                return
            if "application" in report:
                self.application = report["application"]
                return
            if "rejected" in report:
                self._rejected(report["path"], {key: (reason, n) for key, reason, n in report["rejected"]})
                return
            metrics = self.metrics[report["sink"]]
        except (ValueError, KeyError, TypeError):
            log.info("%s", line.decode(errors="replace").rstrip())
            return
        for name, count in report["counts"].items():
            metrics.add(name, count)
        for interceptor, (counts, error) in report.get("interceptors", {}).items():
            interceptor_metrics = self.interceptors[report["sink"], interceptor]
            for name, count in counts.items():
                interceptor_metrics.add(name, count)
            interceptor_metrics.set_error(error)
        for name, value in report["gauges"].items():
            metrics.set(name, value)
        if report["gauges"].get("Lag") == 0:  # the Kafka monitor sets this gauge only every few seconds
            metrics.set("LagSeconds", 0)
        metrics.set_error(report["error"] or "")
        if report["error"]:
            metrics.remove("Lag")  # its value is from before the failure, and perhaps 0
            metrics.remove("LagSeconds")
        else:
            clear_retry_gauges(metrics)

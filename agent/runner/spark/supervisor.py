"""The agent's side of the Spark runner: starts the driver process, again when it dies, and shows its counters."""

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

from flafka.agent.runner.deadletters.notices import Causes
from flafka.agent.runner.retries import Retries, told, worked
from flafka.agent.runner.spark.gateway import ended
from flafka.agent.runner.spark.job import Job, SinkJob
from flafka.agent.runner.spark.workplace import workplace
from flafka.agent.state import state_directory
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import Metrics, Retry
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import start_thread

log = logging.getLogger("spark")


class SparkRunner:
    """One driver process for all sinks with `runner = spark`."""

    def __init__(self, spec: AgentSpec, sinks: list[SinkSpec], rejected: Callable[[str, Causes], None]) -> None:
        """`rejected` is called with a sink's path and what of it became dead letters."""
        self._rejected = rejected
        self.metrics = {sink.name: Metrics() for sink in sinks}
        self.interceptors = {(sink.name, one.name): Metrics() for sink in sinks for one in sink.interceptors}
        """By sink and name."""
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
        """What a cluster calls the application of the driver that runs, and where it shows it; empty without one."""
        self._said = ""
        """Why the latest driver ended by itself."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark", daemon=True)

    def start(self) -> None:
        """Start supervising; returns at once."""
        start_thread(self._thread)

    def running(self) -> bool:
        """Whether there is a driver, or one may be started."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> bool:
        """End the micro-batch under way, then the driver; kill it after so many seconds."""
        self._stopping.set()
        process = self.process
        if process is not None and process.poll() is None:
            process.terminate()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive() and process is not None:
            log.warning("the Spark driver did not end within %.0f s and is killed; nothing is lost by that", seconds)
            process.kill()
            self._thread.join(5)
            return False
        return True

    def _run(self) -> None:
        retries = Retries("spark", *self.metrics.values())  # of every sink, until it has delivered or looked again
        while not self._stopping.is_set():
            self._said, cause = "", None
            retries.begin()
            try:
                # Spark and PySpark leave files behind when they are killed, and so may the sinks: all are in here.
                with workplace() as directory:
                    code = self._run_in(directory)
            except ANY_FAILURE as e:  # such as too many open files: it is no end of this thread
                self._said = f"the Spark driver cannot be started: {told(e)}"
                code, cause = 1, e
            self.application = {}
            if self._stopping.is_set():
                return
            text = self._said or f"the Spark driver {ended(code)}; its log: {self.job.log_file}"
            for metrics in self.metrics.values():
                metrics.forget("Lag")
            what = "the Spark driver has ended and is started again"
            failure = Retry(text)
            failure.__cause__ = cause
            if self._stopping.wait(retries.failed(failure, what=what)):
                return
            for metrics in self.metrics.values():
                metrics.add("DriverRestartCount")

    def _run_in(self, directory: str) -> int:
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
            process.stdin.flush()  # stays open: its end tells the driver that the agent is gone
            if self._stopping.is_set():
                process.terminate()
            for line in process.stdout:
                self._report(line)
        except BrokenPipeError:
            pass
        finally:
            process.stdin.close()
            process.stdout.close()
        return process.wait()

    def _report(self, line: bytes) -> None:
        try:
            told = json.loads(line)
            if "end" in told:
                self._said = told["end"]
                return
            if "application" in told:
                self.application = told["application"]
                return
            if "rejected" in told:
                self._rejected(told["path"], {cause: (reason, n) for cause, reason, n in told["rejected"]})
                return
            metrics = self.metrics[told["sink"]]
        except (ValueError, KeyError, TypeError):
            log.info("%s", line.decode(errors="replace").rstrip())
            return
        for name, count in told["counts"].items():
            metrics.add(name, count)
        for interceptor, (counts, error) in told.get("interceptors", {}).items():
            shown = self.interceptors[told["sink"], interceptor]
            for name, count in counts.items():
                shown.add(name, count)
            shown.error(error)
        for name, value in told["gauges"].items():
            metrics.set(name, value)
        if told["gauges"].get("Lag") == 0:  # the watch, which tells the age, looks every few seconds only
            metrics.set("LagSeconds", 0)
        metrics.error(told["error"] or "")
        if told["error"]:
            metrics.forget("Lag")  # from before it failed, and perhaps 0
            metrics.forget("LagSeconds")
        else:
            worked(metrics)

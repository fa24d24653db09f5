"""Spark driver: its reports of failures and of progress, and the sinks that it runs."""

import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any, cast

import pytest
from pyspark import accumulators

from flafka.agent.config.runners import BOTH, CAPABILITIES, Capability, SinkBinding, unsupported_features
from flafka.agent.options import AgentOptions
from flafka.agent.runner.spark import driver, gateway, session
from flafka.agent.runner.spark.driver import failure_reason, sink_of
from flafka.agent.runner.spark.job import NO_SPARK_EXIT_CODE
from flafka.agent.runner.spark.progress import end_offsets_of, gauges_of
from flafka.agent.services.running import until
from flafka.agent.topology import Tolerance
from flafka.channels.kafka import KafkaChannel
from flafka.channels.memory import MemoryChannel
from flafka.plugins import Components, Retry
from flafka.sinks.spark import SparkSink
from tests.runner.spark_jobs import jobs

WRAPPED = """StreamingQueryException: [STREAM_FAILED] Query [id = 4d29] terminated with exception: Reason: \
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "sinks/hdfs/sink.py", line 7, in stage
    raise Retry("the disk is full")
flafka.plugins.errors.Retry: the disk is full

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
JVM stacktrace:
"""


def test_a_failure_in_python_is_reported_with_pythons_message() -> None:
    assert failure_reason(WRAPPED) == "the disk is full"


def test_a_failure_in_java_below_python_is_reported_with_javas_message() -> None:
    killed = """StreamingQueryException: [STREAM_FAILED] Query terminated. Traceback (most recent call last):
  File "agent/runner/spark/query.py", line 95, in _commit
    results = [pickle.loads(row.result) for row in frame.collect()]
py4j.protocol.Py4JJavaError: An error occurred while calling o562.collectToPython.
: org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:3122)
"""
    message = "org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed)"
    assert failure_reason(killed) == message


QUERY = "StreamingQueryException: [STREAM_FAILED] Query [id = {0}, runId = {0}] terminated with exception: "
LOST = "failed 1 times, most recent failure: Lost task 0.0 in stage {0}.0 (TID {0}) (host executor driver): "


@pytest.mark.parametrize(
    "failure",
    [
        QUERY + "{1} SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: p.rows [id = {0}, runId = {0}]",
        QUERY + "Job aborted due to stage failure: Task 0 in stage {0}.0 " + LOST + "{1}\n=== Streaming Query ===",
    ],
)
def test_parts_that_differ_at_each_attempt_are_omitted(failure: str) -> None:
    assert {failure_reason(failure.format(n, "the disk is full")) for n in range(3)} == {"the disk is full"}


def test_a_failure_of_spark_itself_is_reported_with_its_first_lines() -> None:
    assert (
        failure_reason("AnalysisException: no such table\n  here\n\nat java\n...")
        == "AnalysisException: no such table here "
    )


LOSS = """StreamingQueryException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because
they are not available in Kafka any more; If you don't want your streaming query to fail on such cases, set the source
option failOnDataLoss to false."""


def test_lost_records_are_reported_with_advice() -> None:
    _, sink = jobs(Tolerance())
    command = "agent group reset flafka --topic t --to earliest --bootstrap-server"
    out = f"To accept the loss: {command} {sink.channel.make().kafka.stream(None).bootstrap_servers}"
    assert failure_reason(LOSS, sink).endswith(out)
    streaming = replace(sink, sink=replace(sink.sink, cls=cast(Any, SparkSink)))
    assert failure_reason(LOSS, streaming).endswith(f"{out}, and name another a.sinks.k.checkpoint")


FAILING = """
import flafka.agent.runner.spark.driver as driver
def start(*_, **__):
    raise RuntimeError("Py4J")
driver.start_session = start
driver.main()
"""


def test_a_java_exception_is_reported_with_its_innermost_message() -> None:
    failure = (
        "Py4JJavaError: An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": org.apache.hadoop.yarn.exceptions.YarnException: org.apache.hadoop.security.AccessControlException: "
        "User ann does not have permission to submit application_1_0001 to queue closed\n"
        "\tat org.apache.hadoop.yarn.ipc.RPCUtil.getRemoteException(RPCUtil.java:40)\n"
    )
    assert failure_reason(failure) == (
        "AccessControlException: User ann does not have permission to submit application_1_0001 to queue closed"
    )


def test_an_error_at_the_start_of_spark_is_reported_without_a_traceback() -> None:
    job, _ = jobs(Tolerance())
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdin, process.stdout, process.stderr:
        process.stdin.write(pickle.dumps(job))
        process.stdin.flush()
        assert process.wait(180) == NO_SPARK_EXIT_CODE
        assert json.loads(process.stdout.read()) == {"end": "RuntimeError: Py4J"}
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("end", "written", "cause"),
    [
        (
            "kill -9 $$",
            "an.old.Error: of no account",
            "was killed by SIGKILL (as the kernel does where memory runs out)",
        ),
        ("kill -15 $$", "", "was killed by SIGTERM"),
        ("exit 1", "", "ended with code 1"),
        (
            "exit 3",
            "Terminating due to java.lang.OutOfMemoryError: Java heap space",
            "ended with code 3: java.lang.OutOfMemoryError: Java heap space "
            "(spark.conf.spark.driver.memory gives it more)",
        ),
        (
            "exit 1",
            'Exception in thread "main" org.apache.spark.SparkException: no\n\tat a.B\nCaused by: x.Y: z\n\tat c.D',
            "ended with code 1: org.apache.spark.SparkException: no (x.Y: z)",
        ),
        (
            "exit 1",
            "java.lang.IllegalArgumentException: first\n26/11/22 02:29:02 ERROR SparkContext: Failed to add a.jar",
            "ended with code 1: Failed to add a.jar",
        ),
    ],
)
def test_the_end_of_the_jvm_is_reported_with_its_cause(tmp_path: Path, end: str, written: str, cause: str) -> None:
    log = tmp_path / "log"
    before = "java.io.IOException: of the JVM before\n"
    log.write_text(before + written + "\n")
    jvm = gateway.Gateway(subprocess.Popen(["sh", "-c", f"read go; {end}"], stdin=subprocess.PIPE), log, len(before))
    assert jvm.why_ended() is None
    with jvm.process.stdin:
        pass
    assert jvm.why_ended(60) == f"Spark's JVM {cause}; its log: {log}"


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        ("ERROR Inbox: Ignoring error", "was stopped from outside;"),
        (
            "26/11/22 02:29:02 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: Master removed "
            "our application: KILLED\n26/11/22 02:29:02 ERROR Inbox: Ignoring error",
            "was stopped from outside: Master removed our application: KILLED;",
        ),
        (
            "26/11/22 02:29:02 ERROR YarnClientSchedulerBackend: YARN application has exited unexpectedly with state "
            "KILLED! Check the YARN application logs for more details.",
            "was stopped from outside: YARN application has exited unexpectedly with state KILLED! Check the YARN "
            "application logs for more details.;",
        ),
    ],
)
def test_a_stopped_context_is_reported_with_the_message_of_the_cluster(
    tmp_path: Path, written: str, cause: str
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{written}\n")
    assert f"the SparkContext {cause}" in gateway.Gateway(cast(Any, None), log, 0).why_stopped()


def test_an_ended_jvm_leaves_no_trace_of_accumulators(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer"):
        monkeypatch.setattr(getattr(accumulators, name), "handle_error", None, raising=False)
    session._silence_accumulators()
    caplog.set_level("DEBUG", "spark")
    server = accumulators._start_update_server("token", False)
    try:
        socket.create_connection(server.server_address).close()
        until(lambda: "a connection of PySpark's accumulators ended" in caplog.text, "its message")
    finally:
        server.shutdown()
    assert capfd.readouterr().err == ""


def test_progress_of_a_query_before_its_failure_is_no_recovery_of_its_sink() -> None:
    query: Any = Namespace()
    running = {"a1.sinks.k1": query}
    assert sink_of(running, "a1.sinks.k1") is query
    assert sink_of(running, "a1.sinks.k1.output") is query
    assert sink_of(running, "a1.sinks.k10") is None
    running.clear()
    assert sink_of(running, "a1.sinks.k1") is None
    assert sink_of(running, "a1.sinks.k1.output") is None


def test_a_query_that_ends_by_itself_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends a query without a failure if another user has stopped it."""
    job, sink = jobs(Tolerance())
    stopping, runs, reports = threading.Event(), [], []

    class Query:
        def __init__(self, *_: object) -> None:
            runs.append(self)

        def run(self, *_: object) -> None:
            if len(runs) == 2:
                stopping.set()

    monkeypatch.setattr(driver, "Query", Query)
    monkeypatch.setattr(driver, "report", lambda *words, **more: reports.append((words, more)))
    running: driver.Running = {}
    watch: Any = Namespace(spark=None, check=lambda: None)
    driver._supervise(watch, sink, job, running, stopping)
    assert len(runs) == 2
    ((words, more),) = reports
    assert words[:2] == ("k", {"FailureCount": 1})
    assert words[2]["RetryAttempt"] == 1
    assert more == {"error": "its query ended without a stop"}


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_query_that_fails_has_its_traceback_at_debug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    job, sink = jobs(Tolerance())
    stopping = threading.Event()

    class Query:
        def __init__(self, *_: object) -> None: ...

        def run(self, *_: object) -> None:
            stopping.set()
            raise Retry("the disk is full") from OSError(28, "No space left on device")

    monkeypatch.setattr(driver, "Query", Query)
    monkeypatch.setattr(driver, "report", lambda *_, **more: None)
    watch: Any = Namespace(spark=None, check=lambda: None)
    with caplog.at_level(level, sink.sink.path):
        driver._supervise(watch, sink, job, {}, stopping)
    failure = caplog.records[0]
    assert failure.getMessage() == "the disk is full"
    assert (failure.exc_info is not None) == (level == "DEBUG")
    if failure.exc_info:
        traceback = logging.Formatter().formatException(failure.exc_info)
        assert "in run\n" in traceback
        assert "No space left on device" in traceback


def test_a_spark_that_does_not_end_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SPARK_END_SECONDS", 0.05)
    for_ever, ended = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        for_ever.wait()
        ended.set()
        raise ConnectionRefusedError("its JVM was killed meanwhile")

    monkeypatch.setattr(driver, "stop_session", stop)
    driver._stop_spark(cast(Any, None), cast(Any, None))
    assert not ended.is_set()
    for_ever.set()
    assert ended.wait(60)


def test_reports_after_the_agent_s_end_are_dropped() -> None:
    tell = (
        "import sys; from flafka.agent.runner.spark.progress import report_end; sys.stdin.read(); report_end('why')"
    )
    read, write = os.pipe()
    command = [sys.executable, "-c", f"{tell}; report_end('again')"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE) as driver:
        os.close(write)
        os.close(read)
        assert driver.communicate(timeout=60)[1] == b""
    assert driver.returncode == 0


def test_java_options_and_class_path_of_the_driver_reach_the_started_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    arguments: list[str] = []

    def start(command: list[str], **_: object) -> None:
        started.append(command)
        arguments.extend(next(Path(word[1:]) for word in command if word[0] == "@").read_text().splitlines())

    process = Namespace(PIPE=-1, STDOUT=-2, Popen=start)
    monkeypatch.setattr(gateway, "subprocess", process)
    monkeypatch.setattr(gateway, "find_java", lambda: Namespace(path="java"))
    monkeypatch.setattr(gateway, "connector_jars", list)
    monkeypatch.setattr(gateway, "_await_connection", lambda *_: (1, "secret"))
    monkeypatch.setattr(gateway, "_started", [])
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_HOME"):
        monkeypatch.setenv(name, "")  # restored afterwards
    conf = {"spark.driver.extraJavaOptions": "-Da=1 '-Db=x \\y\"'", "spark.driver.extraClassPath": "/mine.jar"}
    gateway.start_gateway("local[1]", conf, tmp_path / "log")
    (command,) = started
    assert arguments == ['"-Da=1"', '"-Db=x \\\\y\\""'], "arguments of a process are not secret"
    assert command[command.index("-cp") + 1].startswith(f"/mine.jar{os.pathsep}")


def test_checkpoints_are_unsynced_only_if_no_processor_resumes_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def start(master: str, conf: dict[str, str], log_file: Path) -> None:
        given.append(conf)
        raise Retry("enough")

    monkeypatch.setattr(session, "start_gateway", start)
    for name in ("PYSPARK_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # restored afterwards
    job, sink = jobs(Tolerance())
    processor = replace(sink, sink=replace(sink.sink, cls=cast(Any, SparkSink)))
    for sinks in ((sink,), (sink, processor)):
        keeps = replace(job, sinks=sinks).keeps_checkpoints
        with pytest.raises(Retry):
            session.start_session("a", AgentOptions(), tmp_path / "log", keeps_checkpoints=keeps)
    alone, beside_a_processor = given
    assert alone.items() >= session.EPHEMERAL_CHECKPOINT_CONF.items()
    assert not beside_a_processor.keys() & session.EPHEMERAL_CHECKPOINT_CONF.keys()


def progress(*sources: Namespace, state: tuple[Namespace, ...] = (), rate: float = 20.0) -> Any:
    return Namespace(batchDuration=50, processedRowsPerSecond=rate, sources=sources, stateOperators=state)


def source(read: str, latest: str) -> Namespace:
    return Namespace(endOffset=f'{{"t": {read}}}', latestOffset=f'{{"t": {latest}}}')


def test_lag_excludes_delivered_records_outside_of_the_read_ranges() -> None:
    reported = progress(source('{"0": 5, "1": 2}', '{"0": 9, "1": 3}'))
    assert gauges_of(reported, {0: 8})["Lag"] == 2
    assert gauges_of(reported, {})["Lag"] == 5


def test_the_lag_of_a_join_is_that_of_its_slowest_stream() -> None:
    reported = progress(source('{"0": 5}', '{"0": 9}'), source('{"0": 7}', '{"0": 9}'), rate=float("inf"))
    assert end_offsets_of(reported) == {0: 5}
    assert gauges_of(reported, {}) == {"BatchMilliseconds": 50, "RecordsPerSecond": 0, "Lag": 4}


def test_a_batch_repeated_after_a_restart_reports_no_lag() -> None:
    (repeated,) = progress(Namespace(endOffset='{"t": {"0": 5}}', latestOffset="None")).sources
    assert "Lag" not in gauges_of(progress(repeated), {})


def test_another_stream_than_the_channel_s_has_no_offsets_and_no_lag() -> None:
    reported = progress(
        source('{"0": 5}', '{"0": 9}'),
        Namespace(endOffset="17", latestOffset="None"),  # rate
        Namespace(endOffset='{"logOffset": 3}', latestOffset=None),  # files
    )
    assert end_offsets_of(reported) == {0: 5}
    assert gauges_of(reported, {})["Lag"] == 4


def test_state_is_summed_over_operators() -> None:
    gauges = gauges_of(progress(state=(Namespace(numRowsTotal=2, memoryUsedBytes=10),) * 2), {})
    assert (gauges["StateRows"], gauges["StateBytes"], gauges["Lag"]) == (4, 20, 0)


@pytest.mark.parametrize("name", ["hdfs", "hbase", "solr", "avro", "logger", "null"])
def test_sinks_that_run_on_spark(name: str) -> None:
    sink: Any = Components().get("sink", name)
    assert not list(unsupported_features("spark", SinkBinding(sink, KafkaChannel, competing=False)))


def test_a_sink_with_files_of_its_own_host_does_not() -> None:
    sink: Any = Components().get("sink", "file_roll")
    (objection,) = unsupported_features("spark", SinkBinding(sink, KafkaChannel, competing=False))
    assert objection.endswith("(file_roll): set runner = local, or use a sink of type hdfs")


def deliveries() -> list[SinkBinding]:
    """One delivery of each kind."""
    sinks: list[Any] = list(Components().all("sink"))
    plain = [SinkBinding(sink, KafkaChannel, competing=False) for sink in sinks]
    logger = SinkBinding(Components().get("sink", "logger"), KafkaChannel, competing=False)
    more = [replace(logger, channel=MemoryChannel), replace(logger, competing=True), replace(logger, grouped=True)]
    return plain + more


@pytest.mark.parametrize("row", [row for row in CAPABILITIES if row.runners != BOTH], ids=lambda row: row.feature)
def test_each_no_of_the_table_is_enforced_with_advice(row: Capability) -> None:
    concerned = [delivery for delivery in deliveries() if row.applies(delivery)]
    assert concerned
    (missing,), (there,) = BOTH - row.runners, row.runners
    for delivery in concerned:
        message = f"runner = {missing} does not support {row.feature}: {row.remedy}"
        assert message in unsupported_features(missing, delivery)
        assert not [text for text in unsupported_features(there, delivery) if row.feature in text]
    assert row.remedy


def test_every_sink_runs_somewhere() -> None:
    for delivery in deliveries():
        assert any(not list(unsupported_features(runner, delivery)) for runner in BOTH)


def test_a_driver_without_its_own_directory_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def waited(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(driver.time, "sleep", waited)
    job, _ = jobs(Tolerance())
    monkeypatch.setattr(driver, "kill_gateway", lambda: None)  # it would end the session of other tests
    driver._clean_up(replace(job, directory=""))

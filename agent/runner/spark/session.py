"""One Spark session for this process: its JVM, and the settings that all our queries rely on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flafka.agent.jvm.spark import brings_environment, own_address, workers_python
from flafka.agent.onyarn import OnYarn, hadoop_configuration, session_on_yarn
from flafka.agent.options import YARN, AgentOptions, is_local, masters
from flafka.agent.runner.spark.gateway import Gateway, connector, start_gateway
from flafka.agent.runner.spark.packing import pack
from flafka.plugins import Retry

log = logging.getLogger("spark")

JVM_STOP_SECONDS = 20.0
THROWN_AWAY = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""For checkpoints that no query goes on from. With Spark's defaults each file costs processes that set permissions,
and sums beside it: 80 ms a micro-batch, in which nothing is delivered. These do not guard a file against a second
writer, which there is none of."""


def start_session(
    name: str,
    options: AgentOptions,
    log_file: Path,
    modules: Iterable[str] = (),
    on_yarn: OnYarn | None = None,
    *,
    keeps_checkpoints: bool = True,
) -> tuple[Any, Gateway]:
    """The session and its JVM, which ends with this process.

    `modules` are directories whose modules executors can import as well; on YARN, `on_yarn` knows
    the agent's application; `keeps_checkpoints` says whether any of its queries goes on from an earlier one's
    checkpoint. Raises `Retry` where no master answers, or the JVM ends.
    """
    master, own = options.spark_master, options.spark_conf
    if master == YARN and on_yarn is None:
        on_yarn = session_on_yarn(log.warning)
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.app.name": f"flafka-{name}",
        # Records are whole batches of events, compressed: a Python worker decodes some while the JVM fetches others.
        # With larger pieces one waits for the other, a third of the time.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2 << 20),
        # A processor's windows and joins: 200 tasks a micro-batch, Spark's default, are for larger ones.
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        "spark.sql.session.timeZone": "UTC",
        **({} if keeps_checkpoints else THROWN_AWAY),
        **_placed(master),
        **own,
    }
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # What Spark's workers begin with; what was added to `sys.path` since then they would not find.
        os.environ["PYTHONPATH"] = os.pathsep.join([*modules, *filter(None, [os.environ.get("PYTHONPATH")])])
    else:
        os.environ["PYSPARK_PYTHON"] = workers_python(options)
        archives = [] if brings_environment(own) else pack(modules)
        if archives:
            paths = (own.get("spark.executorEnv.PYTHONPATH"), "code", "libraries")
            conf["spark.executorEnv.PYTHONPATH"] = ":".join(filter(None, paths))
        if on_yarn is not None:
            conf = on_yarn.settings(conf)
        else:
            conf["spark.jars"] = ",".join(filter(None, [*map(str, connector()), own.get("spark.jars")]))
            if archives:
                conf["spark.archives"] = ",".join(f"{archive.as_uri()}#{named}" for archive, named in archives)
    gateway = start_gateway(master, conf, log_file)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder

    # It writes every wrong expression to standard error, with Java's stack; the exception says the same.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    _end_accumulators_quietly()
    try:
        if on_yarn is None:
            return builder.getOrCreate(), gateway
        named = on_yarn.prepare(hadoop_jvm(), conf, archives, connector())
        with on_yarn.submitting():
            return builder.config(map={**named}).getOrCreate(), gateway
    except Exception as e:
        if why := gateway.why_ended(1) or (on_yarn.why_over() if on_yarn is not None else None):
            raise Retry(why) from e
        raise


def hadoop_jvm() -> Any:
    """What py4j calls the JVM of the gateway, before there is a session."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _end_accumulators_quietly() -> None:
    """The server of PySpark's accumulators writes a trace to standard error when a JVM or its context ends."""
    from pyspark import accumulators

    def log_error(server: Any, request: Any, client: Any) -> None:
        log.debug("a connection of PySpark's accumulators ended", exc_info=True)

    servers: tuple[Any, ...] = (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer)
    for server in servers:
        server.handle_error = log_error


def _placed(master: str) -> dict[str, str]:
    """Where the driver listens: on the address that leads to the master, so that executors reach it."""
    if is_local(master):
        address = "127.0.0.1"
    elif addresses := masters(master):
        address = own_address(f"Spark master answers at {master}", addresses)
    elif master == YARN:
        address = own_address("ResourceManager of YARN answers", hadoop_configuration().resource_managers())
    else:
        return {}
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def stop_session(spark: Any, gateway: Gateway) -> None:
    """End both."""
    spark.stop()
    assert gateway.process.stdin is not None
    gateway.process.stdin.close()
    try:
        gateway.process.wait(JVM_STOP_SECONDS)
    except subprocess.TimeoutExpired:  # it is deleting what executors were given, which others delete as well
        gateway.process.kill()
        gateway.process.wait()

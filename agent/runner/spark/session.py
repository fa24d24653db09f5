"""Spark session of this process: its JVM, and the settings that all queries rely on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flafka.agent.jvm.spark import executor_python, own_address, ships_environment
from flafka.agent.onyarn import OnYarn, hadoop_configuration, session_on_yarn
from flafka.agent.options import YARN, AgentOptions, is_local_master, parse_master_addresses
from flafka.agent.runner.spark.gateway import Gateway, connector_jars, start_gateway
from flafka.agent.runner.spark.packing import pack
from flafka.plugins import Retry

log = logging.getLogger("spark")

JVM_STOP_SECONDS = 20.0
EPHEMERAL_CHECKPOINT_CONF = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings for checkpoints from which no later query resumes.

Spark's defaults start processes for the permissions of each file, and write checksum files: 80 ms a micro-batch. They
also guard a file against a second writer, which does not exist here.
"""


def start_session(
    name: str,
    options: AgentOptions,
    log_file: Path,
    modules: Iterable[str] = (),
    on_yarn: OnYarn | None = None,
    *,
    keeps_checkpoints: bool = True,
) -> tuple[Any, Gateway]:
    """Start a JVM and its Spark session, and return the session and the JVM. Both end with this process.

    `name` is the agent's name. `modules` are directories whose modules executors can import, too. `on_yarn` is the
    agent's application on YARN; None makes one if the master is YARN. `keeps_checkpoints` is False if no query
    resumes from a checkpoint. Environment variables of this process change. Raises Retry if no master answers, or the
    JVM ends.
    """
    master, own = options.spark_master, options.spark_conf
    if master == YARN and on_yarn is None:
        on_yarn = session_on_yarn(log.warning)
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.app.name": f"flafka-{name}",
        # Records are compressed batches of events. A Python worker decodes some while the JVM fetches others. With
        # larger Arrow batches each of them waits for the other, a third of the time.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2 << 20),
        # For windows and joins of processors, Spark's default of 200 tasks a micro-batch is too many.
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        "spark.sql.session.timeZone": "UTC",
        **({} if keeps_checkpoints else EPHEMERAL_CHECKPOINT_CONF),
        **_driver_address(master),
        **own,
    }
    if is_local_master(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Spark's workers start with this path, and would not find modules that were added to `sys.path` only.
        os.environ["PYTHONPATH"] = os.pathsep.join([*modules, *filter(None, [os.environ.get("PYTHONPATH")])])
    else:
        os.environ["PYSPARK_PYTHON"] = executor_python(options)
        archives = [] if ships_environment(own) else pack(modules)
        if archives:
            paths = (own.get("spark.executorEnv.PYTHONPATH"), "code", "libraries")
            conf["spark.executorEnv.PYTHONPATH"] = ":".join(filter(None, paths))
        if on_yarn is not None:
            conf = on_yarn.settings(conf)
        else:
            conf["spark.jars"] = ",".join(filter(None, [*map(str, connector_jars()), own.get("spark.jars")]))
            if archives:
                conf["spark.archives"] = ",".join(f"{archive.as_uri()}#{named}" for archive, named in archives)
    gateway = start_gateway(master, conf, log_file)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder

    # This logger writes each wrong expression to standard error with Java's stack, and the exception has it as well.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    _silence_accumulators()
    try:
        if on_yarn is None:
            return builder.getOrCreate(), gateway
        named = on_yarn.prepare(hadoop_jvm(), conf, archives, connector_jars())
        with on_yarn.submitting():
            return builder.config(map={**named}).getOrCreate(), gateway
    except Exception as e:
        if why := gateway.why_ended(1) or (on_yarn.end_reason() if on_yarn is not None else None):
            raise Retry(why) from e
        raise


def hadoop_jvm() -> Any:
    """Return py4j's view of the JVM that `start_gateway` has started, before there is a session."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _silence_accumulators() -> None:
    """Log errors of PySpark's accumulator servers at DEBUG.

    Otherwise they write a traceback to standard error when a JVM or its SparkContext ends.
    """
    from pyspark import accumulators

    def log_error(server: Any, request: Any, client: Any) -> None:
        log.debug("a connection of PySpark's accumulators ended", exc_info=True)

    servers: tuple[Any, ...] = (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer)
    for server in servers:
        server.handle_error = log_error


def _driver_address(master: str) -> dict[str, str]:
    """Return Spark's settings for the driver's address: the local address toward the master.

    Executors can reach it. Empty for an unknown kind of master. Raises Retry if no master answers.
    """
    if is_local_master(master):
        address = "127.0.0.1"
    elif addresses := parse_master_addresses(master):
        address = own_address(f"Spark master answers at {master}", addresses)
    elif master == YARN:
        address = own_address("ResourceManager of YARN answers", hadoop_configuration().resource_managers())
    else:
        return {}
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def stop_session(spark: Any, gateway: Gateway) -> None:
    """Stop the session, and end its JVM, which is killed after `JVM_STOP_SECONDS`. Blocks until it has ended."""
    spark.stop()
    assert gateway.process.stdin is not None
    gateway.process.stdin.close()
    try:
        gateway.process.wait(JVM_STOP_SECONDS)
    except subprocess.TimeoutExpired:  # the JVM hangs in the removal of files that others remove as well
        gateway.process.kill()
        gateway.process.wait()

"""One Spark session for this process: its JVM, and the settings that all our queries rely on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.runner.spark.gateway import start_gateway

MASTER = "local[2]"


def start_session(name: str, options: Mapping[str, str], log_file: Path) -> tuple[Any, subprocess.Popen[bytes]]:
    """The session and its JVM, which ends with this process; `options` are an agent's, those under `spark.` count."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.app.name": f"flafka-{name}",
        # Records are whole batches of events: the bytes bound what a Python worker holds at once.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
        # A processor's windows and joins: 200 tasks a micro-batch, Spark's default, are for larger ones.
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        "spark.sql.session.timeZone": "UTC",
        **{k.removeprefix("spark.conf."): v for k, v in options.items() if k.startswith("spark.conf.")},
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    gateway = start_gateway(options.get("spark.master", MASTER), conf, log_file)
    from pyspark.sql import SparkSession

    # It writes every wrong expression to standard error, with Java's stack; the exception says the same.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    return SparkSession.builder.getOrCreate(), gateway


def stop_session(spark: Any, gateway: subprocess.Popen[bytes]) -> None:
    """End both."""
    spark.stop()
    assert gateway.stdin is not None
    gateway.stdin.close()
    gateway.wait(10)

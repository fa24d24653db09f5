"""Spark, Java and Python, here and on the cluster: whether they go together, as `agent check` tells."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping

from flafka.agent.jvm import ServiceError
from flafka.agent.jvm.jars import read_lock
from flafka.agent.jvm.java import find_java
from flafka.agent.jvm.spark import brings_environment, own_address, workers_python
from flafka.agent.onyarn import described, wrong_with_files, wrong_with_yarn
from flafka.agent.options import YARN, AgentOptions, is_local, masters
from flafka.agent.runner.spark.master import ask_master, master_version
from flafka.plugins import ConnectivityWarning, FlafkaError

UI_PORT = "spark.conf.spark.master.ui.port"
PYTHON = "{}.{}".format(*sys.version_info)


def told(options: AgentOptions, *, asking: bool = False) -> str:
    """`Spark 4.2.1, Java 17 and Python 3.11 on local[2]`; only where nothing is `wrong`. `asking`: and of YARN."""
    master = options.spark_master
    text = f"Spark {_pyspark()}, Java {find_java().version} and Python {PYTHON} on {master}"
    if asking and master == YARN and (yarn := described()):
        text += f" ({yarn})"
    what = "executors" if master == YARN else "workers"
    needed = f"; its {what} need a {workers_python(options)}, without packages"
    return text + ("" if is_local(master) or brings_environment(options.spark_conf) else needed)


def wrong(options: AgentOptions) -> Iterator[str]:
    """What keeps the agent's Spark from running, as far as it can be known without asking anyone."""
    spark = _pyspark()
    if spark is None:
        yield "runner = spark needs pyspark: pip install 'flafka[spark]'"
        return
    connector = next(jar.version for jar in read_lock("spark") if jar.artifact.startswith("spark-sql-kafka"))
    if _minor(spark) != _minor(connector):
        yield (
            f"pyspark {spark} is not compatible with Spark's Kafka connector {connector}: pip install 'flafka[spark]'"
        )
    try:
        find_java()
    except ServiceError as e:
        yield str(e)
    if options.spark_master == YARN:
        yield from wrong_with_files(options.spark_conf)
    if is_local(options.spark_master) or brings_environment(options.spark_conf):
        return
    named = re.search(r"python(\d+\.\d+)$", python := workers_python(options))
    if named and named[1] != PYTHON:
        yield (
            f"the workers' {python} is not the agent's Python {PYTHON}, and Spark requires the same version of both: "
            f"name one of {PYTHON} with spark.conf.spark.pyspark.python, or run the agent with {python}"
        )


def wrong_with_master(
    options: AgentOptions, known_pages: Mapping[tuple[str, int], int] | None = None
) -> Iterator[str]:
    """Ask YARN, or the master of a standalone cluster, what keeps the agent's Spark from running.

    `known_pages` has the port of a master's web page, by the master's address, if it is neither configured nor 8080.
    """
    if options.spark_master == YARN:
        yield from wrong_with_yarn(options)
        return
    master, spark = options.spark_master, _pyspark()
    if spark is None or not (addresses := masters(master)):
        return
    try:
        own_address(f"Spark master answers at {master}", addresses)
    except FlafkaError as e:
        yield str(e)
        return
    known, named = known_pages or {}, options.spark_conf.get(UI_PORT.removeprefix("spark.conf."))
    pages = [(host, int(named or known.get((host, port), 8080))) for host, port in addresses]
    seen = [(version, ask_master(*one)) for one in pages if (version := master_version(*one))]
    if not seen:
        where = ", ".join(f"http://{host}:{port}" for host, port in pages)
        yield ConnectivityWarning(
            f"{master} does not tell its version at {where}: {UI_PORT} names the port of its web page"
        )
    for version, status in seen:
        if version != spark:
            text = f"{master} is Spark {version}, and pyspark here is {spark}: make them the same"
            yield text if _minor(version) != _minor(spark) else ConnectivityWarning(text)
        if status and status["status"] == "ALIVE" and not status["aliveworkers"]:
            yield ConnectivityWarning(f"{master} has no workers: nothing is delivered until one is there")


def _pyspark() -> str | None:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]

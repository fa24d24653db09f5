"""Versions of Spark, Java and Python, here and on the cluster, and their compatibility, for `agent check`."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping

from flafka.agent.jvm import ServiceError
from flafka.agent.jvm.jars import read_lock
from flafka.agent.jvm.java import find_java
from flafka.agent.jvm.spark import executor_python, own_address, ships_environment
from flafka.agent.onyarn import describe_yarn, file_problems, yarn_problems
from flafka.agent.options import YARN, AgentOptions, is_local_master, parse_master_addresses
from flafka.agent.runner.spark.master import fetch_master_status, fetch_master_version
from flafka.plugins import ConnectivityWarning, FlafkaError

UI_PORT = "spark.conf.spark.master.ui.port"
PYTHON = "{}.{}".format(*sys.version_info)


def describe_versions(options: AgentOptions, *, connect: bool = False) -> str:
    """Return text such as `Spark 4.2.1, Java 17 and Python 3.11 on local[2]`, with what executors need.

    With `connect`, also YARN's version, which the ResourceManager is asked for. Call it only if `version_problems`
    yields none.
    """
    master = options.spark_master
    text = f"Spark {_pyspark()}, Java {find_java().version} and Python {PYTHON} on {master}"
    if connect and master == YARN and (yarn := describe_yarn()):
        text += f" ({yarn})"
    if is_local_master(master) or ships_environment(options.spark_conf):
        return text
    processes = "executors" if master == YARN else "workers"
    return f"{text}; its {processes} need a {executor_python(options)}, without packages"


def version_problems(options: AgentOptions) -> Iterator[str]:
    """Yield the problems that keep the agent's Spark from running, without a connection to a cluster.

    These are missing or incompatible versions of pyspark, connector, Java and Python, and files of YARN.
    """
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
        yield from file_problems(options.spark_conf)
    if is_local_master(options.spark_master) or ships_environment(options.spark_conf):
        return
    match = re.search(r"python(\d+\.\d+)$", python := executor_python(options))
    if match and match[1] != PYTHON:
        yield (
            f"the workers' {python} is not the agent's Python {PYTHON}, and Spark requires the same version of both: "
            f"name one of {PYTHON} with spark.conf.spark.pyspark.python, or run the agent with {python}"
        )


def master_problems(options: AgentOptions, known_pages: Mapping[tuple[str, int], int] | None = None) -> Iterator[str]:
    """Connect to YARN or the master of a standalone cluster, and yield what keeps the agent's Spark from running.

    A ConnectivityWarning is yielded for a state that may pass. `known_pages` has the ports of masters' web pages by
    address, for ports that are neither configured nor 8080. Empty for a local master.
    """
    if options.spark_master == YARN:
        yield from yarn_problems(options)
        return
    master, spark = options.spark_master, _pyspark()
    if spark is None or not (addresses := parse_master_addresses(master)):
        return
    try:
        own_address(f"Spark master answers at {master}", addresses)
    except FlafkaError as e:
        yield str(e)
        return
    known, named = known_pages or {}, options.spark_conf.get(UI_PORT.removeprefix("spark.conf."))
    pages = [(host, int(named or known.get((host, port), 8080))) for host, port in addresses]
    answers = [(version, fetch_master_status(*one)) for one in pages if (version := fetch_master_version(*one))]
    if not answers:
        urls = ", ".join(f"http://{host}:{port}" for host, port in pages)
        yield ConnectivityWarning(f"{master} has no web page at {urls}: {UI_PORT} names the port of its web page")
    for version, status in answers:
        if version != spark:
            text = f"{master} is Spark {version}, and pyspark here is {spark}: install the same version"
            yield text if _minor(version) != _minor(spark) else ConnectivityWarning(text)
        if status and status["status"] == "ALIVE" and not status["aliveworkers"]:
            yield ConnectivityWarning(f"{master} has no workers: nothing is delivered until one registers")


def _pyspark() -> str | None:
    """Return the version of the installed pyspark; None without pyspark."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _minor(version: str) -> list[str]:
    """Return the first two numbers of a version."""
    return version.split(".")[:2]

"""Spark installation of this host, and settings for its JVMs and for the Python of executors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from flafka.agent.jvm import ServiceError
from flafka.agent.options import AgentOptions
from flafka.plugins import Retry

_OPEN_PACKAGES = (
    "java.io java.lang java.lang.invoke java.lang.reflect java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
JVM_OPTIONS = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_PACKAGES.split()),
    "-Dio.netty.tryReflectionSetAccessible=true",
]
"""Options of each JVM of Spark, which uses internal packages of the JDK."""


def spark_home() -> Path:
    """Return the directory of Spark in pyspark. Raises ServiceError if pyspark is not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServiceError("Spark comes with pyspark: pip install 'flafka[spark]'")
    return Path(spec.origin).parent


def ships_environment(conf: Mapping[str, str]) -> bool:
    """Return True if the user ships a Python environment to the executors, so that the agent packs none."""
    return "spark.archives" in conf or "spark.yarn.dist.archives" in conf


def executor_python(options: AgentOptions) -> str:
    """Return the Python command for executors: the configured one, or `python3.x` with this process's version."""
    return options.spark_conf.get("spark.pyspark.python") or "python{}.{}".format(*sys.version_info)


def own_address(peer: str, addresses: list[tuple[str, int]]) -> str:
    """Return the local address of a connection to the first reachable one of `addresses`.

    Each attempt has a timeout of 10 s. Raises Retry if none is reachable; `peer` is for its message, such as `Spark
    master answers at HOST:PORT`.
    """
    reasons = []
    for address in addresses:
        try:
            with socket.create_connection(address, timeout=10) as connection:
                return str(connection.getsockname()[0])
        except OSError as e:
            reasons.append(f"{address[0]}:{address[1]}: {e.strerror or e}")
    raise Retry(f"no {peer} ({'; '.join(reasons)})")

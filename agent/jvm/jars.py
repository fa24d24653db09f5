"""Jars of the servers, as pinned in `locks/`, downloaded once into a cache per user."""

import contextlib
import fcntl
import hashlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flafka.agent.jvm import ServiceError
from flafka.agent.jvm.maven import Repository, find_repository
from flafka.agent.state import base_directory

if TYPE_CHECKING:
    import requests

LOCKS = Path(__file__).parent / "locks"
THREADS = 8
ATTEMPTS = 4
"""Maximum number of attempts per jar."""
DOWNLOAD_PAUSE_SECONDS = 0.5
"""Delay before the second attempt, which doubles with each further attempt."""
TIMEOUTS_SECONDS = (10, 60)
"""Timeout to connect, and timeout between two chunks of a response."""
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, order=True)
class Jar:
    """Line of a lock file; `size` in bytes."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str
    size: int

    @classmethod
    def parse(cls, line: str) -> "Jar":
        """Return the jar of a line in a lock file: the inverse of `str(jar)`."""
        coordinates, sha256, size = line.split()
        group, artifact, version, classifier = [*coordinates.split(":"), ""][:4]
        return cls(group, artifact, version, classifier, sha256, int(size))

    def __str__(self) -> str:
        coordinates = ":".join(filter(None, (self.group, self.artifact, self.version, self.classifier)))
        return f"{coordinates} {self.sha256} {self.size}"

    @property
    def name(self) -> str:
        """File name of the jar, `artifact-version[-classifier].jar`."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    @property
    def path(self) -> str:
        """Relative path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def read_lock(service: str) -> list[Jar]:
    """Return the jars in the lock file of a service: `kafka`, `hdfs`, `hbase`, `solr`, `spark`, `yarn`, …"""
    lines = (LOCKS / f"{service}.lock").read_text().splitlines()
    return [Jar.parse(line) for line in lines if not line.startswith("#")]


def cache_directory() -> Path:
    """Return the user's cache directory `$XDG_CACHE_HOME/flafka`, by default ~/.cache/flafka.

    The directory may not exist yet. Raises FlafkaError for a user without a home directory.
    """
    return base_directory("XDG_CACHE_HOME", ".cache") / "flafka"


def ensure(service: str) -> Path:
    """Return the directory with exactly the jars of a service, for a class path `directory/*`.

    Missing jars are downloaded. Raises ServiceError.
    """
    return ensure_all(service)[service]


def ensure_all(*services: str) -> dict[str, Path]:
    """Return service → directory with exactly its jars. Download missing jars, with progress on standard error.

    A jar appears under its name only after a check of its SHA-256. Any number of processes may call this function at
    once: one downloads, the others wait. With all jars in the cache, nothing is downloaded. Raises ServiceError.
    """
    cache = cache_directory()
    locks = {service: read_lock(service) for service in services}
    directories = {service: cache / "lib" / f"{service}-{_digest(jars)}" for service, jars in locks.items()}
    try:
        if not all(_is_complete(directories[service], jars) for service, jars in locks.items()):
            with _file_lock(cache / "lock"):
                _download({jar for jars in locks.values() for jar in jars}, cache / "maven")
                for service, jars in locks.items():
                    _link(directories[service], jars)
    except OSError as error:
        raise ServiceError(f"cannot store the jars of the servers in {cache}: {error}") from error
    return directories


def bundle(directory: Path, *services: str) -> int:
    """Copy the jars of services into a directory for FLAFKA_MAVEN_REPO on another host; return their size in bytes.

    Jars that are there already are not copied. Missing ones are downloaded first. Raises ServiceError.
    """
    ensure_all(*services)
    jars = {jar for service in services for jar in read_lock(service)}
    try:
        for jar in sorted(jars):
            target = directory / jar.path
            if _size(target) != jar.size:
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_suffix(".part")
                shutil.copyfile(cache_directory() / "maven" / jar.path, part)
                part.rename(target)
    except OSError as error:
        raise ServiceError(f"cannot write the bundle into {directory}: {error.strerror}") from None
    return sum(jar.size for jar in jars)


def _digest(jars: list[Jar]) -> str:
    """Return a digest for the directory name: a new lock must not change the directory of a running server."""
    return hashlib.sha256("\n".join(map(str, jars)).encode()).hexdigest()[:12]


def _is_complete(directory: Path, jars: list[Jar]) -> bool:
    """Return True if the directory has all jars with their sizes."""
    return all(_size(directory / jar.name) == jar.size for jar in jars)


def _link(directory: Path, jars: list[Jar]) -> None:
    """Make symbolic links to the jars in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        with contextlib.suppress(FileExistsError):  # a starting server may be using the existing link
            (directory / jar.name).symlink_to(Path("..", "..", "maven", jar.path))


def _size(path: Path) -> int:
    """Return the size in bytes; 0 if the file does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file for the block; blocks until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases the lock if the process is killed
        yield


def _download(jars: set[Jar], store: Path) -> None:
    """Download the jars that `store` lacks, in parallel.

    The first failure stops the others and raises ServiceError.
    """
    missing = sorted(jar for jar in jars if _size(store / jar.path) != jar.size)
    if not missing:
        return
    repository = find_repository()
    total = sum(jar.size - _size(_part(store, jar)) for jar in missing)
    action = "Copying" if repository.directory else "Downloading"
    print(f"{action} {len(missing)} jars, {total / 1e6:.1f} MB, once, into {store.parent}", file=sys.stderr)
    session_context = contextlib.nullcontext() if repository.directory else repository.session()
    with session_context as session, _progress(total) as advance, ThreadPoolExecutor(THREADS) as pool:
        stop = threading.Event()
        downloader = _Downloader(session, repository, store, advance, stop)
        futures = [pool.submit(downloader.download, jar) for jar in missing]
        try:
            for future in as_completed(futures):
                future.result()
        except _DownloadFailure as failure:
            still_missing = [jar.name for jar in missing if _size(store / jar.path) != jar.size]
            raise ServiceError(_explain(repository, failure, still_missing)) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _part(store: Path, jar: Jar) -> Path:
    """Return the path of an incomplete download."""
    return store / f"{jar.path}.part"


class _DownloadFailure(Exception):
    """Permanent failure to get a jar."""


@dataclass(frozen=True)
class _Downloader:
    """Downloader of jars. Any thread may call. Resumes the partial downloads of earlier runs."""

    session: "requests.Session | None"  # None if the repository is a directory
    repository: Repository
    store: Path
    advance: Callable[[int], None]
    stop: threading.Event

    def download(self, jar: Jar) -> None:
        """Download a jar, resume an earlier download, and check its SHA-256, with up to `ATTEMPTS` attempts.

        Raises _DownloadFailure after the last attempt; returns early if `stop` is set.
        """
        part = _part(self.store, jar)
        part.parent.mkdir(parents=True, exist_ok=True)
        failure = ""
        for attempt in range(ATTEMPTS):
            if attempt and self.stop.wait(DOWNLOAD_PAUSE_SECONDS * 2 ** (attempt - 1)):
                return
            if self.session is None:
                self._copy(jar, part)
            else:
                import requests

                try:
                    self._resume(self.session, jar, part)
                except requests.RequestException as error:
                    failure = _reason(error)
                    continue
            if self.stop.is_set():
                return
            with part.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 == jar.sha256:
                part.rename(self.store / jar.path)
                return
            self.advance(-_size(part))
            part.unlink()
            failure = f"has SHA-256 {sha256[:12]}…, not {jar.sha256[:12]}… as in the lock"
        raise _DownloadFailure(f"{jar.name}: {failure}")

    def _copy(self, jar: Jar, part: Path) -> None:
        """Copy a jar from a repository that is a directory. Raises _DownloadFailure."""
        assert self.repository.directory is not None
        self.advance(-_size(part))
        try:
            shutil.copyfile(self.repository.directory / jar.path, part)
        except OSError as error:
            raise _DownloadFailure(f"{jar.name}: {error.strerror}") from None
        self.advance(_size(part))

    def _resume(self, session: "requests.Session", jar: Jar, part: Path) -> None:
        """Append the missing bytes of a jar to `part`.

        Raises _DownloadFailure for a refusal, and RequestException.
        """
        import requests

        present = _size(part)
        if present == jar.size:
            return
        headers = {"Range": f"bytes={present}-"} if present else {}
        url = f"{self.repository.url}/{jar.path}"
        with session.get(url, headers=headers, stream=True, timeout=TIMEOUTS_SECONDS) as response:
            if present and response.status_code in (200, 416):  # the server does not support this range
                self.advance(-present)
                part.unlink()
            if response.status_code >= 400:
                refusal = f"the server answers {response.status_code} {response.reason}"
                if response.status_code < 500 and response.status_code not in (408, 416, 429):
                    raise _DownloadFailure(f"{jar.name}: {refusal}")
                raise requests.HTTPError(refusal)
            with part.open("ab") as file:
                for chunk in response.iter_content(CHUNK_BYTES):
                    file.write(chunk)
                    self.advance(len(chunk))
                    if self.stop.is_set():
                        return


def _reason(error: Exception) -> str:
    """Return the text of the innermost cause: requests and urllib3 wrap errors several times."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    return str(error).rpartition(": ")[2] or type(error).__name__


def _explain(repository: Repository, failure: _DownloadFailure, missing: list[str]) -> str:
    """Return the text of a ServiceError for missing jars, with remedies."""
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return (
        f"cannot get the jars from {repository}: {failure}\n"
        f"  missing: {names}\n"
        "  behind a proxy: set HTTPS_PROXY; with a certificate of a private authority: set REQUESTS_CA_BUNDLE\n"
        "  a mirror of Maven Central: set FLAFKA_MAVEN_REPO to its URL, or a <mirror> in ~/.m2/settings.xml\n"
        "  without a network: run `agent sandbox fetch DIR` on a connected host, then set FLAFKA_MAVEN_REPO=DIR here"
    )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts bytes and shows the progress: a bar on a terminal, else a line per tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)
        return
    lock = threading.Lock()
    done = reported = 0

    def advance(count: int) -> None:
        nonlocal done, reported
        with lock:
            done += count
            if done * 10 // max(total, 1) > reported:
                reported = done * 10 // max(total, 1)
                print(f"  {done / 1e6:.1f} of {total / 1e6:.1f} MB", file=sys.stderr)

    yield advance

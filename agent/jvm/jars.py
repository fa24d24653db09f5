"""The servers' jars: exactly those of `locks/`, downloaded once into a cache that all checkouts of a user share."""

import contextlib
import fcntl
import hashlib
import os
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

if TYPE_CHECKING:
    import requests

LOCKS = Path(__file__).parent / "locks"
THREADS = 8
ATTEMPTS = 4  # per jar
DOWNLOAD_PAUSE_SECONDS = 0.5  # seconds before the second attempt, then twice as long each time
TIMEOUT = (10, 60)  # seconds to connect, seconds between two pieces of an answer
PIECE = 64 * 1024  # bytes; so much is lost at most when a connection breaks


@dataclass(frozen=True, order=True)
class Jar:
    """One line of a lock; `size` in bytes."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str
    size: int

    @classmethod
    def parse(cls, line: str) -> "Jar":
        """The inverse of `str(jar)`."""
        coordinates, sha256, size = line.split()
        group, artifact, version, classifier = [*coordinates.split(":"), ""][:4]
        return cls(group, artifact, version, classifier, sha256, int(size))

    def __str__(self) -> str:
        coordinates = ":".join(filter(None, (self.group, self.artifact, self.version, self.classifier)))
        return f"{coordinates} {self.sha256} {self.size}"

    @property
    def name(self) -> str:
        """The file's name."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    @property
    def path(self) -> str:
        """Where a Maven repository keeps it."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def read_lock(service: str) -> list[Jar]:
    """The jars of `kafka`, `hdfs`, `hbase`, `solr`, `opensearch`, `spark` or `yarn`."""
    lines = (LOCKS / f"{service}.lock").read_text().splitlines()
    return [Jar.parse(line) for line in lines if not line.startswith("#")]


def cache_directory() -> Path:
    """Where the jars are kept: `$XDG_CACHE_HOME/flafka`, else `~/.cache/flafka`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flafka"


def ensure(service: str) -> Path:
    """The folder with the service's jars and nothing else, for a class path `folder/*`; see `ensure_all`."""
    return ensure_all(service)[service]


def ensure_all(*services: str) -> dict[str, Path]:
    """One folder of jars per service; what is missing is downloaded, with progress on standard error.

    Every jar matched the lock's SHA-256 before it appears under its name. Any number of processes may call this at
    once: one downloads, the others wait for it. With everything in the cache the network is not touched.
    Raises `ServiceError`, which says what is missing and what to do.
    """
    cache = cache_directory()
    locks = {service: read_lock(service) for service in services}
    folders = {service: cache / "lib" / f"{service}-{_digest(jars)}" for service, jars in locks.items()}
    try:
        if not all(_complete(folders[service], jars) for service, jars in locks.items()):
            with _exclusive(cache / "lock"):
                _download({jar for jars in locks.values() for jar in jars}, cache / "maven")
                for service, jars in locks.items():
                    _link(folders[service], jars)
    except OSError as error:
        raise ServiceError(f"cannot keep the servers' jars under {cache}: {error}") from error
    return folders


def bundle(directory: Path, *services: str) -> int:
    """Copy these services' jars into a directory that FLAFKA_MAVEN_REPO can name elsewhere; their bytes in all."""
    ensure_all(*services)
    jars = {jar for service in services for jar in read_lock(service)}
    try:
        for jar in sorted(jars):
            target = directory / jar.path
            if _size(target) != jar.size:
                target.parent.mkdir(parents=True, exist_ok=True)
                draft = target.with_suffix(".part")
                shutil.copyfile(cache_directory() / "maven" / jar.path, draft)
                draft.rename(target)
    except OSError as error:
        raise ServiceError(f"cannot write the bundle into {directory}: {error.strerror}") from None
    return sum(jar.size for jar in jars)


def _digest(jars: list[Jar]) -> str:
    """In the folder's name, so that a new lock does not change the folder under a running server."""
    return hashlib.sha256("\n".join(map(str, jars)).encode()).hexdigest()[:12]


def _complete(folder: Path, jars: list[Jar]) -> bool:
    return all(_size(folder / jar.name) == jar.size for jar in jars)


def _link(folder: Path, jars: list[Jar]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        with contextlib.suppress(FileExistsError):  # links stay: a server may be starting from them
            (folder / jar.name).symlink_to(Path("..", "..", "maven", jar.path))


def _size(path: Path) -> int:
    """Bytes; 0 when the file does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel, should this process be killed
        yield


def _download(jars: set[Jar], store: Path) -> None:
    """Fetch what the store lacks, several jars at a time. The first failure stops the rest."""
    missing = sorted(jar for jar in jars if _size(store / jar.path) != jar.size)
    if not missing:
        return
    repository = find_repository()
    total = sum(jar.size - _size(_part(store, jar)) for jar in missing)
    doing = "Copying" if repository.directory else "Downloading"
    print(f"{doing} {len(missing)} jars, {total / 1e6:.1f} MB, once, into {store.parent}", file=sys.stderr)
    session_of_it = contextlib.nullcontext() if repository.directory else repository.session()
    with session_of_it as session, _progress(total) as advance, ThreadPoolExecutor(THREADS) as pool:
        stop = threading.Event()
        fetch = _Fetch(session, repository, store, advance, stop)
        futures = [pool.submit(fetch, jar) for jar in missing]
        try:
            for future in as_completed(futures):
                future.result()
        except _Failed as failure:
            left = [jar.name for jar in missing if _size(store / jar.path) != jar.size]
            raise ServiceError(_explain(repository, failure, left)) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _part(store: Path, jar: Jar) -> Path:
    return store / f"{jar.path}.part"


class _Failed(Exception):
    """A jar that no further attempt will bring."""


@dataclass(frozen=True)
class _Fetch:
    """Downloads one jar at a call, in any thread; what an earlier run left half done is continued."""

    session: "requests.Session | None"  # None where the repository is a directory
    repository: Repository
    store: Path
    advance: Callable[[int], None]
    stop: threading.Event

    def __call__(self, jar: Jar) -> None:
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
                    self._continue(self.session, jar, part)
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
            failure = f"has SHA-256 {sha256[:12]}…, the lock says {jar.sha256[:12]}…"
        raise _Failed(f"{jar.name}: {failure}")

    def _copy(self, jar: Jar, part: Path) -> None:
        assert self.repository.directory is not None
        self.advance(-_size(part))
        try:
            shutil.copyfile(self.repository.directory / jar.path, part)
        except OSError as error:
            raise _Failed(f"{jar.name}: {error.strerror}") from None
        self.advance(_size(part))

    def _continue(self, session: "requests.Session", jar: Jar, part: Path) -> None:
        import requests

        have = _size(part)
        if have == jar.size:
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        url = f"{self.repository.url}/{jar.path}"
        with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if have and answer.status_code in (200, 416):  # ranges are not served, or not this one
                self.advance(-have)
                part.unlink()
            if answer.status_code >= 400:
                refusal = f"the server answers {answer.status_code} {answer.reason}"
                if answer.status_code < 500 and answer.status_code not in (408, 416, 429):
                    raise _Failed(f"{jar.name}: {refusal}")
                raise requests.HTTPError(refusal)
            with part.open("ab") as file:
                for piece in answer.iter_content(PIECE):
                    file.write(piece)
                    self.advance(len(piece))
                    if self.stop.is_set():
                        return


def _reason(error: Exception) -> str:
    """The innermost cause: requests and urllib3 wrap one another's errors several times."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    return str(error).rpartition(": ")[2] or type(error).__name__


def _explain(repository: Repository, failure: _Failed, left: list[str]) -> str:
    names = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
    return (
        f"cannot get the jars from {repository}: {failure}\n"
        f"  missing: {names}\n"
        "  behind a proxy: set HTTPS_PROXY; a company's certificate: set REQUESTS_CA_BUNDLE\n"
        "  a mirror of Maven Central: set FLAFKA_MAVEN_REPO to its URL, or a <mirror> in ~/.m2/settings.xml\n"
        "  no network at all: `agent sandbox fetch DIR` on a machine that has it, then FLAFKA_MAVEN_REPO=DIR here"
    )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A function that counts bytes: a bar on a terminal, a line per tenth of the total elsewhere."""
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
    done = told = 0

    def advance(count: int) -> None:
        nonlocal done, told
        with lock:
            done += count
            if done * 10 // max(total, 1) > told:
                told = done * 10 // max(total, 1)
                print(f"  {done / 1e6:.1f} of {total / 1e6:.1f} MB", file=sys.stderr)

    yield advance

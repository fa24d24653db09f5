import hashlib
import http.server
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.jvm import ServiceError, jars
from flafka.agent.jvm.jars import Jar


class Mirror(http.server.ThreadingHTTPServer):
    """Maven repository with ranges; `cut` jars break off half-way once, `busy` ones are refused this many times."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.ranges: list[str] = []
        self.cut: set[str] = set()
        self.busy: dict[str, int] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/repo"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        path = self.path.removeprefix("/repo/")
        self.server.requests[path] += 1
        content = self.server.files.get(path)
        if content is None:
            self.send_error(404)
            return
        if self.server.busy.get(path, 0):
            self.server.busy[path] -= 1
            self.send_error(503)
            return
        begin = 0
        if wanted := self.headers.get("Range"):
            self.server.ranges.append(wanted)
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        cut = path in self.server.cut
        self.server.cut.discard(path)
        self.wfile.write(content[begin : len(content) // 2 if cut else None])

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Repository with the jars of a small lock named `tiny`, and an empty cache."""
    with Mirror() as server:
        locked = []
        for number in range(5):
            content = bytes([number]) * (200_000 + number)
            classifier = "tests" if number == 4 else ""
            sha256 = hashlib.sha256(content).hexdigest()
            jar = Jar("org.example", f"part{number}", "1.0", classifier, sha256, len(content))
            server.files[jar.path] = content
            locked.append(jar)
        (tmp_path / "locks").mkdir()
        (tmp_path / "locks" / "tiny.lock").write_text("# a comment\n" + "\n".join(map(str, locked)))
        monkeypatch.setattr(jars, "LOCKS", tmp_path / "locks")
        monkeypatch.setattr(jars, "DOWNLOAD_PAUSE_SECONDS", 0.01)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("FLAFKA_MAVEN_REPO", server.url)
        yield server
        server.shutdown()


def test_downloads_once_and_then_needs_no_network(mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    folder = jars.ensure("tiny")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["part0-1.0.jar", "part1-1.0.jar", "part2-1.0.jar", "part3-1.0.jar", "part4-1.0-tests.jar"]
    assert (folder / "part3-1.0.jar").read_bytes() == b"\3" * 200_003
    output = capsys.readouterr()
    assert not output.out
    assert output.err.startswith("Downloading 5 jars, 1.0 MB")
    assert "1.0 of 1.0 MB" in output.err

    mirror.shutdown()
    assert jars.ensure("tiny") == folder
    assert not capsys.readouterr().err
    assert set(mirror.requests.values()) == {1}


def test_a_jar_that_vanished_from_the_cache_comes_back(mirror: Mirror) -> None:
    folder = jars.ensure("tiny")
    (folder / "part2-1.0.jar").resolve().unlink()
    assert (jars.ensure("tiny") / "part2-1.0.jar").stat().st_size == 200_002
    assert mirror.requests.total() == 6


def test_a_broken_connection_is_resumed_where_it_broke(mirror: Mirror) -> None:
    mirror.cut = {jar.path for jar in jars.read_lock("tiny")[:2]}
    folder = jars.ensure("tiny")
    assert (folder / "part1-1.0.jar").read_bytes() == b"\1" * 200_001
    assert mirror.ranges == ["bytes=65536-", "bytes=65536-"]  # whole pieces are kept


def test_a_download_of_a_killed_run_is_resumed(mirror: Mirror, tmp_path: Path) -> None:
    jar = jars.read_lock("tiny")[0]
    part = tmp_path / "cache" / "flafka" / "maven" / f"{jar.path}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(mirror.files[jar.path][:150_000])
    jars.ensure("tiny")
    assert mirror.ranges == ["bytes=150000-"]


def test_a_jar_with_another_checksum_is_never_used(mirror: Mirror, tmp_path: Path) -> None:
    jar = jars.read_lock("tiny")[1]
    mirror.files[jar.path] = b"?" * jar.size
    with pytest.raises(ServiceError, match=r"part1-1\.0\.jar: has SHA-256 .*, not .* as in the lock"):
        jars.ensure("tiny")
    assert not (tmp_path / "cache" / "flafka" / "maven" / jar.path).exists()


def test_a_missing_jar_is_named_and_not_requested_again(mirror: Mirror) -> None:
    jar = jars.read_lock("tiny")[3]
    del mirror.files[jar.path]
    with pytest.raises(ServiceError, match=r"part3-1\.0\.jar: the server answers 404") as failure:
        jars.ensure("tiny")
    assert f"cannot get the jars from {mirror.url}" in str(failure.value)
    assert "FLAFKA_MAVEN_REPO" in str(failure.value)
    assert mirror.requests[jar.path] == 1


def test_a_busy_server_is_retried(mirror: Mirror) -> None:
    jar = jars.read_lock("tiny")[0]
    mirror.busy = {jar.path: 2}
    jars.ensure("tiny")
    assert mirror.requests[jar.path] == 3


def test_an_unreachable_repository_is_reported_with_advice(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAFKA_MAVEN_REPO", "http://user:secret@127.0.0.1:1/repo")
    with pytest.raises(ServiceError, match="Connection refused") as failure:
        jars.ensure("tiny")
    assert "and 2 more" in str(failure.value)
    assert "HTTPS_PROXY" in str(failure.value)
    assert "secret" not in str(failure.value)


def test_two_processes_at_once_download_each_jar_once(mirror: Mirror) -> None:
    program = "import sys, pathlib; from flafka.agent.jvm import jars; jars.LOCKS = pathlib.Path(sys.argv[1])"
    command = [sys.executable, "-c", f"{program}; print(jars.ensure('tiny'))", str(jars.LOCKS)]
    root = Path(__file__).parents[2]
    processes = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(folders) == 1
    assert set(mirror.requests.values()) == {1}


@pytest.mark.parametrize(
    ("service", "count"),
    [
        *(("kafka", 47), ("hdfs", 117), ("hbase", 123), ("solr", 122), ("spark", 4), ("yarn", 98)),
        *(("flume", 123), ("appenders", 32), ("log4j-kafka", 5), ("morphlines", 11)),
    ],
)
def test_shipped_locks_name_each_jar_once(service: str, count: int) -> None:
    locked = jars.read_lock(service)
    assert len({jar.name for jar in locked}) == len(locked) == count
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in locked)
    assert [Jar.parse(str(jar)) for jar in locked] == locked


@pytest.mark.usefixtures("servers")
def test_the_cached_jars_are_those_of_the_lock() -> None:
    folder = jars.ensure("spark")
    for jar in jars.read_lock("spark"):
        assert hashlib.sha256((folder / jar.name).read_bytes()).hexdigest() == jar.sha256


def test_a_bundle_serves_a_machine_without_network(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "a bundle"
    for _ in range(2):  # the second time does nothing
        assert jars.bundle(bundle, "tiny") == sum(jar.size for jar in jars.read_lock("tiny"))
    mirror.shutdown()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    monkeypatch.setenv("FLAFKA_MAVEN_REPO", str(bundle))
    first, *remaining = jars.read_lock("tiny")
    (bundle / first.path).rename(bundle / "hidden")
    with pytest.raises(ServiceError, match=f"cannot get the jars from {bundle}: {first.name}: No such file"):
        jars.ensure("tiny")
    (bundle / first.path).write_bytes(b"tampered with")
    with pytest.raises(ServiceError, match="has SHA-256"):
        jars.ensure("tiny")
    (bundle / "hidden").rename(bundle / first.path)
    folder = jars.ensure("tiny")
    assert {path.name for path in folder.iterdir()} == {jar.name for jar in (first, *remaining)}

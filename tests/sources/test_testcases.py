"""Cases of sources as data: files `input*` are sent or read, `expected.jsonl` has the events."""

from __future__ import annotations

import functools
import http.client
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import javaproperties

from flafka.plugins import Event
from tests.fixtures.testcases import NOW_MS, Case, describe, each_case, metrics
from tests.sources.taildir_running import process

TIMEOUT_SECONDS = 60.0


@each_case("source")
def test_case(directory: Path, tmp_path: Path) -> None:
    case = Case(directory, tmp_path)
    run, defaults = KINDS[case.type]
    (tmp_path / "files").mkdir()
    with closing(case.make("source", defaults)) as source:
        if hasattr(source, "_decoder"):
            source._decoder.clock = lambda: NOW_MS / 1000
        for file in case.inputs():
            shutil.copy(file, tmp_path / "files")
        source.open()
        case.compare([*run(case, source), *metrics(source)])


def ends_by_itself(_: Case, source: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a source that needs no sender."""
    for batch in source.batches():
        yield from map(describe, batch)


def datagrams(case: Case, source: Any) -> Iterator[dict[str, Any]]:
    """Send each input as a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for file in case.inputs():
            sender.sendto(file.read_bytes(), ("127.0.0.1", source.port))
        source.stopping.set()  # the source still yields the datagrams that have arrived
        for batch in source.batches():
            yield from map(describe, batch)


def files(case: Case, source: Any) -> Iterator[dict[str, Any]]:
    """Let the source read its directory, which has the inputs as files."""
    if case.type == "taildir":
        yield from (describe(Event(body, headers)) for body, headers in process(source))
        return
    for batch in source.poll():
        yield from map(describe, batch)
        source.stored(batch)


def send_inputs(send: Callable[[Any, Path], str], case: Case, source: Any) -> Iterator[dict[str, Any]]:
    """Send each input to the running source; yield its events, and then its answers."""
    events: list[Event] = []

    def run() -> None:
        for batch in source.batches():
            events.extend(batch)
            source.stored(batch)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        answers = [send(source, file) for file in case.inputs()]
    finally:
        source.stopping.set()
        thread.join(TIMEOUT_SECONDS)
    yield from map(describe, events)
    yield from ({"answer": answer} for answer in answers if answer)


def connection(source: Any, file: Path) -> str:
    """Send an input over a connection of its own; return the answer, which ends when the source has read all."""
    port = source.ports[0] if hasattr(source, "ports") else source.port
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as sender:
        sender.sendall(file.read_bytes())
        sender.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sender.recv(65536), b"")).decode()


def request(source: Any, file: Path) -> str:
    """POST an input; `request.properties` (of `input-1`, `request-1.properties`) has headers and the `path`."""
    options = file.with_name(file.name.replace("input", "request")).with_suffix(".properties")
    headers = javaproperties.loads(options.read_text("utf-8")) if options.exists() else {}
    with closing(http.client.HTTPConnection("127.0.0.1", source.port, timeout=TIMEOUT_SECONDS)) as client:
        client.request("POST", headers.pop("path", "/"), file.read_bytes(), headers)
        response = client.getresponse()
        text = response.read().decode()
    return "" if response.status == 200 else f"{response.status} {text}"


LOCAL = {"bind": "127.0.0.1", "port": "0"}
SYSLOG = {"host": "127.0.0.1", "timeZone": "UTC"}
TAILDIR = {"filegroups": "g", "filegroups.g": "<temp>/files/.*", "positionFile": "<temp>/taildir.json"}
STREAM, HTTP = functools.partial(send_inputs, connection), functools.partial(send_inputs, request)
KINDS: dict[str, tuple[Callable[[Case, Any], Iterator[dict[str, Any]]], Mapping[str, str]]] = {
    **dict.fromkeys(("exec", "seq", "stress"), (ends_by_itself, {})),
    "http": (HTTP, LOCAL),
    "log4j": (STREAM, LOCAL | {"timeZone": "UTC"}),
    "multiport_syslogtcp": (STREAM, SYSLOG | {"ports": "0"}),
    "netcat": (STREAM, LOCAL),
    "netcatudp": (datagrams, LOCAL),
    "spooldir": (files, {"spoolDir": "<temp>/files"}),
    "syslogtcp": (STREAM, SYSLOG | {"port": "0"}),
    "syslogudp": (datagrams, SYSLOG | {"port": "0"}),
    "taildir": (files, TAILDIR),
}
"""Each type with how its input reaches it, and the options that its cases need not name."""

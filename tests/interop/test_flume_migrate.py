"""Configuration that Apache Flume 1.11 runs, and the output of `agent migrate` for it: the same events arrive."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.interop.test_flume import flume

CONFIGURATION = """
# Orders of the shop.
a1.sources = http files
a1.channels = memory
a1.sinks = out

a1.sources.http.type = org.apache.flume.source.http.HTTPSource
a1.sources.http.bind = 127.0.0.1
a1.sources.http.port = {port}
a1.sources.http.SslContextFactory.IncludeProtocols = TLSv1.2
a1.sources.http.channels = memory
a1.sources.http.interceptors = shop
a1.sources.http.interceptors.shop.type = static
a1.sources.http.interceptors.shop.key = shop
a1.sources.http.interceptors.shop.value = Köln
a1.sources.files.type = spooldir
a1.sources.files.spoolDir = {directory}/spool
a1.sources.files.basenameHeader = true
a1.sources.files.channels = memory

a1.channels.memory.type = memory
a1.channels.memory.capacity = 1000
a1.channels.memory.transactionCapacity = 1000
a1.channels.memory.keep-alive = 3

a1.sinks.out.type = FILE_ROLL
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {directory}/out
a1.sinks.out.sink.rollInterval = 0
a1.sinks.out.sink.serializer = HEADER_AND_TEXT
"""
ORDERS = [{"headers": {"number": str(number)}, "body": f"order {number} über"} for number in range(50)]
LINES = [f"line {number} ß" for number in range(50)]


def arrived(out: Path) -> Counter[bytes]:
    """Return the events with sorted headers, as neither guarantees an order."""
    events = Counter[bytes]()
    for file in out.iterdir():
        for line in file.read_bytes().splitlines():
            headers, brace, body = line.partition(b"}")
            events[b", ".join(sorted(headers.strip(b"{ ").split(b", "))) + brace + body] += 1
    return events


def prepared(directory: Path, port: int) -> Path:
    """Write the configuration and its input into a new directory."""
    for name in ("spool", "out"):
        (directory / name).mkdir(parents=True)
    (directory / "spool" / "orders.txt").write_text("".join(line + "\n" for line in LINES))
    file = directory / "flume.conf"
    file.write_text(CONFIGURATION.format(port=port, directory=directory), "iso-8859-1")
    return file


def post(port: int) -> bool:
    """Return True if the answer is that all events are stored."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}", json.dumps(ORDERS).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bool(answer.status == 200)
    except ConnectionError:
        return False
    except urllib.error.URLError as e:
        if isinstance(e.reason, ConnectionError):
            return False
        raise


def test_the_same_events_arrive_before_and_after_a_migration(tmp_path: Path) -> None:
    """Flume with the old configuration, ours with the old one, and ours with the migrated one."""
    port = free_port()
    out: dict[str, Counter[bytes]] = {}
    for version in ("flume", "old", "new"):
        directory = tmp_path / version
        file = prepared(directory, port)
        if version == "flume":
            with flume(directory, file):
                until(lambda: post(port), "Flume to answer")
                until(lambda: arrived(directory / "out").total() >= 100, "Flume to deliver")
        else:
            if version == "new":
                command = [
                    sys.executable,
                    "-m",
                    "flafka",
                    "migrate",
                    str(file),
                    "-o",
                    str(directory / "agent.conf"),
                ]
                migrated = subprocess.run(command, capture_output=True, text=True, check=False)
                assert migrated.returncode == 0, migrated.stdout + migrated.stderr
                assert "agent.conf, 1 line changed" in migrated.stdout
                assert file.read_bytes() == (tmp_path / "old" / "flume.conf").read_bytes().replace(b"/old/", b"/new/")
                file = directory / "agent.conf"
            with RunningAgent(directory, file, "-c", str(file), "-D", "flume.monitoring.port=0") as agent:
                agent.until(lambda: post(port), "ours to answer")
                agent.until(lambda: arrived(directory / "out").total() >= 100, "ours to deliver")
                assert agent.stop() == 0
                assert ("SslContextFactory" in agent.log) == (version == "old"), "the new one needs no warning"
        out[version] = arrived(directory / "out")
    assert out["flume"].total() == 100
    assert out["old"] == out["flume"]
    assert out["new"] == out["flume"]

"""Settings of `conf/log4j` in applications that throw, and in one that ends on a busy machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from flafka.plugins import Event
from tests.fixtures.ports import free_port
from tests.interop.encoders import Encoders
from tests.interop.jvm import interceptors
from tests.sources.calling import Running
from tests.sources.test_log4j_encoders import CLASHING, TRACE, plain

SETTINGS = Path(__file__).parents[2] / "conf" / "log4j"
MANY = 1000
TIME = {"log4j1": "flume.client.log4j.timestamp", "log4j2": "timeStamp"}
"""Headers of Flume's appenders."""


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Programs that keep all processors busy."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize(
    ("source", "apis"),
    [
        ("avro", {"log4j1": "log4j.xml", "log4j2": "log4j2.xml"}),
        ("log4j", {"log4j2": "log4j2-json.xml", "logback": "logback.xml"}),
    ],
)
def test_complete_events_arrive_up_to_the_last_one_of_an_application(
    tmp_path: Path, source: str, apis: dict[str, str]
) -> None:
    port, files = free_port(), {api: SETTINGS / name for api, name in apis.items()}
    properties: dict[str, object] = {"flafka_host": "127.0.0.1", "flafka_port": port}
    if "log4j1" in files:
        properties["log4j_configuration"] = files["log4j1"].as_uri()
    if "logback" in files:
        properties["logback_configurationFile"] = files["logback"]
    properties["log4j2_configurationFile"] = files["log4j2"]
    with Running() as collector:
        text = f"""
a1.sources = logs
a1.channels = c1
a1.sinks = k1
a1.sources.logs.type = {source}
a1.sources.logs.bind = 127.0.0.1
a1.sources.logs.port = {port}
a1.sources.logs.channels = c1
{interceptors(files["log4j2"])}
a1.channels.c1.type = memory
a1.sinks.k1.type = avro
a1.sinks.k1.channel = c1
a1.sinks.k1.hostname = 127.0.0.1
a1.sinks.k1.port = {collector.source.port}
"""
        assert {interceptors(file) for file in files.values()} == {interceptors(files["log4j2"])}

        def of(name: str) -> list[Event]:
            return [event for event in collector.events if event.headers.get("logger") == name]

        with RunningAgent(tmp_path, text) as agent, Encoders(tmp_path, **properties) as program:
            agent.wait_until_healthy()
            for api in apis:
                before, after = program.times(api, f"app.{api}")
                agent.until(
                    lambda api=api: len(of(f"app.{api}")) >= 4, f"four events of {api}\n{program.log[-2000:]}"
                )
                check(api, of(f"app.{api}"), before, after)
            unlimited = [api for api in apis if api != "log4j1"]  # whose end has no time limit
            with busy():
                for api in unlimited:
                    assert program.request(f"many {api} app.{api}.many {MANY}") == "logged"
                program.end()
            for api in unlimited:
                wanted = [f"app.{api}.many-{number}".encode() for number in range(MANY)]
                agent.until(lambda api=api: len(of(f"app.{api}.many")) >= MANY, f"the last events of {api}")
                assert [event.body for event in of(f"app.{api}.many")] == wanted


def check(api: str, events: list[Event], before: int, after: int) -> None:
    """Check level, logger, thread, time, thread context and stack trace."""
    greeting, clash, failed, silent = events[:4]
    for event, level in zip(events, ("WARN", "WARN", "ERROR", "ERROR"), strict=False):
        assert (event.headers["level"], event.headers["thread"]) == (level, "worker 1")
        assert before <= int(event.headers.get("timestamp") or event.headers[TIME[api]]) <= after
    assert greeting.body.decode() == 'grüße\n"世界"'
    assert clash.body == b"clash"
    assert lines(failed.body) == lines(f"failed\n{TRACE}".encode())
    assert lines(silent.body.strip())[:2] == ["java.lang.Error", "\tat Encoders.tell(Encoders.java)"]
    if api != "log4j1":  # Flume's appender for log4j 1 has no thread context
        assert "jane" in (greeting.headers.get("user"), greeting.headers.get("mdc.user"))
        assert {name: clash.headers[name] for name in CLASHING if name.startswith("mdc.")}.items() <= CLASHING.items()


def lines(body: bytes) -> list[str]:
    """Return the lines of a trace without line numbers."""
    return re.sub(r"(?<=\.java):\d+", "", plain(body.decode())).splitlines()

"""Log of the agent: its forms, names of components in it, and its brevity in normal operation."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest
import requests

from flafka.agent import logs
from flafka.agent.config import load
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Components
from tests.agent.test_monitoring import configuration

LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d) (DEBUG|INFO|WARNING|ERROR) ([\w.]+): (.*)")


def begin(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Log as a process does whose root logger has no handlers yet."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    for name in (logs.FORMAT_VARIABLE, logs.LEVEL_VARIABLE):
        monkeypatch.setenv(name, "")
    logs.log_to_stderr(*arguments)


def test_a_line_has_the_time_with_its_zone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(monkeypatch)
    logging.getLogger("a1.sinks.k1").info("works %s", "again")
    line = LINE.fullmatch(capsys.readouterr().err.rstrip())
    assert line is not None
    assert line.groups()[1:] == ("INFO", "a1.sinks.k1", "works again")
    assert abs(datetime.fromisoformat(line[1]).timestamp() - datetime.now().astimezone().timestamp()) < 3600


def test_json_has_one_object_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begin(monkeypatch, "DEBUG", "json")
    log = logging.getLogger("a1.sources.s1")
    log.debug("a\nb ü")
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["component"], first["message"]) == ("DEBUG", "a1.sources.s1", "a\nb ü")
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["traceback"].endswith("ValueError: x")
    # Processes that the agent starts have the same format.
    assert (os.environ[logs.LEVEL_VARIABLE], os.environ[logs.FORMAT_VARIABLE]) == ("DEBUG", "json")


def test_an_answer_that_ends_within_its_headers_is_not_logged_by_urllib3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(monkeypatch, "DEBUG")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nC")

        answering = threading.Thread(target=answer)
        answering.start()
        requests.get(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=30)
        answering.join()
    assert capsys.readouterr().err == ""


def test_a_component_is_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(configuration(0))
    spec, _ = load(file, None, components=Components())
    assert spec is not None
    assert [component.make().log.name for component in (*spec.sources, *spec.channels, *spec.sinks)] == [
        *("a1.sources.s1", "a1.sources.s2", "a1.channels.c1", "a1.sinks.k1")
    ]


def test_a_run_in_which_all_is_well_is_short(servers: None, tmp_path: Path) -> None:
    start = (sys.executable, "-m", "flafka", "start", "--log-format", "json")
    with RunningAgent(tmp_path, configuration(0), command=start) as agent:
        agent.wait_until_healthy()
        agent.until(lambda: agent.log.count("listening on") == 2, "both sources to listen", 60)
        assert agent.stop() == 0
    lines = [json.loads(line) for line in agent.log.splitlines()]
    assert len(lines) < 10
    assert {line["level"] for line in lines} == {"INFO"}
    assert {"a1.sources.s1", "a1.sources.s2"} <= {line["component"] for line in lines}
    assert "partitions" not in agent.log, "a memory channel has none that anybody knows"

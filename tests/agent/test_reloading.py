"""Reloads after a changed file, and files that are half written."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import ssl
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.cli.monitoring_client import CertificateRefused, MonitoringClient
from flafka.agent.cli.reloader import Reloader
from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.changes import changes_between, take_snapshot
from flafka.agent.services.running import until
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components, FlafkaError
from flafka.plugins.net.tls import TlsServerConfig
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate

reload_module = importlib.import_module("flafka.agent.cli.reload")  # the package has the command by that name

CONF = """
a1.sources = s
a1.channels = c
a1.sources.s.type = seq
a1.sources.s.channels = c
a1.channels.c.type = memory
a1.channels.c.capacity = 500
"""


class RecordingAgent:
    """Agent and page that record each reload."""

    def __init__(self, file: Path) -> None:
        spec, diagnostics = load(file, components=Components())
        assert spec is not None, diagnostics
        self.spec, self.view = spec, self
        self.capacities: list[int] = []
        self.reloads: list[tuple[bool, str]] = []

    def reload(self, spec: Any) -> str:
        self.spec = spec
        self.capacities.append(spec.channel("c").config.capacity)
        return "channels c"

    def record_reload(self, *, ok: bool, message: str) -> None:
        self.reloads.append((ok, message))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "agent.conf"
    made.write_text(CONF)
    return made


def reloader_of(*words: str, monkeypatch: pytest.MonkeyPatch) -> Reloader:
    """Return the reloader of `agent start`."""
    reloaders: list[Reloader] = []

    def run(spec: Any, *, drain: bool, reloader: Reloader) -> int:
        reloaders.append(reloader)
        return 0

    monkeypatch.setattr("flafka.agent.cli.start.run", run)
    result = CliRunner().invoke(main, ["start", "-n", "a1", *words])
    assert result.exit_code == 0, result.output
    return reloaders[0]


@pytest.mark.parametrize(
    ("words", "looks"),
    [(["-f"], True), (["--no-reload-conf", "-f"], False), (["-c"], False), (["--reload-conf", "-c"], True)],
)
def test_a_changed_file_is_reloaded_in_flumes_spelling_and_on_request(
    words: list[str], looks: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("flafka.agent.cli.reloader.time", SimpleNamespace(monotonic=lambda: now[0]))
    reloader, agent = reloader_of(*words, str(file), monkeypatch=monkeypatch), RecordingAgent(file)
    running_agent: Any = agent

    def poll() -> None:
        """Poll after half a minute, and return the result."""
        now[0] += 30
        reloader.poll(running_agent, requested=False)
        if reloader._thread is not None:
            reloader._thread.join(60)

    poll()
    assert agent.reloads == []
    file.write_text(CONF.replace("500", "700"))
    now[0] -= 29
    poll()
    assert agent.reloads == [], "it looks each half minute"
    now[0] += 29
    poll()
    assert agent.capacities == ([700] if looks else [])
    poll()
    assert len(agent.reloads) == looks, "what has not changed since is not read again"
    file.write_text(CONF.replace("500", "7x"))  # half written, or wrong
    poll()
    file.unlink()  # an editor is about to replace it
    poll()
    file.write_text(CONF.replace("500", "9000"))
    poll()
    assert agent.capacities == ([700, 9000] if looks else [])
    assert [ok for ok, _ in agent.reloads] == ([True, False, False, True] if looks else [])
    assert all(
        "nothing was changed" in message or "no such file" in message.lower()
        for ok, message in agent.reloads
        if not ok
    )


def test_a_requested_reload_reads_unchanged_files_too(file: Path) -> None:
    from flafka.agent.cli.configuration import ChosenConfiguration

    reloader, agent = Reloader(ChosenConfiguration(file, None, "normal", {}), watch_files=False), RecordingAgent(file)
    running_agent: Any = agent
    reloader.poll(running_agent, requested=True)
    until(lambda: agent.reloads, "the reload", 60)
    assert agent.reloads == [(True, "channels c")]


# --- the certificate of the monitoring server

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
TLS = """
a1.monitoring.port = 0
a1.monitoring.ssl = true
"""


def load_spec(file: Path) -> AgentSpec:
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    return spec


@needs_openssl
def test_a_reload_with_an_unusable_certificate_changes_nothing(tmp_path: Path, file: Path) -> None:
    keystore = certificate(tmp_path) / "server.p12"
    original = keystore.read_bytes()
    text = (
        f"{CONF}{TLS}a1.sources.s.totalEvents = 10\na1.monitoring.keystore = {keystore}\n"
        "a1.monitoring.keystore-password = "
    )
    file.write_text(f"{text}changeit")
    agent = Agent(load_spec(file))
    agent.start()
    context = ssl.create_default_context(cafile=tmp_path / "server.crt")

    def serves() -> bool:
        url = f"https://localhost:{agent.server.port}/metrics/prometheus"
        with urllib.request.urlopen(url, timeout=60, context=context) as answer:
            return b"flafka_certificate_seconds_left" in answer.read()

    try:
        until(serves, "the server", 60)
        for content, password in [(original[:100], "changeit"), (original, "wrong")]:
            keystore.write_bytes(content)
            file.write_text(f"{text}{password}\na1.channels.c.capacity = 700")
            server, channel = agent.server, agent.channels["c"]
            with pytest.raises(FlafkaError, match=r"monitoring.keystore: cannot use .*: nothing was changed"):
                agent.reload(load_spec(file))
            assert (agent.server, agent.channels["c"]) == (server, channel)
            assert serves()
        keystore.write_bytes(original)
        file.write_text(f"{text}changeit")
        assert agent.reload(load_spec(file)) == "the monitoring server"
        assert serves()
    finally:
        agent.stop()


def test_a_replaced_keystore_of_the_environment_is_a_change(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore = tmp_path / "server.p12"
    monkeypatch.setenv("FLUME_SSL_KEYSTORE_PATH", str(keystore))
    keystore.write_text("old")
    file.write_text(CONF + TLS)
    old = take_snapshot(load_spec(file))
    assert not changes_between(old, take_snapshot(load_spec(file)))
    keystore.write_text("new one")
    assert str(changes_between(old, take_snapshot(load_spec(file)))) == "the monitoring server"
    file.write_text(CONF.replace("seq", "syslogtcp") + "a1.sources.s.port = 1\na1.sources.s.ssl = true\n")
    old = take_snapshot(load_spec(file))
    keystore.write_text("a newer one")
    assert str(changes_between(old, take_snapshot(load_spec(file)))) == "sources s"


def test_a_relative_keystore_begins_at_the_working_directory(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    (working / "server.p12").touch()
    file.write_text(f"{CONF}{TLS}a1.monitoring.keystore = server.p12")
    assert load_spec(file).options.monitoring_keystore == str(working / "server.p12")


class Signalled:
    """`agent reload` of a process that does not exist, with the number of its signals."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.signals = file, 0
        monkeypatch.setattr(reload_module, "find_running_agents", lambda *_: [os.getpid()])
        monkeypatch.setattr(reload_module, "_has_handler", lambda *_: True)
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(reload_module, "UNMONITORED_RELOAD_SECONDS", 0.3)

    def _kill(self, *_: object) -> None:
        self.signals += 1

    def run(self, *words: str) -> Any:
        return CliRunner().invoke(main, ["reload", "-c", str(self.file), *words])


def test_an_unusable_keystore_hides_the_result_but_keeps_no_reload_back(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore = tmp_path / "server.p12"
    monkeypatch.setenv("FLUME_SSL_KEYSTORE_PATH", str(keystore))
    file.write_text(CONF + TLS.replace("= 0", f"= {free_port()}"))
    signalled = Signalled(file, monkeypatch)
    for content in (None, b"damaged"):
        if content is not None:
            keystore.write_bytes(content)
        signalled.signals = 0
        result = signalled.run()
        assert (result.exit_code, signalled.signals) == (1, 1)
        assert "the result of the reload is unknown: monitoring.keystore: cannot use the keystore" in result.output
        assert json.loads(signalled.run("--json").stdout)["ok"] is None


@needs_openssl
def test_the_result_is_awaited_although_the_agent_has_another_certificate_at_first(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore = certificate(tmp_path) / "server.pem"
    file.write_text(f"{CONF}{TLS.replace('= 0', '= 1')}a1.monitoring.keystore = {keystore}")
    read, requests = [], []
    own_certificate = TlsServerConfig.certificate
    monkeypatch.setattr(TlsServerConfig, "certificate", lambda self: read.append(0) or own_certificate(self))

    def get(client: MonitoringClient, path: str) -> dict[str, Any]:
        requests.append(path)
        if len(requests) < 8:  # longer than without any answer
            raise CertificateRefused("another certificate")
        return {"pid": os.getpid(), "reloads": {"at": time.time(), "ok": True, "told": "the monitoring server"}}

    monkeypatch.setattr(MonitoringClient, "get", get)
    result = Signalled(file, monkeypatch).run()
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "changed: the monitoring server")
    assert len(read) == 1, "the keystore has not changed"

"""Dashboard over TLS: a real agent with a real browser, curl and `agent top`, and a certificate that is replaced."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.services.running import RunningAgent
from flafka.agent.web import fetch_page
from tests.agent.browsing import await_updates
from tests.fixtures.browser import TIMEOUT_MS
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
TOKEN = "a-token"
CONFIGURATION = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.monitoring.host = 0.0.0.0
a1.monitoring.port = {port}
a1.monitoring.token = {token}
a1.monitoring.ssl = true
a1.monitoring.keystore = {keystore}
a1.monitoring.keystore-password = changeit
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    directory = tmp_path_factory.mktemp("tls")
    certificate(directory)
    configuration = CONFIGURATION.format(port=free_port(), token=TOKEN, keystore=directory / "server.p12")
    with RunningAgent(directory, configuration) as agent:
        agent.until(lambda: "a1.sources.s1: listening" in agent.log and "metrics on https" in agent.log, "the agent")
        yield agent
        assert agent.stop() == 0, agent.log


def port(agent: RunningAgent) -> int:
    return int(agent.file.read_text().partition("monitoring.port = ")[2].split()[0])


def top(*words: str) -> tuple[int, str]:
    """Return the exit code of `agent top`, and the first line of its output or error."""
    result = CliRunner().invoke(main, ["top", *words])
    return result.exit_code, result.output.splitlines()[0]


def test_commands_trust_the_certificate_in_the_keystore_or_its_authority(agent: RunningAgent) -> None:
    authority = str(agent.file.with_name("server.crt"))
    url = ("--url", f"https://localhost:{port(agent)}", "--token", TOKEN)
    code, line = top("-c", str(agent.file))
    assert (code, line.partition(",")[0]) == (0, "a1 is ok")
    code, line = top(*url, "--cacert", authority)
    assert (code, line.partition(",")[0]) == (0, "a1 is ok")
    code, line = top(*url)
    assert code == 1
    assert "self-signed certificate; name its authority with --cacert FILE" in line


def test_a_client_that_stalls_in_its_handshake_does_not_delay_others(agent: RunningAgent) -> None:
    with socket.create_connection(("127.0.0.1", port(agent)), timeout=60) as stalled:
        stalled.sendall(b"\x16\x03\x01")
        context = ssl.create_default_context(cafile=agent.file.with_name("server.crt"))
        client = http.client.HTTPSConnection("localhost", port(agent), timeout=60, context=context)
        client.request("GET", "/metrics/prometheus")
        metrics = client.getresponse().read().decode()
        client.close()
    assert 'flafka_certificate_seconds_left{agent="a1",kind="agent",name="a1"} 2.5' in metrics
    assert fetch_page("127.0.0.1", port(agent), "/healthz") == (0, b""), "without TLS there is no answer"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_the_state_as_documented(agent: RunningAgent, tmp_path: Path) -> None:
    command = ["curl", "-sS", "--cacert", str(agent.file.with_name("server.crt"))]
    address = f"https://localhost:{port(agent)}"
    header = tmp_path / "header"
    header.write_text(f"Authorization: Bearer {TOKEN}\n")
    answer = subprocess.run([*command, "-H", f"@{header}", f"{address}/api/state"], capture_output=True, check=True)
    assert json.loads(answer.stdout)["agent"] == "a1"
    answer = subprocess.run([*command, f"{address}/api/state"], capture_output=True, check=True)
    assert answer.stdout.startswith(b"the token is missing or wrong")
    assert subprocess.run([*command, "-f", f"{address}/healthz"], capture_output=True, check=False).returncode == 0


def test_a_browser_keeps_the_token_in_a_cookie_that_is_sent_over_tls_only(
    agent: RunningAgent, browser: Browser
) -> None:
    with browser.new_context(ignore_https_errors=True) as context:  # the certificate is self-signed
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"https://localhost:{port(agent)}/?token={TOKEN}")
        await_updates(page)
        assert page.url == f"https://localhost:{port(agent)}/"
        assert page.locator("#state").inner_text() == "ok"
        (cookie,) = context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["value"]) == (True, True, TOKEN)


def reload(agent: RunningAgent) -> None:
    """Have the agent use the certificate that is in its keystore now."""
    result = CliRunner().invoke(main, ["reload", "-c", str(agent.file)])
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "changed: the monitoring server"), result.output


def test_a_replaced_certificate_is_used_after_a_reload(agent: RunningAgent, tmp_path: Path) -> None:
    keystore = agent.file.with_name("server.p12")
    original = keystore.read_bytes()
    keystore.write_bytes((certificate(tmp_path, whose="another", days=60) / "server.p12").read_bytes())
    code, line = top("-c", str(agent.file))
    assert code == 1
    assert "if the agent's keystore was replaced, run agent reload" in line
    reload(agent)
    code, line = top("-c", str(agent.file))
    assert (code, line.partition(",")[0]) == (0, "a1 is ok")
    keystore.write_bytes(b"damaged")
    agent.process.send_signal(signal.SIGHUP)
    agent.until(lambda: "monitoring.keystore: cannot use the keystore" in agent.log, "the refused reload")
    assert "nothing was changed" in agent.log
    another = ssl.create_default_context(cafile=tmp_path / "server.crt")
    client = http.client.HTTPSConnection("localhost", port(agent), timeout=60, context=another)
    client.request("GET", "/healthz")
    assert client.getresponse().status == 200, "the agent serves with the certificate that it has"
    client.close()
    result = CliRunner().invoke(main, ["check", "--connect", "-c", str(agent.file)])
    assert result.exit_code == 2
    assert "a1: monitoring.keystore: cannot use the keystore" in result.output
    keystore.write_bytes(original)
    reload(agent)
    code, line = top("-c", str(agent.file))
    assert (code, line.partition(",")[0]) == (0, "a1 is ok")

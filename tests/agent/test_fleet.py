"""`agent dashboard`: addresses, tokens, certificates, and the state of a fleet as JSON and as a page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.cli.fleet import Fleet, FleetAgent
from flafka.agent.cli.monitoring_client import MonitoringClient, client_of_url
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.web import fetch_page
from flafka.plugins.kafka.topic import KafkaTopic
from tests.agent.browsing import await_updates, configured, contrast
from tests.agent.scenes import Scene, at_work
from tests.agent.test_top import Served
from tests.fixtures.browser import TIMEOUT_MS
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["dashboard", "--agents", *words])


def fleet_in_json(*words: str) -> list[dict[str, Any]]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    agents: list[dict[str, Any]] = json.loads(result.output)["agents"]
    return agents


@contextlib.contextmanager
def serving(*several: Served) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for served in several:
            served.server.start()
            stack.callback(served.server.stop)
        yield


def served(directory: Path, name: str, token: str = "", *lines: str) -> Served:
    (directory / name).mkdir()
    return Served(directory / name, token, *lines)


def test_agents_with_tokens_of_their_own_and_one_that_is_away(tmp_path: Path) -> None:
    first, second = served(tmp_path, "first", "word"), served(tmp_path, "second", "other")
    first.metrics["SINK.k1"].set("Lag", 9)
    first.metrics["SINK.k1"].set("LagSeconds", 4.2)
    first.metrics["SINK.k2"].set("Lag", 7)
    first.metrics["SINK.k2"].set_error("the disk is full")
    first.metrics["SINK.k1"].add("EventRejectedCount", 3)
    (tmp_path / "token").write_text("other\n")
    away = f"127.0.0.1:{free_port()}"
    file = tmp_path / "agents.txt"
    file.write_text(f"# the fleet\n{first.url}\n\n{second.url} {tmp_path}/token  # another\n{away}\n{away}\n")
    with serving(first, second):
        one, two, three = fleet_in_json(str(file), "--token", "word")
        refused = fleet_in_json(second.url, "--token", "word")[0]
    assert (one["agent"], one["address"], one["state"], one["answered"] > 0) == ("a1", first.url, "failing", True)
    assert (one["reason"], one["problems"]) == ('Sink "k2" (logger) does not deliver.', 1)
    assert (one["lag"], one["lag_unit"], one["behind"], one["dead_letters"]) == (9, "events", 4.2, 3)
    assert two["state"] == "ok"
    assert (three["state"], three["answered"]) == ("unreachable", None)
    assert three["reason"] == f"no agent answers at http://{away} (Connection refused): is it started?"
    assert refused["state"] == "unreachable"
    assert "the token is missing or wrong" in refused["reason"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_agents_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path)
    lines = ("a1.monitoring.ssl = true", f"a1.monitoring.keystore = {tmp_path}/server.pem")
    encrypted = served(tmp_path, "encrypted", "word", *lines)
    url = f"https://localhost:{encrypted.server.port}"
    with serving(encrypted):
        (agent,) = fleet_in_json(url, "--token", "word", "--cacert", str(tmp_path / "server.crt"))
        (refused,) = fleet_in_json(url, "--token", "word")
        monkeypatch.setattr(KafkaTopic, "member_hosts", lambda *_: ["127.0.0.1"])
        options = "\n".join((*lines, f"a1.monitoring.port = {encrypted.server.port}", "a1.monitoring.token = word"))
        result = of_configuration(tmp_path, f"{KAFKA.format(1)}{options}\n")
    (found,) = json.loads(result.output)["agents"]
    assert (found["state"], found["address"]) == ("ok", url.replace("localhost", "127.0.0.1"))
    assert (agent["state"], agent["address"]) == ("ok", url)
    assert refused["reason"].endswith("self-signed certificate; name its authority with --cacert FILE")


def test_an_agent_whose_configuration_or_version_is_not_that_of_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr("tests.agent.test_top.free_port", lambda: port)  # so that the same port is configured
    agents = [served(tmp_path, f"{n}", "", *(["a1.channels.c1.capacity = 50"] if n == 1 else [])) for n in range(3)]
    for agent in agents:
        agent.server.port = 0
    state = agents[2].view.state
    agents[2].view.state = lambda: {**state(), "version": "9.9"}
    with serving(*agents):
        one, two, three = fleet_in_json(",".join(f"127.0.0.1:{agent.server.port}" for agent in agents))
    assert [agent["different"] for agent in (one, three)] == [[], []]
    assert two["different"] == ["a1.channels.c1.capacity = 50, usually not set"]
    assert [agent["version_differs"] for agent in (one, two, three)] == [False, False, True]


def as_in_0_3_0(agent: Served, *, lines: bool = True) -> None:
    """Serve the keys that release 0.3.0 served; without `lines`, no configuration either."""
    state, graph, registry = agent.view.state, agent.view.graph, agent.view.registry

    def old_state() -> dict[str, Any]:
        old = {key: value for key, value in state().items() if key not in ("problems", "growth", "process")}
        return {**old, "state": registry.state(), "failing": registry.failing(), "degraded": registry.degraded()}

    def old_graph() -> dict[str, Any]:
        new = {"arguments"} if lines else {"arguments", "lines"}
        old = {key: value for key, value in graph().items() if key not in new}
        nodes = [{key: value for key, value in node.items() if key != "is_durable"} for node in old["nodes"]]
        return {**old, "nodes": nodes}

    agent.view.state, agent.view.graph = old_state, old_graph


def test_agents_of_release_0_3_0(tmp_path: Path) -> None:
    agents = [served(tmp_path, f"{n}") for n in range(3)]
    for number, agent in enumerate(agents[:2]):
        as_in_0_3_0(agent, lines=number == 0)
    agents[0].metrics["SINK.k2"].set_error("the disk is full")
    agents[0].metrics["SINK.k1"].degradation = lambda: "it is slow"
    with serving(*agents):
        one, two, three = fleet_in_json(",".join(agent.url for agent in agents))
        top = CliRunner().invoke(main, ["top", "--url", agents[0].url])
        values = CliRunner().invoke(main, ["top", "--url", agents[0].url, "--json"])
    assert (one["state"], one["reason"], one["problems"]) == ("failing", "SINK.k2: the disk is full", 2)
    assert (two["state"], two["reason"], two["problems"], two["differences"]) == ("ok", "", 0, 0)
    assert three["state"] == "ok"
    assert top.output.splitlines()[-4:] == [
        "SINK.k2: failing",
        "  SINK.k2: the disk is full",
        "SINK.k1: degraded",
        "  SINK.k1: it is slow",
    ]
    states = {component["name"]: component["state"] for component in json.loads(values.output)["components"]}
    assert (states["k1"], states["k2"], states["c1"]) == ("degraded", "failing", "ok")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("", "agents.txt: there is no address in it"),
        ("edge-1:port", "agents.txt:1: edge-1:port is no address such as http://127.0.0.1:14141"),
        ("edge-1\nedge-2 a b", "agents.txt:2: expected an address, and perhaps a file with the token"),
        ("edge-1 nowhere/token", "agents.txt:1: nowhere/token: No such file or directory"),
    ],
)
def test_mistakes_in_the_file_are_named(lines: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "agents.txt").write_text(lines)
    result = run(str(tmp_path / "agents.txt"), "--json")
    assert result.exit_code != 0
    assert error in result.output.replace("\n", "")


def test_mistakes_on_the_command_line_are_named(tmp_path: Path) -> None:
    assert "there is no such file" in run(f"{tmp_path}/agents.txt").output
    assert "--agents ftp://x is no address" in run("ftp://x").output
    assert "--cacert has no effect: no address begins with https://" in run("edge-1", "--cacert", "x").output


KAFKA = """\
a1.channels = c1
a1.sinks = k1 k2
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:{}
a1.channels.c1.kafka.topic = events
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.k2.type = null
a1.sinks.k2.channel = c1
a1.sinks.k2.group = other
"""


def of_configuration(directory: Path, text: str, *words: str) -> Any:
    (directory / "agent.conf").write_text(text)
    return CliRunner().invoke(main, ["dashboard", "-c", f"{directory}/agent.conf", "--json", *words])


def test_the_hosts_of_the_groups_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"flafka": ["127.0.0.1", "10.0.0.5"], "other": ["127.0.0.1", "0:0:0:0:0:0:0:1"]}
    monkeypatch.setattr(KafkaTopic, "member_hosts", lambda _, group: hosts[group])
    monkeypatch.setattr(FleetAgent, "poll", lambda self: clients.append(self.client))
    clients: list[MonitoringClient] = []
    configured = f"{KAFKA.format(1)}a1.monitoring.port = 5\na1.monitoring.token = word\n"
    for words, token in (((), "word"), (("--token", "other"), "other")):
        clients.clear()
        result = of_configuration(tmp_path, configured, *words)
        assert result.exit_code == 0, result.output
        assert sorted(map(str, clients)) == ["http://10.0.0.5:5", "http://127.0.0.1:5", "http://[::1]:5"]
        assert {client.token for client in clients} == {token}
    assert "a1.monitoring.host is 127.0.0.1, which no other host reaches: the agents on 10.0.0.5 " in result.output


def test_configurations_without_known_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way_out = "name the agents with --agents HOST:PORT,…"
    away = of_configuration(tmp_path, KAFKA.format(free_port())).output
    assert away.startswith(
        f"Error: without an answer of the brokers, {way_out}: channel c1: no Kafka broker answers "
    )
    assert "Connection refused" in away
    monkeypatch.setattr(KafkaTopic, "member_hosts", lambda *_: [])
    assert of_configuration(tmp_path, KAFKA.format(1)).output == (
        f"Error: no consumer is in the groups flafka, other: start the agents, or {way_out}. Agents with sources "
        "alone, and sinks on Spark, are in no group\n"
    )
    any_port = of_configuration(tmp_path, f"{KAFKA.format(1)}a1.monitoring.port = 0\n").output
    assert any_port == f"Error: a1.monitoring.port is 0, so the agents take any free ports: {way_out}\n"
    without = of_configuration(tmp_path, CONFIGURATION).output
    assert without == (
        f"Error: agent a1 has no sink of a channel kafka, so no consumer group has the hosts: {way_out}\n"
    )
    for words in ([], ["--agents", "edge-1", "-c", "agent.conf"]):
        assert "which agents? Name their addresses with" in CliRunner().invoke(main, ["dashboard", *words]).output


def test_the_link_to_an_agent_has_its_token() -> None:
    fleet = Fleet([client_of_url("edge-1", "a&b", None), client_of_url("https://[::1]:5", "", None)], 5.0)
    pages = [fleet.page_of(number) for number in range(3)]
    assert pages == ["http://edge-1:14141/?token=a%26b", "https://[::1]:5/", None]
    fleet.stop()


# --- in a browser


CONFIGURATION = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = seq
a1.sources.s1.totalEvents = 1000
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.channels.c1.capacity = 5000
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.monitoring.token = word
"""


def address(agent: RunningAgent) -> str:
    agent.wait_until_healthy()
    assert agent._address is not None
    return "{}:{}".format(*agent._address)


@contextlib.contextmanager
def dashboard(directory: Path, *words: str, interval: str = "0.5") -> Iterator[str]:
    """Run the command and yield the address of its page; it has to end well by Ctrl-C."""
    command = [sys.executable, "-m", "flafka", "dashboard", "--port", "0", "--interval", interval, "--agents", *words]
    output = directory / "dashboard.log"
    with output.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or "Ctrl-C" in output.read_text(), "the page")
        match = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", output.read_text())
        assert match is not None, output.read_text()
        yield match[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, output.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def opened(browser: Browser, url: str) -> Page:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(url)
    await_updates(page)
    return page


def check_access(url: str) -> None:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 0

    def status(path: str, token: str = "") -> int:
        return fetch_page(host, port, path, {"authorization": f"Bearer {token}"}, seconds=60)[0]

    for path in ("/", "/api/fleet", "/api/agents/0", "/?token=other"):
        assert status(path) == 403, path
    token = parts.query.removeprefix("token=")
    assert [status(path, token) for path in ("/", "/api/agents/0", "/api/agents/3")] == [200, 307, 404]
    assert status("/page/index.html") == 404


def row(page: Page, number: int) -> str:
    return " ".join(page.locator(f"tr[data-number='{number}']").inner_text().split())


def test_real_agents_on_one_page(browser: Browser, tmp_path: Path) -> None:
    failing = CONFIGURATION.replace(
        "type = null", f"type = http\na1.sinks.k1.endpoint = http://127.0.0.1:{free_port()}/"
    )
    with (
        RunningAgent(tmp_path / "0", CONFIGURATION) as well,
        RunningAgent(tmp_path / "1", CONFIGURATION) as ending,
        RunningAgent(tmp_path / "2", failing) as ill,
    ):
        addresses = [address(well), address(ending)]
        ill.until(lambda: "SINK.k1" in ill.failing(), "the sink to fail")
        assert ill._address is not None
        addresses.append("{}:{}".format(*ill._address))
        with dashboard(tmp_path, ",".join(addresses), "--token", "word") as url:
            check_access(url)
            page = opened(browser, url.replace("127.0.0.1", "localhost"))
            until(lambda: page.locator("#states").inner_text().split() == ["1", "failing", "2", "ok"], "the states")
            assert page.title() == "1 failing, 2 ok: 3 agents"
            assert page.locator("tbody a").all_inner_texts() == ["a1"] * 3
            assert page.locator("tbody tr").first.get_attribute("data-number") == "2", "what fails comes first"
            assert 'Sink "k1" (http) does not deliver.' in row(page, 2)
            assert "2 lines differ" in row(page, 2)
            page.locator("summary").click()
            assert "a1.sinks.k1.type = http, usually null" in row(page, 2)
            assert "as usual" in row(page, 0)
            await_updates(page, 2)
            assert page.locator("details[open]").count() == 1, "an update does not close it"

            page.locator("tr[data-number='0'] a").click()
            page.locator("#name", has_text="a1").wait_for()
            assert page.url == f"http://{addresses[0]}/", "from another site, with the agent's token in a cookie"
            page.go_back()
            await_updates(page)

            ending.process.kill()
            until(lambda: "unreachable" in row(page, 1), "the agent to be shown as gone")
            assert re.search(r"unreachable since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", row(page, 1))
            assert f"no agent answers at http://{addresses[1]}" in row(page, 1)
            for width, scheme in ((1400, "light"), (400, "dark")):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
                for text in (".why", ".soft", ".chip.ok", ".chip.failing", ".chip.unreachable", "summary", "td a"):
                    assert contrast(page, text) >= 4.5, text
        page.locator("#stale").wait_for(state="visible")
        assert "agent dashboard does not answer" in page.locator("#stale").inner_text()
        page.close()


class FakeAgents:
    """Small HTTP servers that answer like one busy agent, or accept connections and never answer.

    A thread serves all of them.
    """

    def __init__(self, answers: dict[str, bytes], answering: int, silent: int) -> None:
        self._answers, self._answering, self._number = answers, answering, answering + silent
        self.addresses: list[str] = []
        self.requests: list[int] = [0] * self._number
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> FakeAgents:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        servers = [self._loop.run_until_complete(self._serve(number)) for number in range(self._number)]
        self._ready.set()
        self._loop.run_forever()
        for server in servers:
            server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self, number: int) -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.requests[number] += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                request = await reader.readuntil(b"\r\n\r\n")
                if number >= self._answering:
                    await reader.read()  # until the client gives up
                else:
                    body = self._answers[request.split()[1].decode()].replace(b"HOST", b"edge-%03d" % number)
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                    await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        self.addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return server


def test_two_hundred_agents_of_which_some_never_answer(browser: Browser, tmp_path: Path) -> None:
    scene = Scene(configured(ROOT / "conf/flafka.conf"))
    at_work(scene)
    state = {**scene.view.state(), "host": "HOST"}
    answers = {"/api/state": json.dumps(state).encode(), "/api/graph": json.dumps(scene.view.graph()).encode()}
    with FakeAgents(answers, 180, 20) as agents:
        file = tmp_path / "agents.txt"
        file.write_text("\n".join(agents.addresses))
        with dashboard(tmp_path, str(file), interval="1") as url:  # twice as many polls take half a core
            page = opened(browser, url)
            until(
                lambda: page.locator("#states").inner_text().split() == ["180", "failing", "20", "unreachable"], "all"
            )
            before = [*agents.requests]
            until(lambda: min(n - m for n, m in zip(agents.requests[:180], before, strict=False)) >= 2, "polls")
            assert page.locator("tbody tr").count() == 200
            page.evaluate(
                """() => {
                  window.changes = 0;
                  const watch = new MutationObserver((all) => { window.changes += all.length; });
                  watch.observe(document.querySelector("tbody"), {childList: true, subtree: true});
                }"""
            )
            await_updates(page, 2)
            assert page.evaluate("window.changes") == 0, "rows without a change are not drawn again"
            page.locator("#filter").fill("edge-042")
            assert page.locator("tbody tr:visible").count() == 1
            page.locator("#filter").fill("unreachable")
            assert page.locator("tbody tr:visible").count() == 20
            page.locator("#filter").fill("")
            page.locator("th", has_text="Agent").locator("button").click()
            assert page.locator("th[aria-sort]").inner_text().startswith("Agent")
            page.close()

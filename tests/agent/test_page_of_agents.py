"""Page of real agents in a real Chromium: figures, rates, samples and failures while events flow."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins import Batch, Event
from tests.agent.browsing import await_updates, configured, shown
from tests.fixtures.browser import TIMEOUT_MS
from tests.fixtures.ports import free_port
from tests.system.running import connected

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_figures_agree_with_the_metrics_while_events_flow(browser: Browser, tmp_path: Path) -> None:
    text = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.sources.s1.ack-every-event = false
a1.channels.c1.type = memory
a1.channels.c1.capacity = 10000
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
    with RunningAgent(tmp_path, text) as agent, connected(agent.port("s1")) as sender:
        agent.until(lambda: agent.get("/")[0] == 200, "the page")
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        assert agent._address is not None
        page.goto("http://{}:{}/".format(*agent._address))
        await_updates(page)
        flowed = False
        for number in range(1, 6):
            sender.sendall(b"event\n" * 1000)
            agent.until(lambda n=number: agent.count("SINK.k1", "EventDrainSuccessCount") == 1000 * n, "the events")
            await_updates(page, 2)  # a request may have been in flight
            truth = agent.metrics()
            for node, component, counter in (
                ("a1.sources.s1", "SOURCE.s1", "EventAcceptedCount"),
                ("a1.sinks.k1", "SINK.k1", "EventDrainSuccessCount"),
            ):
                assert f"{int(truth[component][counter]):,} events" in shown(page, node)
            texts = page.locator("#edges text").evaluate_all("all => all.map((one) => one.textContent)")
            rates = [float(text.removesuffix("/s").replace(",", "")) for text in texts]
            flowed |= len(rates) == 2 and min(rates) > 0 and page.locator(".wire.flowing").count() == 2
        assert flowed
        page.locator("[data-id='a1.channels.c1']").click()
        cells = page.locator("#detail table").first.locator("td").all_inner_texts()
        rows = dict(zip(cells[::2], cells[1::2], strict=True))
        truth = agent.metrics()["CHANNEL.c1"]
        assert {name: rows[name] for name in truth} == truth
        page.close()


TWO_WAYS = """
a1.sources = s1
a1.channels = c1 c2
a1.sinks = k1 k2
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1 c2
a1.sources.s1.selector.type = multiplexing
a1.sources.s1.selector.header = kind
a1.sources.s1.selector.mapping.rare = c2
a1.sources.s1.selector.default = c1
a1.channels.c1.type = memory
a1.channels.c2.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.k2.type = null
a1.sinks.k2.channel = c2
a1.sinks.k2.interceptors = m
a1.sinks.k2.interceptors.m.type = mask
a1.sinks.k2.interceptors.m.patterns = card
a1.monitoring.port = 0
"""


@pytest.fixture
def two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "agent.conf"
    file.write_text(TWO_WAYS)
    agent = Agent(configured(file))
    agent.start()
    until(lambda: agent.sources[0].was_open.is_set() and agent.server._server, "the agent")
    yield agent
    agent.stop()


def wire(page: Page, words: str) -> float:
    """Return the rate on the line whose label has these words; 0 without a line."""
    texts = "\n".join(page.locator("#edges text").all_text_contents())
    rate = re.search(rf"^{words}([\d.,]+)/s$", texts, re.MULTILINE)
    return float(rate[1].replace(",", "")) if rate else 0.0


def test_each_path_has_its_own_rate(browser: Browser, two_ways: Agent) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(f"http://127.0.0.1:{two_ways.server.port}/")
    await_updates(page)
    rare, other = Event(b"x", {"kind": "rare"}), Event(b"x")

    def divided() -> bool:
        two_ways.sources[0].deliver(Batch.of([rare, *[other] * 9]))
        rare_rate = wire(page, "kind = rare")
        return rare_rate > 1 and 8 < wire(page, "default") / rare_rate < 10

    until(divided, "each way to have its own rate")
    page.close()


def test_events_are_shown_as_they_pass_after_the_last_mask(browser: Browser, two_ways: Agent) -> None:
    card = "4111 1111 1111 1111"
    pages = [browser.new_page(viewport={"width": 1400, "height": 900}) for _ in range(2)]
    taps = {"k1": two_ways.sinks[0].members[0].delivery.taps, "k2": two_ways.sinks[1].members[0].delivery.taps}

    def ask(page: Page, node: str) -> None:
        page.locator(f"[data-id='{node}']").click()
        page.locator("#sample-button").click()
        await_updates(page)

    for page in pages:
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"http://127.0.0.1:{two_ways.server.port}/")
        await_updates(page)
        ask(page, "a1.sinks.k2")
    assert len(taps["k2"].subscribers) == 1
    deliver = two_ways.sources[0].deliver
    until(lambda: deliver(Batch.of([Event(f"<b>{card}</b>".encode(), {"kind": "rare"})])), "an event")
    for page in pages:
        page.locator("#sample-events li").first.wait_for()
        text = page.locator("#sample-events").inner_text()
        assert ("<b>***</b>" in text, card in text, "kind = rare" in text) == (True, False, True)
        assert page.locator("#sample-events b").count() == 0
    page.locator("#sample-place").select_option("a1.sinks.k2.interceptors.m")
    page.locator("#sample-button").click()
    await_updates(page)
    assert deliver(Batch.of([Event(card.encode(), {"kind": "rare"})]))
    page.locator("#sample-events li").first.wait_for()
    assert "***" in page.locator("#sample-events").inner_text()
    assert page.locator("#sample-before li").count() == 0, "events before a mask are not shown"
    assert "Hidden" in page.locator("#sample-before-about").inner_text()
    page.keyboard.press("Escape")
    for node in ("sinks.k1", "channels.c1", "channels.c2", "sources.s1"):
        ask(page, f"a1.{node}")
        about = page.locator("#sample-about").inner_text()
        assert f"a1.sinks.k2.interceptors.m redacts the events of a1.{node}" in about
        assert page.locator("#sample-events li").count() == 0
        page.keyboard.press("Escape")
    for page in pages:
        page.close()
    until(lambda: two_ways.tick() or not taps["k2"].subscribers, "the tap to end with the last page")
    assert not taps["k1"].subscribers


TROUBLED = """
a1.sources = tcp udp spool
a1.channels = c1 full
a1.sinks = k1 away
a1.sources.tcp.type = netcat
a1.sources.tcp.bind = 127.0.0.1
a1.sources.tcp.port = 0
a1.sources.tcp.channels = c1
a1.sources.udp.type = syslogudp
a1.sources.udp.host = 127.0.0.1
a1.sources.udp.port = 0
a1.sources.udp.receiveBufferSize = 4096
a1.sources.udp.channels = c1
a1.sources.spool.type = spooldir
a1.sources.spool.spoolDir = {directory}
a1.sources.spool.batchSize = 10
a1.sources.spool.channels = full
a1.channels.c1.type = memory
a1.channels.c1.capacity = 10000
a1.channels.full.type = memory
a1.channels.full.capacity = 20
a1.channels.full.transactionCapacity = 10
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.away.type = avro
a1.sinks.away.hostname = 127.0.0.1
a1.sinks.away.port = {closed}
a1.sinks.away.channel = full
"""


def test_failures_of_a_real_agent_are_shown_with_their_causes(browser: Browser, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "a.log").write_bytes(b"123456789\n" * 1000)
    (spool / "b.log").write_bytes(b"123456789\n" * 10)
    text = TROUBLED.format(directory=spool, closed=free_port())
    with (
        RunningAgent(tmp_path, text) as agent,
        connected(agent.port("tcp")),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect(("127.0.0.1", agent.port("udp")))

        def dropped() -> int:
            for _ in range(500):
                sender.send(b"<13>" + bytes(1000))
            return agent.count("SOURCE.udp", "KernelDropCount")

        agent.until(dropped, "datagrams to be dropped")
        agent.until(lambda: agent.failing().keys() >= {"SINK.away"}, "the sink to fail")
        agent.until(lambda: agent.count("CHANNEL.full", "ChannelFillPercentage") >= 100, "the channel to be full")
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(TIMEOUT_MS)
        assert agent._address is not None
        page.goto("http://{}:{}/".format(*agent._address))
        await_updates(page)
        assert re.search(r"\b1 of [\d.,]+( k)? connections", shown(page, "a1.sources.tcp"))
        until(lambda: "dropped" in shown(page, "a1.sources.udp"), "the loss to be shown")
        assert "2 files" in shown(page, "a1.sources.spool")
        assert "% full" in shown(page, "a1.channels.full")

        def agree() -> bool:  # the source may still read a batch
            files = json.loads(agent.get("/api/files")[1])["files"]
            assert [Path(file["path"]).name for file in files] == ["a.log", "b.log"]
            assert 0 < files[0]["position"] < files[0]["size"] == 10_000
            rows = [row.split("\t")[1:4] for row in page.locator("#files tbody tr").all_inner_texts()]
            return rows == [
                [file["path"], f"{file['position']:,}", f"{file['size'] - file['position']:,}"] for file in files
            ]

        until(agree, "the page to show the positions")
        reason = agent.failing()["SINK.away"]
        assert 'Sink "away" (avro) does not deliver.' in page.locator("#problems li").first.inner_text()
        assert reason in page.locator("#problems li").first.inner_text()
        assert "a1.channels.full is 100 % full; sources wait." in page.locator("#problems li").first.inner_text()
        assert f"a1.sinks.away: {reason}" in page.locator("#said").inner_text()
        assert "until attempt" in shown(page, "a1.sinks.away")
        page.close()

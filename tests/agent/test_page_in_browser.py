"""The page in a real Chromium: what it shows is what the agent says, at every width, however much there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.config import load
from agent.runner.agent import Agent
from agent.services.running import RunningAgent, free_port, until
from agent.topology import AgentSpec
from plugins import Batch, Components, Event
from tests.agent.scenes import Scene, at_work, cluster, some_files
from tests.agent.test_graph import CONFIGURATION
from tests.system.running import connected

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
NAME = "<img src=x onerror=document.title=1>"
PATIENCE = 120_000
"""Milliseconds, on a busy machine."""


def chromium() -> str:
    """The browser of this host. A CI's machine, which is nobody's own, gets Debian's where it has none."""
    if (found := shutil.which("chromium")) is None and os.environ.get("CI") and os.geteuid() == 0:
        for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "chromium"]):
            done = subprocess.run(["apt-get", *command], capture_output=True, text=True, check=False, timeout=600)
            if done.returncode:
                pytest.skip(f"there is no chromium, and apt-get {command[0]} failed: {done.stderr[-300:]}")
        found = shutil.which("chromium")
    return found or pytest.skip("there is no chromium here")


@pytest.fixture(scope="module")  # the loop that drives it belongs to this thread as long as it is there
def browser(servers: None) -> Iterator[Browser]:
    driver = pytest.importorskip("playwright.sync_api")
    path = chromium()
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=QUIET.split(), timeout=PATIENCE)
        yield launched
        launched.close()


def configured(path: Path) -> AgentSpec:
    spec, found = load(path, None, components=Components(entry_points=True))
    assert spec is not None, found
    return spec


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    scene = Scene(configured(ROOT / "conf/flafka.conf"), some_files(tmp_path_factory.mktemp("files"), 140))
    at_work(scene)
    return scene


@pytest.fixture
def everything(busy: Scene) -> Iterator[Scene]:
    with busy.served():
        yield busy


def opened(browser: Browser, scene: Scene, width: int = 1400, **more: Any) -> Page:
    """The page, once it has shown a state; without an error so far."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **more)
    page.set_default_timeout(PATIENCE)
    page.goto(scene.url)
    turned(page)
    return page


def turned(page: Page, turns: int = 1) -> None:
    """Wait until it was brought up to date so often."""
    before = int(page.evaluate("document.body.dataset.turns || 0"))
    until(lambda: int(page.evaluate("document.body.dataset.turns || 0")) >= before + turns, "the page to be drawn")
    assert page.locator("#stale").is_hidden()


def shown(page: Page, node: str) -> str:
    return page.locator(f"[data-id='{node}']").inner_text()


def boxes(page: Page, selector: str) -> list[dict[str, float]]:
    """Of all these elements at one moment."""
    found: list[dict[str, float]] = page.locator(selector).evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    return found


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(page: Page, selector: str) -> float:
    """Of the text of the first such element against what is behind it, as WCAG 2 computes it."""
    colours = page.locator(selector).first.evaluate(
        """element => {
          let behind = element;
          while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
          return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
        }"""
    )
    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def test_everything_that_is_wrong_is_said_with_its_command(browser: Browser, everything: Scene) -> None:
    page = opened(browser, everything)
    assert page.locator("#state").inner_text() == "failing"
    assert page.locator("#problems code").all_inner_texts() == [
        "agent sandbox up",
        "agent dlq list -c conf/flafka.conf -n flafka --component flafka.sinks.hbase",
    ]
    assert "down: it takes no connection" in page.locator("#kafka").inner_text()
    letters = page.locator("#letters tbody tr").all_inner_texts()
    assert [row.split("\t")[:3] for row in letters] == [
        ["flafka.sinks.hbase", "events", "17"],
        ["flafka.sinks.solr", "events", "3"],
    ]
    assert [row.split("\t")[0] for row in page.locator("#spark tbody tr").all_inner_texts()] == [
        *("hdfs", "hbase", "solr", "levels")
    ]
    assert len(page.locator("#said li").all()) == 2
    assert "1,234 datagrams dropped" in shown(page, "flafka.sources.udp")
    solr = shown(page, "flafka.sinks.solr")
    assert all(
        text in solr for text in ("Spark", "failing", "7.0 h behind", "5.0 h until Kafka deletes", "attempt 42")
    )
    assert "local" in shown(page, "flafka.sinks.counts")
    assert "flafka.channels.events.kafka.topic = flafka-events" in (
        page.locator("#configuration pre").text_content() or ""
    )
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 900, 400])
def test_it_is_readable(browser: Browser, everything: Scene, width: int, scheme: str) -> None:
    page = opened(browser, everything, width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert page.locator("#edges").is_visible() == (width > 760)
    cards = boxes(page, ".card")
    assert all(card["width"] > 150 and card["x"] + card["width"] <= width for card in cards)
    labels = [label for label in boxes(page, "#edges text") if label["width"]]
    assert len(labels) >= (10 if width > 760 else 0)
    for n, one in enumerate(labels):
        for other in labels[:n]:
            aside = one["x"] >= other["x"] + other["width"] - 2 or other["x"] >= one["x"] + one["width"] - 2
            above = one["y"] >= other["y"] + other["height"] - 4 or other["y"] >= one["y"] + one["height"] - 4
            assert aside or above, (one, other)
    for text in (".type", ".figures", ".why", ".chip.spark", ".chip.failing", ".chip.degraded", "#about", "td", "th"):
        assert contrast(page, text) >= 4.5, text
    page.close()


def test_an_application_on_a_cluster_leads_to_its_page(browser: Browser, everything: Scene) -> None:
    page, there = opened(browser, everything), "#spark .application a"
    assert page.locator(there).count() == 0
    id, tracking = "application_1_0001", "http://rm:8088/proxy/application_1_0001/"
    everything.registry.application = lambda: {"application": id, "tracking": tracking}
    try:
        turned(page, 2)
        assert page.locator("#spark .application").inner_text() == f"Application {id}"
        assert page.locator(there).get_attribute("href") == tracking
        everything.registry.application = lambda: {"application": id, "tracking": "javascript:alert(1)"}
        turned(page, 2)
        assert page.locator("#spark .application").inner_text() == f"Application {id}"
        assert page.locator(there).count() == 0
    finally:
        everything.registry.application = dict
    page.close()


def test_details_by_the_keyboard(browser: Browser, everything: Scene) -> None:
    page = opened(browser, everything)
    page.locator("[data-id='flafka.sinks.solr']").focus()
    page.keyboard.press("Enter")
    assert page.locator("#detail-title").inner_text() == "solr (solr, on Spark, group flafka-solr)"
    text = page.locator("#detail-body").inner_text()
    assert "Connection refused" in text
    assert "conf/flafka.conf:" in text
    charts = page.locator("#detail .chart path").evaluate_all("all => all.map(one => one.getAttribute('d'))")
    assert len(charts) == 3
    assert all(line.count("M") == 2 for line in charts), "the time when the agent was down is a gap"
    turned(page)
    assert page.locator("#detail").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()
    assert page.evaluate("document.activeElement.dataset.id") == "flafka.sinks.solr"
    page.close()


def test_a_broker_and_an_agent_that_go_away(browser: Browser, tmp_path: Path) -> None:
    scene = Scene(configured(ROOT / "conf/flafka.conf"))
    scene.look("events", cluster("flafka-events"))
    with scene.served():
        page = opened(browser, scene)
        assert "down:" not in page.locator("#kafka").inner_text()
        scene.look("events", cluster("flafka-events", down=3))
        turned(page, 2)  # it may have been asking
        assert "down: it takes no connection" in page.locator("#kafka").inner_text()
    page.locator("#stale").wait_for(state="visible")
    assert "does not answer" in page.locator("#stale").inner_text()
    page.close()


def test_groups_are_framed_and_names_from_outside_are_text(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.replace("mapping.one", f"mapping.{NAME.replace('=', '').replace(' ', '')}"))
    scene = Scene(configured(file), some_files(tmp_path, 2))
    scene.metrics["SINK.k1"].error(NAME)
    scene.metrics["SOURCE.s1"].set("FollowedFileCount", 2)
    scene.say(30, NAME, NAME)
    scene.look("c1", cluster(NAME))
    (tmp_path / NAME).write_bytes(b"")
    scene.files.append(scene.files[0]._replace(path=str(tmp_path / NAME)))
    with scene.served():
        page = opened(browser, scene)
        page.locator("#files tbody tr").nth(2).wait_for()
        for place in ("#problems", "#said", "#kafka", "#files", "[data-id='a1.sinks.k1']"):
            assert NAME in page.locator(place).inner_text(), place
        page.locator("[data-id='a1.sinks.k1']").click()
        assert NAME in page.locator("#detail").inner_text()
        page.keyboard.press("Escape")
        assert (page.locator("img").count(), page.title()) == (0, "a1")
        group = page.locator(".group")
        assert group.locator("h3").inner_text() == "sink group g: failover"
        assert group.locator(".card .name").all_inner_texts() == ["k1", "k2"]
        assert page.evaluate("document.title") == "a1"
        page.close()


def test_ten_thousand_files_and_sixty_sinks(browser: Browser, tmp_path: Path) -> None:
    sinks = " ".join(f"k{n:02}" for n in range(60))
    lines = [f"a1.sinks.k{n:02}.type = null\na1.sinks.k{n:02}.channel = c1" for n in range(60)]
    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.sources = files\na1.channels = c1\n"
        f"a1.sinks = {sinks}\n"
        "a1.sources.files.type = taildir\na1.sources.files.filegroups = f\n"
        f"a1.sources.files.filegroups.f = {tmp_path}/logs/.*\n"
        f"a1.sources.files.positionFile = {tmp_path}/p.json\n"
        "a1.sources.files.channels = c1\na1.channels.c1.type = memory\n" + "\n".join(lines)
    )
    (tmp_path / "logs").mkdir()
    scene = Scene(configured(file), some_files(tmp_path / "logs", 10_000))
    scene.metrics["SOURCE.files"].set("FollowedFileCount", 10_000)
    with scene.served():
        page = opened(browser, scene)
        page.locator("#files tbody tr").first.wait_for()
        assert page.locator("#files tbody tr").count() == 100
        assert "100 of 10,000 files" in page.locator("#files-about").inner_text()
        assert page.evaluate("document.querySelectorAll('*').length") < 5000
        # What does not change is not drawn anew: not one card while nothing happens.
        page.evaluate(
            """() => {
              window.changes = 0;
              const watch = new MutationObserver((all) => { window.changes += all.length; });
              const all = {childList: true, subtree: true};
              for (const card of document.querySelectorAll(".card")) watch.observe(card, all);
            }"""
        )
        turned(page, 3)  # after the second sample rates are known
        page.evaluate("window.changes = 0")
        scene.metrics["SINK.k07"].add("EventDrainSuccessCount", 7)
        until(lambda: "7 events" in shown(page, "a1.sinks.k07"), "the figure")
        assert 1 <= page.evaluate("window.changes") < 20
        page.locator("#filter").fill("k07")
        assert page.locator(".card:visible").count() == 1
        page.locator("#file-filter").fill("application-09999")
        until(lambda: page.locator("#files tbody tr").count() == 1, "the file")
        page.close()


def test_figures_are_those_of_the_metrics_while_events_flow(browser: Browser, tmp_path: Path) -> None:
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
        page.set_default_timeout(PATIENCE)
        assert agent._address is not None
        page.goto("http://{}:{}/".format(*agent._address))
        turned(page)
        flowed = False
        for number in range(1, 6):
            sender.sendall(b"event\n" * 1000)
            agent.until(lambda n=number: agent.count("SINK.k1", "EventDrainSuccessCount") == 1000 * n, "the events")
            turned(page, 2)  # it may have been asking
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
    """The rate on the line whose label has these words; 0 as long as there is none."""
    texts = "\n".join(page.locator("#edges text").all_text_contents())
    found = re.search(rf"^{words}([\d.,]+)/s$", texts, re.MULTILINE)
    return float(found[1].replace(",", "")) if found else 0.0


def test_each_way_has_its_own_rate(browser: Browser, two_ways: Agent) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.goto(f"http://127.0.0.1:{two_ways.server.port}/")
    turned(page)
    rare, other = Event(b"x", {"kind": "rare"}), Event(b"x")

    def divided() -> bool:
        two_ways.sources[0].deliver(Batch.of([rare, *[other] * 9]))
        seldom = wire(page, "kind = rare")
        return seldom > 1 and 8 < wire(page, "otherwise") / seldom < 10

    until(divided, "each way to have its own rate")
    page.close()


def test_events_are_shown_as_they_pass_behind_the_last_mask(browser: Browser, two_ways: Agent) -> None:
    card = "4111 1111 1111 1111"
    pages = [browser.new_page(viewport={"width": 1400, "height": 900}) for _ in range(2)]
    taps = {"k1": two_ways.sinks[0].members[0].delivery.taps, "k2": two_ways.sinks[1].members[0].delivery.taps}

    def ask(page: Page, node: str) -> None:
        page.locator(f"[data-id='{node}']").click()
        page.locator("#sample-button").click()
        turned(page)

    for page in pages:
        page.set_default_timeout(PATIENCE)
        page.goto(f"http://127.0.0.1:{two_ways.server.port}/")
        turned(page)
        ask(page, "a1.sinks.k2")
    assert len(taps["k2"].listeners) == 1
    deliver = two_ways.sources[0].deliver
    until(lambda: deliver(Batch.of([Event(f"<b>{card}</b>".encode(), {"kind": "rare"})])), "an event")
    for page in pages:
        page.locator("#sample-events li").first.wait_for()
        text = page.locator("#sample-events").inner_text()
        assert ("<b>***</b>" in text, card in text, "kind = rare" in text) == (True, False, True)
        assert page.locator("#sample-events b").count() == 0
    page.keyboard.press("Escape")
    for node in ("sinks.k1", "channels.c1", "channels.c2", "sources.s1"):
        ask(page, f"a1.{node}")
        told = page.locator("#sample-about").inner_text()
        assert f"a1.sinks.k2.interceptors.m takes out what the events at a1.{node} have" in told
        assert page.locator("#sample-events li").count() == 0
        page.keyboard.press("Escape")
    for page in pages:
        page.close()
    until(lambda: two_ways.look() or not taps["k2"].listeners, "the tap to end with the last page")
    assert not taps["k1"].listeners


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


def test_troubles_of_a_real_agent_are_shown_with_their_causes(browser: Browser, tmp_path: Path) -> None:
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
        page.set_default_timeout(PATIENCE)
        assert agent._address is not None
        page.goto("http://{}:{}/".format(*agent._address))
        turned(page)
        assert re.search(r"\b1 of [\d.,]+( k)? connections", shown(page, "a1.sources.tcp"))
        until(lambda: "dropped" in shown(page, "a1.sources.udp"), "the loss to be shown")
        assert "2 files" in shown(page, "a1.sources.spool")
        assert "% full" in shown(page, "a1.channels.full")
        found = json.loads(agent.get("/api/files")[1])["files"]
        assert [Path(one["path"]).name for one in found] == ["a.log", "b.log"]
        assert 0 < found[0]["position"] < found[0]["size"] == 10_000
        rows = [row.split("\t")[:4] for row in page.locator("#files tbody tr").all_inner_texts()]
        left = [one["size"] - one["position"] for one in found]
        assert [row[1:] for row in rows] == [
            [one["path"], f"{one['position']:,}", f"{rest:,}"] for one, rest in zip(found, left, strict=True)
        ]
        reason = agent.failing()["SINK.away"]
        assert f"SINK.away: {reason}" in page.locator("#problems").inner_text()
        assert f"a1.sinks.away: {reason}" in page.locator("#said").inner_text()
        assert "until attempt" in shown(page, "a1.sinks.away")
        page.close()

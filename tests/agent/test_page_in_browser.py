"""Page in a real Chromium: it shows the agent's state, at every width and size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flafka.agent.services.running import until
from tests.agent.browsing import await_updates, configured, opened, shown
from tests.agent.essentials import MEASURE, check_access
from tests.agent.scenes import Scene, at_work, cluster, some_files
from tests.agent.test_graph import CONFIGURATION

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
NAME = "<img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    scene = Scene(configured(ROOT / "conf/flafka.conf"), some_files(tmp_path_factory.mktemp("files"), 140))
    at_work(scene)
    return scene


@pytest.fixture
def everything(busy: Scene) -> Iterator[Scene]:
    with busy.served():
        yield busy


def test_every_failure_is_shown_with_its_command(browser: Browser, everything: Scene) -> None:
    page = opened(browser, everything)
    assert page.locator("#state").inner_text() == "failing, 4 problems"
    test = f"agent check --connect -c {ROOT}/conf/flafka.conf -n flafka"
    assert page.locator("#problems code").all_inner_texts() == [
        "agent sandbox up",
        "agent dlq list -c conf/flafka.conf -n flafka --component flafka.sinks.hbase",
        *(test, test),
    ]
    assert page.locator("#problems .component").all_inner_texts() == [
        *("flafka.sinks.solr", "flafka.sinks.hbase", "flafka.sources.udp", "flafka.channels.events")
    ]
    assert "down: refuses connections" in page.locator("#kafka").inner_text()
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


def test_an_application_on_a_cluster_leads_to_its_page(browser: Browser, everything: Scene) -> None:
    page, there = opened(browser, everything), "#spark .application a"
    assert page.locator(there).count() == 0
    id, tracking = "application_1_0001", "http://rm:8088/proxy/application_1_0001/"
    everything.registry.application = lambda: {"application": id, "tracking": tracking}
    try:
        await_updates(page, 2)
        assert page.locator("#spark .application").inner_text() == f"Application {id}"
        assert page.locator(there).get_attribute("href") == tracking
        everything.registry.application = lambda: {"application": id, "tracking": "javascript:alert(1)"}
        await_updates(page, 2)
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
    for width in (375, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        check_access(page.evaluate(MEASURE))
    assert "solr" in page.locator("#detail-body").inner_text()
    assert "Connection refused" in page.locator("#detail-problems").inner_text()
    assert "conf/flafka.conf:" in page.locator("#detail-place").inner_text()
    assert "Connection refused" in page.locator("#detail-errors").inner_text()
    page.locator("#detail .chart path").nth(2).wait_for(state="attached")
    charts = page.locator("#detail .chart path").evaluate_all("all => all.map(one => one.getAttribute('d'))")
    assert len(charts) == 3
    assert all(line.count("M") == 2 for line in charts), "the time when the agent was down is a gap"
    chart = page.locator("#detail .chart").nth(1)
    assert chart.get_attribute("aria-label").startswith("Lag: not delivered yet: now lag ")
    chart.focus()
    page.keyboard.press("Home")
    pointed = page.locator("#detail .readout").nth(1).inner_text()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC: \d+ records", pointed)
    rows = page.locator("#detail .chart").nth(0).locator(".row").all_text_contents()
    assert rows[0] == "0 events/s"
    assert chart.get_attribute("aria-valuetext") == pointed, "which a screen reader says"
    page.locator("#detail-span").select_option("86400")
    until(lambda: page.locator("#detail .chart").count() == 3, "the charts of a day")
    await_updates(page)
    assert page.locator("#detail").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()
    assert page.evaluate("document.activeElement.dataset.id") == "flafka.sinks.solr"
    page.close()


FOCUSED = """() => {
  const element = document.activeElement;
  return [element.outerHTML.slice(0, 120), element === document.body ? "" : getComputedStyle(element).outlineStyle];
}"""
MOVING = """() => [...document.querySelectorAll("*")].filter((element) => {
  const style = getComputedStyle(element);
  return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
}).map((element) => element.outerHTML.slice(0, 120))"""


def test_the_keyboard_leads_everywhere_and_nothing_moves(browser: Browser, everything: Scene) -> None:
    page = opened(browser, everything, reduced_motion="reduce")
    assert page.evaluate(MOVING) == []
    reached = []
    while True:
        page.keyboard.press("Tab")
        element, outline = page.evaluate(FOCUSED)
        if not outline:
            break
        assert outline == "solid", f"the focus is not visible at {element}"
        reached.append(element)
    cards, copies = page.locator(".card").count(), page.locator(".copy:visible").count()
    assert [sum(f'class="{name}' in element for element in reached) for name in ("card", "copy")] == [cards, copies]
    page.locator(".copy").first.focus()
    page.keyboard.press("Enter")
    page.locator(".copy", has_text="Copied").wait_for()
    page.close()


def test_a_broker_and_an_agent_that_stop_are_shown(browser: Browser, tmp_path: Path) -> None:
    scene = Scene(configured(ROOT / "conf/flafka.conf"))
    scene.set_cluster("events", cluster("flafka-events"))
    with scene.served():
        page = opened(browser, scene)
        assert "down:" not in page.locator("#kafka").inner_text()
        scene.set_cluster("events", cluster("flafka-events", down=3))
        await_updates(page, 2)  # a request may have been in flight
        assert "down: refuses connections" in page.locator("#kafka").inner_text()
        page.context.set_offline(True)
        page.locator("#stale", has_text="this device is offline").wait_for(state="visible")
        page.context.set_offline(False)
        page.locator("#stale").wait_for(state="hidden")
        assert page.locator("#problems-title").inner_text() == "What is wrong"
    page.locator("#stale").wait_for(state="visible")
    assert "does not answer" in page.locator("#stale").inner_text()
    assert page.locator("#problems-title").inner_text().startswith("What was wrong at 20")
    page.close()


def test_groups_are_framed_and_names_from_outside_are_text(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.replace("mapping.one", f"mapping.{NAME.replace('=', '').replace(' ', '')}"))
    scene = Scene(configured(file), some_files(tmp_path, 2))
    scene.metrics["SINK.k1"].set_error(NAME)
    scene.metrics["SOURCE.s1"].set("FollowedFileCount", 2)
    scene.log(30, NAME, NAME)
    scene.set_cluster("c1", cluster(NAME))
    (tmp_path / NAME).write_bytes(b"")
    scene.files.append(scene.files[0]._replace(path=str(tmp_path / NAME)))
    with scene.served():
        page = opened(browser, scene)
        page.locator("#files tbody tr").nth(2).wait_for()
        for selector in ("#problems", "#said", "#kafka", "#files", "[data-id='a1.sinks.k1']"):
            assert NAME in page.locator(selector).inner_text(), selector
        page.locator("[data-id='a1.sinks.k1']").click()
        assert NAME in page.locator("#detail").inner_text()
        page.keyboard.press("Escape")
        assert (page.locator("img").count(), page.title()) == (0, "failing (1): a1")
        group = page.locator(".group")
        assert group.locator("h3").inner_text() == "sink group g: failover"
        assert group.locator(".card .name").all_inner_texts() == ["k1", "k2"]
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
        # Unchanged cards are not drawn again: not one while nothing happens.
        page.evaluate(
            """() => {
              window.changes = 0;
              const watch = new MutationObserver((all) => { window.changes += all.length; });
              const all = {childList: true, subtree: true};
              for (const card of document.querySelectorAll(".card")) watch.observe(card, all);
            }"""
        )
        await_updates(page, 3)  # rates are known after the second sample
        page.evaluate("window.changes = 0")
        scene.metrics["SINK.k07"].add("EventDrainSuccessCount", 7)
        until(lambda: "7 events" in shown(page, "a1.sinks.k07"), "the figure")
        assert 1 <= page.evaluate("window.changes") < 20
        page.locator("#filter").fill("k07")
        assert page.locator(".card:visible").count() == 1
        page.locator("#file-filter").fill("application-09999")
        until(lambda: page.locator("#files tbody tr").count() == 1, "the file")
        page.close()

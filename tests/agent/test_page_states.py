"""Page in a real Chromium: what a woken-up reader must see in each state, at three widths and in both themes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.browsing import boxes, contrast, opened, overlaps
from tests.agent.states import STATES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TEXTS = (
    ".type",
    ".figures",
    ".name",
    "#about",
    "td",
    "th",
    ".badge",
    ".fact dt",
    ".fact dd",
    ".chip",
    ".why",
    "code",
)
TIME = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
TITLES = {
    "well": "ok: collector",
    "source fails": "failing (1): collector",
    "sink fails": "failing (2): collector",
    "brokers away": "failing (2): collector",
    "overflow filling": "degraded (1): collector",
    "dead letters": "degraded (1): collector",
    "agent gone": "no answer: collector",
}
ICONS = {"ok": "17734a", "degraded": "b87700", "failing": "c4281c", "no answer": "80868f"}
FIRST: dict[str, tuple[str, ...]] = {
    "source fails": (
        'Source "syslog" (syslogtcp) does not work.',
        "collector.sources.syslog since",
        "(25 min), 63 failed attempts",
        "Senders to syslog wait, and lose events once their own buffers are full.",
        "Not getting better: all 63 attempts have failed.",
        "Stop the other program at TCP port 5514, or choose another port.",
        "sudo ss -ltnp 'sport = :5514'",
        "another program listens there",
    ),
    "sink fails": (
        'Sink "search" (solr) does not deliver.',
        "(44 min), 108 failed attempts",
        "3.5 M events wait in collector.channels.events, the oldest for 44 min.",
        "Nothing yet.",
        " UTC (4.2 h left): then Kafka deletes the oldest events.",
        "Getting worse: 1,330 more events wait every second.",
        "Start the server at solr-1:8983, or repair the network to it.",
        "agent check --connect -c ",
        "Connection refused",
    ),
    "brokers away": (
        'All 3 brokers of channel "events" are away.',
        "Start the brokers, or repair the network between this host and them.",
        "collector.channels.events since",
        "(9 min), 26 failed attempts",
        "4 sources cannot store events, the longest for 9 min. 5 sinks get no events.",
        " k datagrams of firewall since the agent started. Senders to syslog wait, and lose events once their own "
        "buffers are full. Nothing of orders, audit: files are read later.",
        "Getting worse: 850 datagrams are lost every second.",
        "This also affects collector.sources.",
    ),
    "overflow filling": (
        'Channel "events" stores events on a disk of this host, as brokers do not take them.',
        "798.0 k events are on one disk of this host only. collector.channels.spill is 80 % full. The disk has "
        "74.0 GB free. 5 sinks get no new events.",
        "Nothing, as long as the disk of this host is intact.",
        " UTC (2 min left): then sources wait, and datagrams of firewall are lost.",
        "Getting worse: 1,330 more events wait every second.",
    ),
    "dead letters": (
        'Sink "index" has rejected events, which are dead letters now.',
        "dead letters since the agent started.",
        "Nothing. The dead letters have the bytes and the reason, and can be delivered again.",
        "Getting worse: 2 events are rejected every second.",
        "agent dlq list -c ",
        "cannot parse [price]",
    ),
}
FIRST["agent gone"] = FIRST["sink fails"]


@pytest.mark.parametrize("state", STATES)
def test_a_woken_up_reader_sees_it(browser: Browser, tmp_path: Path, state: str) -> None:
    scene = STATES[state](tmp_path)
    with scene.served():
        page = opened(browser, scene)
        if state in FIRST:
            first = page.locator("#problems li").first.inner_text()
            assert re.search(TIME, first), first
            assert [text for text in FIRST[state] if text not in first] == [], first
        else:
            assert page.locator("#problems").is_hidden()
        if state != "agent gone":
            check_layouts(page, TITLES[state])
    if state == "agent gone":
        page.locator("#stale").wait_for(state="visible")
        assert re.match(rf"The agent does not answer since {TIME} \(\d+ s\): ", page.locator("#stale").inner_text())
        assert page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
        check_layouts(page, TITLES[state], (".badge", "#stale"))
    page.close()


def check_layouts(page: Page, title: str, texts: tuple[str, ...] = TEXTS) -> None:
    assert page.title() == title
    colour = next(colour for word, colour in ICONS.items() if title.startswith(word))
    assert f"%23{colour}" in (page.locator("link[rel=icon]").get_attribute("href") or "")
    for width in (1400, 768, 375):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            check_layout(page, width, texts)


def check_layout(page: Page, width: int, texts: tuple[str, ...]) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert all(card["width"] > 150 and card["x"] + card["width"] <= width for card in boxes(page, ".card"))
    assert page.locator("#edges").is_visible() == (width > 760)
    labels = [label for label in boxes(page, "#edges text") if label["width"]]
    assert len(labels) >= (12 if width > 760 else 0)
    assert not overlaps(labels)
    for text in texts:
        if page.locator(text).count():
            assert contrast(page, text) >= 4.5, text

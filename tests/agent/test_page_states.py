"""Page in a real Chromium: what a woken-up reader must see in each state, at three widths and in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flafka.agent.services.running import until
from tests.agent.browsing import await_updates, contrast
from tests.agent.essentials import MEASURE, WATCH, WIDTHS, check
from tests.agent.scenes import Scene
from tests.agent.states import STATES
from tests.fixtures.browser import TIMEOUT_MS

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
FURTHER_WIDTHS = {"brokers away": (1024,), "sink fails": (1024,), "dead letters": (320,)}
"""Widths at which labels of wires or tables have the least room; an enlarged page may have only 320 pixels."""


@pytest.mark.parametrize("state", STATES)
def test_a_woken_up_reader_sees_it(browser: Browser, tmp_path: Path, state: str) -> None:
    scene = STATES[state](tmp_path)
    with scene.served():
        page, mishaps = watched(browser, scene)
        if state != "agent gone":
            check_layouts(page, state)
        assert mishaps == []
    if state == "agent gone":
        page.locator("#stale").wait_for(state="visible")
        check_announcements(page)
        style = "(({filter, opacity}) => [filter, opacity])(getComputedStyle(document.querySelector('main')))"
        assert page.evaluate(style) == ["grayscale(1)", "1"], "grey, and still with contrast"
        check_layouts(page, state, (*TEXTS, "#stale"))
    page.close()


def watched(browser: Browser, scene: Scene) -> tuple[Page, list[str]]:
    """Return the page, and a list of errors in its console and of its requests to other hosts."""
    mishaps: list[str] = []
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": 900})
    page.set_default_timeout(TIMEOUT_MS)
    page.add_init_script(f"({WATCH})()")
    page.on("console", lambda line: mishaps.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: mishaps.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith((scene.url, "data:")) else mishaps.append(one.url))
    page.goto(scene.url)
    await_updates(page)
    return page, mishaps


def check_announcements(page: Page) -> None:
    """Check that a screen reader says once that the agent is gone, although its absence grows on the page."""
    said = page.locator("#stale").inner_text()
    page.evaluate(
        """() => {
          window.announced = 0;
          const ofNode = (node) => (node.closest ? node : node.parentElement).closest("[aria-live], [role=alert]");
          const watch = new MutationObserver((changes) => {
            window.announced += changes.filter((change) => ofNode(change.target).ariaLive !== "off").length;
          });
          watch.observe(document.querySelector("#stale"), {childList: true, subtree: true, characterData: true});
        }"""
    )
    until(lambda: page.locator("#stale").inner_text() != said, "the absence to grow")
    assert page.evaluate("window.announced") == 0


def check_layouts(page: Page, state: str, texts: tuple[str, ...] = TEXTS) -> None:
    for width in (*WIDTHS, *FURTHER_WIDTHS.get(state, ())):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate("new Promise(requestAnimationFrame)")  # wires follow the size of the cards
            measured = page.evaluate(MEASURE)
            assert (measured["width"], measured["dark"]) == (width, scheme == "dark")
            check(state, measured)
            for text in texts:
                if page.locator(text).count():
                    assert contrast(page, text) >= 4.5, text

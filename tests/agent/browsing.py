"""Helpers of tests of the page in a browser: open it, wait for it, measure it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flafka.agent.config import load
from flafka.agent.services.running import until
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components
from tests.agent.scenes import Scene
from tests.fixtures.browser import TIMEOUT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def configured(path: Path) -> AgentSpec:
    spec, diagnostics = load(path, None, components=Components(entry_points=True))
    assert spec is not None, diagnostics
    return spec


def opened(browser: Browser, scene: Scene, width: int = 1400, **more: Any) -> Page:
    """Yield the page once it has shown a state without an error."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **more)
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(scene.url)
    await_updates(page)
    return page


def await_updates(page: Page, updates: int = 1) -> None:
    """Wait until the page was updated this often."""
    before = int(page.evaluate("document.body.dataset.updates || 0"))
    until(
        lambda: int(page.evaluate("document.body.dataset.updates || 0")) >= before + updates, "the page to be drawn"
    )
    assert page.locator("#stale").is_hidden()


def shown(page: Page, node: str) -> str:
    return page.locator(f"[data-id='{node}']").inner_text()


def boxes(page: Page, selector: str) -> list[dict[str, float]]:
    """Return the boxes of all these elements at one moment."""
    rectangles: list[dict[str, float]] = page.locator(selector).evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    return rectangles


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(page: Page, selector: str) -> float:
    """Return the contrast of the first such element's text to its background, as WCAG 2 computes it."""
    colours = page.locator(selector).first.evaluate(
        """element => {
          let behind = element;
          while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
          return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
        }"""
    )
    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def overlaps(boxes: list[dict[str, float]]) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return the pairs of labels that cover each other by more than their margins."""
    found = []
    for n, label in enumerate(boxes):
        for other in boxes[:n]:
            aside = label["x"] >= other["x"] + other["width"] - 2 or other["x"] >= label["x"] + label["width"] - 2
            above = label["y"] >= other["y"] + other["height"] - 4 or other["y"] >= label["y"] + label["height"] - 4
            if not (aside or above):
                found.append((label, other))
    return found

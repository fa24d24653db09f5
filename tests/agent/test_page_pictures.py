"""Pictures of the dashboard in the documentation, taken in a real Chromium.

`FLAFKA_ACCEPT=1 ./dev test tests/agent/test_page_pictures.py` takes them again.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flafka.agent.monitoring.view import View
from tests.agent.browsing import await_updates, configured, opened
from tests.agent.scenes import Scene, at_work, some_files

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
FILE = "/etc/flafka/agent.conf"
PICTURES = ROOT / "docs" / "pictures"
LABELS = "h1, h2:visible, h3:visible, th:visible, .card .name, .card .type, .card .state"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Busy agent of conf/flafka.conf with a failing sink, on a host and with a file of invented names."""
    monkeypatch.setattr(socket, "gethostname", lambda: "collector-1")
    scene = Scene(configured(ROOT / "conf/flafka.conf"), some_files(tmp_path, 140))
    scene.graph = replace(scene.graph, file=FILE, arguments=f"-c {FILE} -n flafka")
    scene.view = View(scene.graph, scene.registry, f"agent dlq list -c {FILE} -n flafka")
    scene.view.set_agent(scene.graph, scene.kafka_monitor, {"files": lambda: scene.files})
    at_work(scene)
    scene.rejecting = {sink: text.replace("conf/flafka.conf", FILE) for sink, text in scene.rejecting.items()}
    began = time.time() - 7 * 3600
    scene.view._started, scene.metrics["SINK.solr"].failing_since = began - 3600, began
    scene.metrics["SINK.solr"].set("Lag", 1_284_223)
    scene.metrics["SOURCE.udp"].remove("KernelDropCount")
    with scene.served():
        yield scene


@pytest.mark.parametrize(("name", "width", "height", "scheme"), [
    ("dashboard", 1280, 1500, "light"),
    ("dashboard-phone", 400, 900, "dark"),
])  # fmt: skip
def test_a_picture_shows_what_the_page_shows(
    browser: Browser, scene: Scene, tmp_path: Path, name: str, width: int, height: int, scheme: str
) -> None:
    page = opened(browser, scene, width, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": height})
    await_updates(page, 2)  # rates are known after the second one
    picture, text = tmp_path / f"{name}.png", tmp_path / f"{name}.txt"
    picture.write_bytes(page.screenshot(animations="disabled"))  # a path would start a thread
    labels = ("".join("#" if c.isdigit() else c for c in label) for label in page.locator(LABELS).all_inner_texts())
    text.write_text("".join(f"{' '.join(label.split())}\n" for label in labels))
    page.close()
    if os.environ.get("FLAFKA_ACCEPT"):
        shutil.copy(picture, PICTURES)
        shutil.copy(text, PICTURES)
    assert text.read_text() == (PICTURES / text.name).read_text(), "the page has changed: take its pictures again"
    assert size(picture) == size(PICTURES / picture.name)


def size(picture: Path) -> tuple[int, int]:
    """Return width and height of a PNG."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height

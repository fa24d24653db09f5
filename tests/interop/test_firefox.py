"""Page in a real Firefox, driven by puppeteer-core over WebDriver BiDi: the essentials of each state."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.jvm.jars import cache_directory
from tests.agent.essentials import MEASURE, WATCH, WIDTHS, check
from tests.agent.states import STATES
from tests.fixtures.browser import installed

DRIVER = "puppeteer-core"
VERSION = "24.8.2"
"""Version of the driver. Later ones may need a later Node.js than Debian's."""
THEMES = ("light", "dark")
pytestmark = pytest.mark.xdist_group("browser")


def driver() -> Path:
    """Return the driver's module, which npm downloads once into the cache."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    root = cache_directory() / "npm" / f"{DRIVER}-{VERSION}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            with tempfile.TemporaryDirectory(dir=root.parent) as directory:
                command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", directory]
                result = subprocess.run(
                    [*command, "--ignore-scripts", f"{DRIVER}@{VERSION}"],
                    capture_output=True, text=True, check=False, timeout=240, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                if result.returncode:
                    pytest.skip(f"npm cannot fetch {DRIVER}: {result.stderr[-300:]}")
                shutil.copytree(directory, root, symlinks=True)
    return root / "node_modules" / DRIVER / "lib/esm/puppeteer/puppeteer-core.js"


class Firefox:
    """Two instances of Firefox, one for each theme, behind one process of Node.js."""

    def __init__(self, home: Path) -> None:
        script = Path(__file__).with_name("firefox.mjs")
        firefox = installed("firefox-esr")
        self._log = (home / "firefox.log").open("w+")
        self.process = subprocess.Popen(
            ["node", script, driver().as_uri(), firefox, WATCH],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "HOME": str(home), "MOZ_CRASHREPORTER_DISABLE": "1"},
        )  # fmt: skip

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(command)}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, Path(self._log.name).read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def check(self, state: str, theme: str, width: int) -> None:
        measured = self.ask(measure=MEASURE, theme=theme, width=width)["measured"]
        assert (measured["width"], measured["dark"]) == (width, theme == "dark")
        check(state, measured)

    def close(self) -> None:
        """End the browsers by the end of their commands, or by force."""
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()
            self.process.wait()
            self._log.close()


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    driven = Firefox(tmp_path_factory.mktemp("firefox"))
    yield driven
    driven.close()


@pytest.mark.parametrize("state", STATES)
def test_a_woken_up_reader_sees_it(firefox: Firefox, tmp_path: Path, state: str) -> None:
    """Each state is seen at each width, in turn in each theme: over all states, each theme is seen at each width."""
    turn = list(STATES).index(state)
    views = [(THEMES[(turn + n) % 2], width) for n, width in enumerate(WIDTHS)]
    scene = STATES[state](tmp_path)
    with scene.served():
        widths = {theme: next(width for chosen, width in views if chosen == theme) for theme in THEMES}
        assert firefox.ask(open=scene.url, widths=widths)["mishaps"] == []
        if state != "agent gone":
            for theme, width in views:
                firefox.check(state, theme, width)
        assert firefox.ask()["mishaps"] == []
    if state == "agent gone":
        firefox.ask(gone=True)
        for theme, width in views:
            firefox.check(state, theme, width)

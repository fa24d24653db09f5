"""Installed plugins: an error names distribution, entry point and line, and other plugins work."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent

ROOT = Path(__file__).parents[2]

HEAD = """\
from flafka.plugins import Batch, Config, Event, Interceptor, Sink, Source, hookimpl

"""
GOOD = (
    HEAD
    + """
class Words(Source[Config]):
    type_name = "words"

    def batches(self):
        yield Batch.of([Event(b"good")])
        self.stopping.wait()


@hookimpl
def components():
    return [Words]
"""
)


def install(target: Path, name: str, modules: dict[str, str], entry: str = "") -> None:
    """Install a distribution of these files with pip, without a network."""
    dist_info = f"{name.replace('-', '_')}-1.0.dist-info"
    files = {
        **modules,
        f"{dist_info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{dist_info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{dist_info}/entry_points.txt": f"[flafka]\n{entry}\n"} if entry else {}),
    }
    record = "".join(f"{file},sha256={_digest(text)},{len(text)}\n" for file, text in files.items())
    wheel = target.parent / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in {**files, f"{dist_info}/RECORD": f"{record}{dist_info}/RECORD,,\n"}.items():
            archive.writestr(file, text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", target, wheel], check=True)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def agent(*arguments: str, path: list[Path]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flafka", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def configuration(directory: Path, source: str, sink: str = "null", options: str = "") -> Path:
    file = directory / "agent.conf"
    file.write_text(f"""a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.monitoring.port = 0
a1.channels.c1.type = memory
a1.sources.s1.channels = c1
a1.sinks.k1.channel = c1
a1.sources.s1.type = {source}
a1.sinks.k1.type = {sink}
{options}""")
    return file


MISSING = "import os\n\nimport no_such_library\n"
BROKEN = {
    "absent": ("absent = nowhere", {}, "ModuleNotFoundError: No module named 'nowhere'", "entry_points.txt"),
    "importing": (
        "importing = importing.plugin",
        {"importing/__init__.py": "", "importing/plugin.py": MISSING},
        "ModuleNotFoundError: No module named 'no_such_library'",
        "importing/plugin.py:3",
    ),
    "misspelt": (
        "misspelt = misspelt",
        {"misspelt.py": "x = 1\ndef components(:\n"},
        "SyntaxError: ",
        "misspelt.py:2",
    ),
    "failing": (
        "failing = failing",
        {"failing.py": HEAD + "def table():\n    return {}['x']\n\n\nTABLE = table()\n"},
        "KeyError: 'x'",
        "failing.py:4",
    ),
}


def test_plugins_that_cannot_be_imported_are_named_and_the_rest_works(tmp_path: Path) -> None:
    target = tmp_path / "installed"
    install(target, "good-plugin", {"good_plugin.py": GOOD}, "good = good_plugin")
    for name, (entry, modules, _, _) in BROKEN.items():
        install(target, f"{name}-plugin", modules, entry)
    path = [target, ROOT]
    checked = agent("check", "-c", str(configuration(tmp_path, "words")), path=path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "s1 (words) → c1 (memory) → k1 (null)" in checked.stdout
    warnings = [line for line in checked.stdout.splitlines() if ": warning: " in line]
    assert len(warnings) == len(BROKEN)
    for name, (entry, _, error, location) in BROKEN.items():
        (line,) = (line for line in warnings if f"plugin {name}-plugin 1.0 (entry point '{entry}')" in line)
        assert "cannot be imported: " + error in line
        assert line.split(": ")[0].endswith(location)
        assert line.startswith(str(target))

    checked = agent("check", "-c", str(configuration(tmp_path, "wordz")), path=path)
    assert checked.returncode == 2
    unknown = "agent.conf:8: a1.sources.s1: unknown source type 'wordz', did you mean 'words'?"
    assert f"{unknown} (or its plugin cannot be used" in checked.stdout
    assert agent("check", "--strict", "-c", str(configuration(tmp_path, "words")), path=path).returncode == 2


WRONG = (
    "import threading\n"
    + HEAD
    + """
class Lacking(Sink[Config]):
    type_name = "lacking"

    def wirte(self, batch):
        pass


class Unmade(Sink[Config]):
    type_name = "unmade"

    def __init__(self, config, name):
        super().__init__(config, name)
        self.path = config.path

    def write(self, batch):
        pass


class Awaited(Sink[Config]):
    type_name = "awaited"

    async def write(self, batch):
        pass


class Listing(Source[Config]):
    type_name = "listing"

    def batches(self):
        yield Batch([Event(b"x")])


class Texts(Source[Config]):
    type_name = "texts"

    def batches(self):
        yield Batch.of([Event(b"first")])
        yield "second"


class Bytes(Source[Config]):
    type_name = "bytes"

    def batches(self):
        yield Batch.of([b"a line"])


class Raising(Source[Config]):
    type_name = "raising"

    def batches(self):
        yield Batch.of([Event(self.read())])

    def read(self):
        raise OSError("the tape is torn")


class Deaf(Source[Config]):
    type_name = "deaf"

    def batches(self):
        yield Batch.of([Event(b"one")])
        threading.Event().wait()


class Forgetful(Interceptor[Config]):
    type_name = "forgetful"

    def intercept(self, batch):
        batch.slice(0, 1)


@hookimpl
def components():
    return [Lacking, Unmade, Awaited, Listing, Texts, Bytes, Raising, Deaf, Forgetful]
"""
)
OF = "plugin wrong-plugin 1.0 (entry point 'wrong = wrong_plugin')"


def line_of(text: str) -> int:
    return WRONG.splitlines().index(text) + 1


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    target = tmp_path / "installed"
    install(target, "wrong-plugin", {"wrong_plugin.py": WRONG}, "wrong = wrong_plugin")
    return target


def test_a_component_that_lacks_a_method_or_cannot_be_made_is_named_by_check(tmp_path: Path, wrong: Path) -> None:
    path, file = [wrong, ROOT], wrong / "wrong_plugin.py"
    lacking = f"{OF}: the sink 'lacking', wrong_plugin.Lacking, lacks write: write `def write(self, batch)`"
    location = f"{file}:{line_of('class Lacking(Sink[Config]):')}"
    checked = agent("check", "-c", str(configuration(tmp_path, "seq")), path=path)
    assert checked.returncode == 0
    assert f"{location}: warning: {lacking}" in checked.stdout.splitlines()

    checked = agent("check", "-c", str(configuration(tmp_path, "seq", "lacking")), path=path)
    assert checked.returncode == 2
    assert f"agent.conf:9: a1.sinks.k1: {lacking} ({location})" in checked.stdout

    awaited = f"{OF}: the sink 'awaited', wrong_plugin.Awaited, has an `async def write`, which nothing here awaits"
    checked = agent("check", "-c", str(configuration(tmp_path, "seq", "awaited")), path=path)
    assert checked.returncode == 2
    assert f"agent.conf:9: a1.sinks.k1: {awaited}: write `def write`; it may block its thread" in checked.stdout
    assert f"({file}:{line_of('    async def write(self, batch):')})" in checked.stdout

    checked = agent("check", "-c", str(configuration(tmp_path, "seq", "unmade")), path=path)
    assert checked.returncode == 2
    location = f"{file}:{line_of('        self.path = config.path')}"
    error = "AttributeError: 'Config' object has no attribute 'path'"
    assert f"a1.sinks.k1: the component cannot be created, a bug in {location}, {OF}: {error}" in checked.stdout


SOURCES = {
    "listing": (
        '        yield Batch([Event(b"x")])',
        "Batch takes an Arrow RecordBatch, not a list; Batch.of([Event(…)]) takes events ({place}, {of})",
    ),
    "texts": (
        '        yield "second"',
        "batches() of wrong_plugin.Texts ({place}, {of}) must yield batches, such as Batch.of([Event(…)]), and "
        "yields 'second'",
    ),
    "bytes": (
        '        yield Batch.of([b"a line"])',
        "Batch.of takes events, such as Event(b'…', {{'host': 'web1'}}), not the bytes b'a line' ({place}, {of})",
    ),
    "raising": ('        raise OSError("the tape is torn")', "OSError: the tape is torn ({place}, {of})"),
    "words": (
        "    def intercept(self, batch):",
        "intercept() of wrong_plugin.Forgetful ({place}, {of}) must return a Batch, not None",
    ),
}
"""Wrong line and its error message, by type."""


@pytest.mark.usefixtures("servers")
def test_wrong_results_of_a_component_are_named_and_other_components_work(
    tmp_path: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(wrong, "good-plugin", {"good_plugin.py": GOOD}, "good = good_plugin")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(wrong), str(ROOT)]))
    text = configuration(tmp_path, "words").read_text()
    text = text.replace("a1.sources = s1", f"a1.sources = s1 deaf {' '.join(f'w-{kind}' for kind in SOURCES)}")
    for name, kind in {"deaf": "deaf", **{f"w-{kind}": kind for kind in SOURCES}}.items():
        text += f"a1.sources.{name}.type = {kind}\na1.sources.{name}.channels = c1\n"
    text += "a1.sources.w-words.interceptors = i\na1.sources.w-words.interceptors.i.type = forgetful\n"
    expected = {
        f"SOURCE.w-{kind}": message.format(place=f"{wrong / 'wrong_plugin.py'}:{line_of(line)}", of=OF)
        for kind, (line, message) in SOURCES.items()
    }
    with RunningAgent(tmp_path / "a", text) as running:
        running.until(lambda: running.failing() == expected, "all to be reported")
        running.until(lambda: running.count("SOURCE.s1", "EventAcceptedCount") == 1, "the other source to work")
        running.until(lambda: running.count("SINK.k1", "EventDrainSuccessCount") >= 3, "the sink to work")
        running.process.terminate()
        running.until(lambda: "a1.sources.deaf: " in running.log, "the source that does not stop to be reported")
        log = running.log
    for message in expected.values():
        assert message in log
    own = log.count("unexpected failure, retrying: OSError: the tape is torn")
    assert log.count("Traceback (most recent call last)") == own >= 1, "of the plugin's own exception"
    frames = re.findall(r'  File "(.*?)", line', log)
    assert frames == [str(wrong / "wrong_plugin.py")] * 2 * own, "and only its own frames"
    deaf = re.search(r"a1.sources.deaf: wrong_plugin.Deaf .* does not stop: it is in batches\(\) at (\S+);", log)
    assert deaf is not None
    assert deaf[1] == f"{wrong / 'wrong_plugin.py'}:{line_of('        threading.Event().wait()')}"

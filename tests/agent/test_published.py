"""Configurations like published ones: each runs, or its messages name the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.plugins import Components

_BLOCKS = re.split(r"(?m)^### (.*)\n", Path(__file__).with_name("published.txt").read_text("utf-8"))[1:]
PUBLISHED = dict(zip(_BLOCKS[::2], _BLOCKS[1::2], strict=True))
COMPONENTS = Components()
PLAIN = PUBLISHED["multiplexing by regex_extractor"].removeprefix("=> runs\n")


def read(file: Path, text: str, name: str | None = None) -> tuple[bool, str]:
    """Return True if the file runs, and all messages about it."""
    file.write_text(text, "utf-8", newline="")
    spec, diagnostics = load(file, name, components=COMPONENTS, environment={})
    return spec is not None, "\n".join(map(str, diagnostics))


@pytest.fixture(autouse=True)
def _without_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FLUME_CONF_DIR", "HADOOP_CONF_DIR", "HBASE_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_runs_or_its_messages_name_the_remedy(name: str, tmp_path: Path) -> None:
    expected = re.findall(r"(?m)^=> (.*)$", PUBLISHED[name])
    text = re.sub(r"(?m)^=> .*\n", "", PUBLISHED[name])
    runs, messages = read(tmp_path / "flume.conf", text)
    assert runs == ("runs" in expected), messages
    for words in expected:
        assert words == "runs" or words in messages


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(PLAIN.replace("\n", "\r\n"), id="Windows' ends of lines"),
        pytest.param("\ufeff" + PLAIN, id="a byte order mark"),
        pytest.param(PLAIN.replace(" = ", "\t=\t").replace("\n", "  \t\n"), id="tabs and blanks"),
        pytest.param(PLAIN.replace(" = ", ":"), id="colons"),
        pytest.param(PLAIN.replace("mem1 mem2", "mem1 \\\n    mem2"), id="lines that go on"),
        pytest.param(PLAIN.replace("agent.", "app-agent_1."), id="a name with dashes"),
        pytest.param(f"# größer 日本語\n{PLAIN}! another kind of comment\n", id="comments"),
        pytest.param(f"{PLAIN}agent.sinks.old.type = logger\n", id="a part that is not used"),
        pytest.param(f"agent.sinks.std2.type = bogus\n{PLAIN}", id="a key twice"),
        pytest.param(re.sub(r"mem(?=\d)", "kanal_ä", PLAIN), id="names beyond ASCII"),
    ],
)
def test_it_runs_however_it_is_written(text: str, tmp_path: Path) -> None:
    runs, messages = read(tmp_path / "flume.conf", text)
    assert runs, messages


def test_each_of_several_agents_runs(tmp_path: Path) -> None:
    plain = PLAIN
    text = plain + plain.replace("agent.", "other.")
    for name in ("agent", "other"):
        runs, messages = read(tmp_path / "flume.conf", text, name)
        assert runs, messages
    assert "the file has several agents: choose one with -n (agent, other)" in read(tmp_path / "flume.conf", text)[1]

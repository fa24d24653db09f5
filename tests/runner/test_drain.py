"""When a drain is over."""

from __future__ import annotations

from pathlib import Path

from agent.config import load
from agent.runner.agent import Agent
from plugins import Components


def agent_of(tmp_path: Path, channels: str) -> Agent:
    text = f"a1.channels = {channels}\na1.sinks = k1 k2\n"
    for channel in channels.split():
        text += f"a1.channels.{channel}.type = memory\n"
    for sink, channel in zip(("k1", "k2"), channels.split() * 2, strict=False):
        text += f"a1.sinks.{sink}.type = null\na1.sinks.{sink}.channel = {channel}\n"
    (tmp_path / "agent.conf").write_text(text)
    spec, diagnostics = load(tmp_path / "agent.conf", None, components=Components())
    assert spec is not None, diagnostics
    return Agent(spec)


def look(agent: Agent, *lags: int) -> None:
    for runner, lag in zip(agent.sinks, lags, strict=True):
        for sink in runner.members:
            sink.metrics.set("Lag", lag)


def test_one_channel_is_drained_once_its_sinks_have_caught_up(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, "c1")
    assert not agent.drained()
    look(agent, 0, 1)
    assert not agent.drained()
    look(agent, 0, 0)
    assert agent.drained()


def test_of_several_channels_all_sinks_look_again_as_one_may_feed_another(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, "c1 c2")
    look(agent, 0, 0)
    assert not agent.drained()
    look(agent, 0, 0)
    assert not agent.drained()
    look(agent, 0, 3)  # what the other has delivered meanwhile
    assert not agent.drained()
    look(agent, 0, 0)
    assert not agent.drained()
    look(agent, 0, 0)
    assert not agent.drained()
    look(agent, 0, 0)
    assert agent.drained()

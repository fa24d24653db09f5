"""Changes of an agent by another configuration, and parts that cannot end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.runner import agent as running
from flafka.agent.runner import worker
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.changes import changes_between, take_snapshot
from flafka.agent.runner.local import sinks
from flafka.agent.services.running import until
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components, FlafkaError
from flafka.plugins.threads import start_thread
from tests.fixtures.ports import free_port


def spec_of(directory: Path, *lines: str, capacity: int = 100, sink: str = "null") -> AgentSpec:
    file = directory / "agent.conf"
    file.write_text(
        f"""
a1.sources = s
a1.channels = c
a1.sinks = k
a1.monitoring.port = 0
a1.sources.s.type = seq
a1.sources.s.totalEvents = 10
a1.sources.s.channels = c
a1.channels.c.type = memory
a1.channels.c.capacity = {capacity}
a1.channels.c.transactionCapacity = 100
a1.sinks.k.type = {sink}
a1.sinks.k.channel = c
"""
        + "\n".join(lines)
    )
    spec, diagnostics = load(file, None, components=Components())
    assert spec is not None, diagnostics
    return spec


def test_moved_lines_are_no_change(tmp_path: Path) -> None:
    old = take_snapshot(spec_of(tmp_path))
    file = tmp_path / "agent.conf"
    file.write_text("# a comment\n\n" + file.read_text())
    spec, _ = load(file, None, components=Components())
    assert spec is not None
    assert str(changes_between(old, take_snapshot(spec))) == "nothing"


def test_a_certificate_that_was_replaced_is_a_change(tmp_path: Path) -> None:
    keystore = tmp_path / "server.pem"
    keystore.write_text("as it was")
    lines = (
        *("a1.sources = s", "a1.sources.s.type = syslogtcp", f"a1.sources.s.port = {free_port()}"),
        *("a1.sources.s.host = 127.0.0.1", "a1.sources.s.ssl = true", f"a1.sources.s.keystore = {keystore}"),
    )
    old = take_snapshot(spec_of(tmp_path, *lines))
    assert not changes_between(old, take_snapshot(spec_of(tmp_path, *lines)))
    keystore.write_text("as it is")
    assert str(changes_between(old, take_snapshot(spec_of(tmp_path, *lines)))) == "sources s"


def test_a_memory_channel_that_cannot_be_emptied_stays_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = ("a1.sinks.k.hostname = 127.0.0.1", f"a1.sinks.k.port = {free_port()}")
    agent = Agent(spec_of(tmp_path, *away, sink="avro"))
    agent.start()
    try:
        channel, sink = agent.channels["c"], agent.sinks[0]
        until(lambda: channel.metrics.get("EventPutSuccessCount") == 10, "the events")
        monkeypatch.setattr(running, "DRAIN_SECONDS", 0.1)
        with pytest.raises(FlafkaError, match=r"channel c changes, .*: nothing was changed"):
            agent.reload(spec_of(tmp_path, *away, sink="avro", capacity=200))
        assert (agent.channels["c"], agent.sinks[0]) == (channel, sink)
        assert not sink.draining.is_set()
        assert agent.reload(spec_of(tmp_path)) == "sinks k"  # which takes the events of the channel
        delivered = agent.sinks[0].members[0].metrics
        until(lambda: delivered.get("EventDrainSuccessCount") == 20, "what both lives of the source have brought")
    finally:
        agent.stop()


def refuse(patched: pytest.MonkeyPatch, name: str) -> None:
    """Refuse threads of that name, as a system without room for one does."""

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    for module in worker, sinks:
        patched.setattr(module, "start_thread", start)


def test_parts_whose_threads_were_refused_begin_with_the_next_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(spec_of(tmp_path))
    agent.start()
    try:
        changed = spec_of(tmp_path, capacity=200)
        for part in agent.channels["c"], agent.sinks[0], agent.sources[0]:
            with monkeypatch.context() as patched:
                refuse(patched, part.thread.name)
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    agent.reload(changed)
        assert agent.reload(changed) == "channels c; sources s; sinks k"
        assert agent.reload(changed) == "nothing"
        delivered = agent.sinks[0].members[0].metrics
        until(lambda: delivered.get("EventDrainSuccessCount") == 10, "the events of the new source")
    finally:
        assert agent.stop()


def test_a_part_whose_thread_was_refused_ends_where_the_next_configuration_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(spec_of(tmp_path))
    agent.start()
    try:
        more = ("a1.sources = s t", "a1.sources.t.type = seq", "a1.sources.t.channels = c")
        with monkeypatch.context() as patched:
            refuse(patched, "a1.sources.t")
            with pytest.raises(RuntimeError, match="can't start new thread"):
                agent.reload(spec_of(tmp_path, *more))
        assert agent.reload(spec_of(tmp_path)) == "sources t"
        assert [source.spec.name for source in agent.sources] == ["s"]
    finally:
        agent.stop()


def test_an_agent_stops_though_the_thread_of_a_channel_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(spec_of(tmp_path))
    agent.start()
    with monkeypatch.context() as patched:
        refuse(patched, "a1.channels.c")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            agent.reload(spec_of(tmp_path, capacity=200))
    agent.stop()

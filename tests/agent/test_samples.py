"""Samples of events on the page: where there are none, how much of them there is, and when they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.graph import graph_of
from flafka.agent.monitoring import samples as samples_module
from flafka.agent.monitoring.samples import EVENTS_A_SECOND, MOST_BYTES, MOST_EVENTS, MOST_SAMPLES, Samples, hidden
from flafka.agent.monitoring.taps import Taps
from flafka.agent.topology import AgentSpec
from flafka.plugins import Batch, Components, Event, Origin

BASE = """
a1.sources = s1 s2
a1.channels = c1 c2 c3
a1.sinks = k1 k2 k3 k4
a1.sources.s1.type = seq
a1.sources.s1.channels = c1 c2
a1.sources.s2.type = seq
a1.sources.s2.channels = c3
a1.channels.c1.type = memory
a1.channels.c2.type = memory
a1.channels.c3.type = memory
""" + "".join(f"a1.sinks.{k}.type = null\na1.sinks.{k}.channel = {c}\n" for k, c in
              (("k1", "c1"), ("k2", "c1"), ("k3", "c2"), ("k4", "c3")))  # fmt: skip


def masked(*ends: str) -> str:
    return "".join(
        f"a1.{end}.interceptors = m\na1.{end}.interceptors.m.type = mask\na1.{end}.interceptors.m.patterns = card\n"
        for end in ends
    )


def spec_of(directory: Path, text: str = BASE) -> AgentSpec:
    file = directory / "agent.conf"
    file.write_text(text)
    spec, found = load(file, None, components=Components())
    assert spec is not None, [*map(str, found)]
    return spec


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ((), set()),
        (("sources.s1",), set()),
        (("sinks.k4",), {"sources.s2", "channels.c3"}),
        # What a mask before k1 hides, k2 gets as it is, and k3 by another channel.
        (("sinks.k1",), {"sources.s1", "channels.c1", "sinks.k2", "channels.c2", "sinks.k3"}),
        (("sinks.k1", "sinks.k2", "sinks.k3"), {"sources.s1", "channels.c1", "channels.c2"}),
        (("sources.s1", "sinks.k1"), {"sources.s1", "channels.c1", "sinks.k2", "channels.c2", "sinks.k3"}),
    ],
)
def test_nothing_is_shown_that_stands_before_a_mask(
    tmp_path: Path, masks: tuple[str, ...], expected: set[str]
) -> None:
    spec = spec_of(tmp_path, BASE + masked(*masks))
    found = hidden(graph_of(spec), spec)
    assert set(found) == {f"a1.{path}" for path in expected}
    for path, reason in found.items():
        assert f"agent tap {path} -c {spec.file} -n a1" in reason
        assert f"a1.{masks[-1] if masks[-1] == 'sinks.k4' else 'sinks.k'}" in reason


def test_whatever_takes_something_out_counts_as_a_mask() -> None:
    found = {cls.type_name for cls in Components().all("interceptor") if getattr(cls, "hides", False)}
    assert found == {"mask", "search_replace", "remove_header", "morphline"}


class Looked:
    """Samples of an agent that is not there; `taps` by path."""

    def __init__(self, spec: AgentSpec) -> None:
        self.spec, self.samples = spec, Samples()
        self.taps = {node.id: Taps() for node in graph_of(spec).nodes}
        self.samples.show(spec, self.taps)

    def passed(self, path: str, batch: Batch) -> None:
        for listener in self.taps[path].listeners:
            listener.passed(batch)


@pytest.fixture
def looked(tmp_path: Path) -> Looked:
    return Looked(spec_of(tmp_path))


def batch_of(number: int, size: int = 1) -> Batch:
    return Batch.of([Event(b"x" * size, {"host": "web"}) for _ in range(number)])


def test_it_begins_when_it_is_asked_for_and_is_shared(looked: Looked) -> None:
    path = "a1.channels.c1"
    looked.passed(path, batch_of(3))
    assert looked.samples.of(path) == {"component": path, "passed": 0, "events": []}
    looked.passed(path, Batch.of([Event(b"a\xff", {"host": "web"}), Event("ü".encode())]))
    found = looked.samples.of("c1")
    assert found == looked.samples.of(path)
    assert len(looked.taps[path].listeners) == 1
    newest, oldest = found["events"]
    assert (newest["body"], newest["headers"], newest["number"]) == ("ü", {}, 1)
    assert (oldest["body"], oldest["headers"], oldest["id"]) == ("a\\xff", {"host": "web"}, None)


def test_events_of_a_sink_have_their_ids(looked: Looked) -> None:
    looked.samples.of("k1")
    batch = Batch.of([Event(b"one")], Origin.of_records("t", 3, [7], [0]))
    looked.passed("a1.sinks.k1", batch)
    assert looked.samples.of("k1")["events"][0]["id"] == str(batch.id(0))


def test_it_is_bounded_in_events_a_second_and_in_bytes(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(samples_module.time, "time", lambda: clock[0])
    looked.samples.of("c1")
    for second in range(5):
        clock[0] = 1000.0 + second
        for _ in range(4):
            looked.passed("a1.channels.c1", batch_of(100, size=100_000))
    found = looked.samples.of("c1")
    assert (found["passed"], len(found["events"])) == (2000, MOST_EVENTS)
    assert [event["time"] for event in found["events"]].count(1004.0) == EVENTS_A_SECOND
    assert {(len(event["body"]), event["size"]) for event in found["events"]} == {(MOST_BYTES, 100_000)}
    clock[0] = 1005.0
    sizes = (MOST_BYTES - 1, MOST_BYTES, MOST_BYTES + 1)
    looked.passed("a1.channels.c1", Batch.of([Event(b"\xff" * size) for size in sizes]))  # four characters a byte
    assert [event["cut"] for event in looked.samples.of("c1")["events"][:3]] == [True, False, False]
    many = {f"h{n:03}": "v" * 100 for n in range(100)}
    clock[0] = 1005.0
    looked.passed("a1.channels.c1", Batch.of([Event(b"", many)]))
    headers = looked.samples.of("c1")["events"][0]["headers"]
    assert (len(headers), headers["…"]) == (21, "80 more")
    last = list(headers)[-2]
    assert (headers["h000"], last) == ("v" * 100, "h019")
    assert headers[last] == "v" * (MOST_BYTES - 19 * 104 - 4) + "…"  # it was cut, and says so
    clock[0] = 1006.0
    long = "n" * (MOST_BYTES + 1)
    looked.passed("a1.channels.c1", Batch.of([Event(b"", {long: "value"}), Event(b"", {long[:-1]: ""})]))
    whole, cut = (event["headers"] for event in looked.samples.of("c1")["events"][:2])
    assert (whole, cut) == ({long[:-1]: ""}, {long[:-1] + "…": "…"})


def test_it_ends_when_nobody_asks_for_it_any_more(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    taps = looked.taps["a1.channels.c1"]
    looked.samples.of("c1")
    looked.samples.look()
    assert taps.listeners
    monkeypatch.setattr(samples_module, "LEASE_SECONDS", -1.0)
    looked.samples.look()
    assert not taps.listeners
    looked.samples.of("c1")
    looked.samples.stop()
    assert not taps.listeners


def test_after_a_reload_it_goes_over_to_the_new_component_or_ends(looked: Looked, tmp_path: Path) -> None:
    before, path = looked.taps["a1.channels.c1"], "a1.channels.c1"
    looked.samples.of(path)
    after = Taps()
    looked.samples.show(looked.spec, {**looked.taps, path: after})
    assert (len(before.listeners), len(after.listeners)) == (0, 1)
    looked.samples.show(spec_of(tmp_path, BASE + masked("sinks.k1")), {**looked.taps, path: after})
    assert not after.listeners
    assert "a1.sinks.k1.interceptors.m takes out" in looked.samples.of(path)["error"]


def test_mistakes_and_too_many_are_told(looked: Looked) -> None:
    assert "no component is named 'c4'" in looked.samples.of("c4")["error"]
    assert "no component is named 's1.i1'" in looked.samples.of("s1.i1")["error"]
    assert len(looked.taps) < MOST_SAMPLES
    looked.samples._samples |= {str(n): samples_module.Sample() for n in range(MOST_SAMPLES)}
    assert "close another page" in looked.samples.of("c1")["error"]

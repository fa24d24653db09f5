"""Samples of events on the page: their places, their limits, and their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.graph import graph_of
from flafka.agent.monitoring import samples as samples_module
from flafka.agent.monitoring.samples import (
    MAX_BYTES,
    MAX_EVENTS,
    MAX_EVENTS_PER_SECOND,
    MAX_SAMPLES,
    Samples,
    hidden_components,
)
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
    spec, diagnostics = load(file, None, components=Components())
    assert spec is not None, [*map(str, diagnostics)]
    return spec


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ((), set()),
        (("sources.s1",), set()),
        (("sinks.k4",), {"sources.s2", "channels.c3"}),
        # Events masked before k1 are unmasked for k2, and for k3 by another channel.
        (("sinks.k1",), {"sources.s1", "channels.c1", "sinks.k2", "channels.c2", "sinks.k3"}),
        (("sinks.k1", "sinks.k2", "sinks.k3"), {"sources.s1", "channels.c1", "channels.c2"}),
        (("sources.s1", "sinks.k1"), {"sources.s1", "channels.c1", "sinks.k2", "channels.c2", "sinks.k3"}),
    ],
)
def test_events_before_a_mask_are_not_shown(tmp_path: Path, masks: tuple[str, ...], expected: set[str]) -> None:
    spec = spec_of(tmp_path, BASE + masked(*masks))
    reasons = hidden_components(graph_of(spec), spec)
    assert set(reasons) == {f"a1.{path}" for path in expected}
    for path, reason in reasons.items():
        assert f"agent tap {path} -c {spec.file} -n a1" in reason
        assert f"a1.{masks[-1] if masks[-1] == 'sinks.k4' else 'sinks.k'}" in reason


def test_every_interceptor_that_removes_text_counts_as_a_mask() -> None:
    types = {cls.type_name for cls in Components().all("interceptor") if getattr(cls, "redacts", False)}
    assert types == {"mask", "search_replace", "remove_header", "morphline"}


class StandaloneSamples:
    """Samples of an agent that does not run; `taps` by path."""

    def __init__(self, spec: AgentSpec) -> None:
        self.spec, self.samples = spec, Samples()
        self.taps = {node.id: Taps() for node in graph_of(spec).nodes}
        self.samples.set_agent(spec, self.taps)

    def passed(self, path: str, batch: Batch) -> None:
        for listener in self.taps[path].subscribers:
            listener.on_batch(batch)


@pytest.fixture
def standalone(tmp_path: Path) -> StandaloneSamples:
    return StandaloneSamples(spec_of(tmp_path))


def batch_of(number: int, size: int = 1) -> Batch:
    return Batch.of([Event(b"x" * size, {"host": "web"}) for _ in range(number)])


def test_a_sample_begins_on_request_and_is_shared(standalone: StandaloneSamples) -> None:
    path = "a1.channels.c1"
    standalone.passed(path, batch_of(3))
    assert standalone.samples.get(path) == {"component": path, "passed": 0, "events": []}
    standalone.passed(path, Batch.of([Event(b"a\xff", {"host": "web"}), Event("ü".encode())]))
    sample = standalone.samples.get("c1")
    assert sample == standalone.samples.get(path)
    assert len(standalone.taps[path].subscribers) == 1
    newest, oldest = sample["events"]
    assert (newest["body"], newest["headers"], newest["number"]) == ("ü", {}, 1)
    assert (oldest["body"], oldest["headers"], oldest["id"]) == ("a\\xff", {"host": "web"}, None)


def test_events_of_a_sink_have_their_ids(standalone: StandaloneSamples) -> None:
    standalone.samples.get("k1")
    batch = Batch.of([Event(b"one")], Origin.of_records("t", 3, [7], [0]))
    standalone.passed("a1.sinks.k1", batch)
    assert standalone.samples.get("k1")["events"][0]["id"] == str(batch.id(0))


def test_a_sample_is_bounded_in_events_a_second_and_in_bytes(
    standalone: StandaloneSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(samples_module.time, "time", lambda: clock[0])
    standalone.samples.get("c1")
    for second in range(5):
        clock[0] = 1000.0 + second
        for _ in range(4):
            standalone.passed("a1.channels.c1", batch_of(100, size=100_000))
    sample = standalone.samples.get("c1")
    assert (sample["passed"], len(sample["events"])) == (2000, MAX_EVENTS)
    assert [event["time"] for event in sample["events"]].count(1004.0) == MAX_EVENTS_PER_SECOND
    assert {(len(event["body"]), event["size"]) for event in sample["events"]} == {(MAX_BYTES, 100_000)}
    clock[0] = 1005.0
    sizes = (MAX_BYTES - 1, MAX_BYTES, MAX_BYTES + 1)
    standalone.passed("a1.channels.c1", Batch.of([Event(b"\xff" * size) for size in sizes]))  # four characters a byte
    assert [event["cut"] for event in standalone.samples.get("c1")["events"][:3]] == [True, False, False]
    many = {f"h{n:03}": "v" * 100 for n in range(100)}
    clock[0] = 1005.0
    standalone.passed("a1.channels.c1", Batch.of([Event(b"", many)]))
    headers = standalone.samples.get("c1")["events"][0]["headers"]
    assert (len(headers), headers["…"]) == (21, "80 more")
    last = list(headers)[-2]
    assert (headers["h000"], last) == ("v" * 100, "h019")
    assert headers[last] == "v" * (MAX_BYTES - 19 * 104 - 4) + "…"  # it was cut, and ends with a mark
    clock[0] = 1006.0
    long = "n" * (MAX_BYTES + 1)
    standalone.passed("a1.channels.c1", Batch.of([Event(b"", {long: "value"}), Event(b"", {long[:-1]: ""})]))
    complete, cut = (event["headers"] for event in standalone.samples.get("c1")["events"][:2])
    assert (complete, cut) == ({long[:-1]: ""}, {long[:-1] + "…": "…"})


def test_a_sample_ends_without_further_requests(
    standalone: StandaloneSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    taps = standalone.taps["a1.channels.c1"]
    standalone.samples.get("c1")
    standalone.samples.close_expired()
    assert taps.subscribers
    monkeypatch.setattr(samples_module, "LEASE_SECONDS", -1.0)
    standalone.samples.close_expired()
    assert not taps.subscribers
    standalone.samples.get("c1")
    standalone.samples.stop()
    assert not taps.subscribers


def test_after_a_reload_a_sample_continues_at_the_new_component_or_ends(
    standalone: StandaloneSamples, tmp_path: Path
) -> None:
    before, path = standalone.taps["a1.channels.c1"], "a1.channels.c1"
    standalone.samples.get(path)
    after = Taps()
    standalone.samples.set_agent(standalone.spec, {**standalone.taps, path: after})
    assert (len(before.subscribers), len(after.subscribers)) == (0, 1)
    standalone.samples.set_agent(spec_of(tmp_path, BASE + masked("sinks.k1")), {**standalone.taps, path: after})
    assert not after.subscribers
    assert "a1.sinks.k1.interceptors.m redacts" in standalone.samples.get(path)["error"]


def test_mistakes_and_too_many_samples_are_reported(standalone: StandaloneSamples) -> None:
    assert "no component is named 'c4'" in standalone.samples.get("c4")["error"]
    assert "no component is named 's1.i1'" in standalone.samples.get("s1.i1")["error"]
    assert len(standalone.taps) < MAX_SAMPLES
    standalone.samples._samples |= {str(n): samples_module.Sample() for n in range(MAX_SAMPLES)}
    assert "close another page" in standalone.samples.get("c1")["error"]


CHAIN = (
    BASE
    + """
a1.sources.s1.interceptors = a m b
a1.sources.s1.interceptors.a.type = static
a1.sources.s1.interceptors.m.type = mask
a1.sources.s1.interceptors.m.patterns = card
a1.sources.s1.interceptors.b.type = static
"""
)


def test_events_are_shown_before_and_after_each_interceptor_behind_the_last_mask(tmp_path: Path) -> None:
    standalone = StandaloneSamples(spec_of(tmp_path, CHAIN))
    samples, path = standalone.samples, "a1.sources.s1.interceptors"
    assert f"{path}.m redacts the events of {path}.a" in samples.get(f"{path}.a")["error"]
    assert samples.get("s1.m")["before"] is None
    assert samples.get("s1.b")["before"] == []
    stages = [batch_of(2), Batch.of([Event(b"masked")]), Batch.of([Event(b"last")])]
    for listener in standalone.taps["a1.sources.s1"].subscribers:
        listener.on_intercepted(1, *stages[:2])
        listener.on_intercepted(2, *stages[1:])
    mask, last = samples.get("s1.m"), samples.get("s1.b")
    assert (mask["passed"], mask["before"], [event["body"] for event in mask["events"]]) == (2, None, ["masked"])
    assert [[event["body"] for event in last[stage]] for stage in ("before", "events")] == [["masked"], ["last"]]
    assert not any(
        "xx" in str(sample._latest) or "'x'" in str(sample._latest) for sample in samples._samples.values()
    )


def test_no_stage_of_a_hidden_component_is_shown(tmp_path: Path) -> None:
    standalone = StandaloneSamples(spec_of(tmp_path, CHAIN + masked("sinks.k1")))
    for name in "amb":
        assert "a1.sinks.k1.interceptors.m redacts" in standalone.samples.get(f"s1.{name}")["error"]

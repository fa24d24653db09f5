"""Interceptor `sample`: the number of kept events, and their choice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.interceptors.sample import SampleConfig, SampleInterceptor
from flafka.plugins import Batch, Components, Event, conformance


def make(**properties: str) -> SampleInterceptor:
    return conformance.make(SampleInterceptor, properties)


def sampled(interceptor: SampleInterceptor, events: list[Event], size: int = 7) -> list[bytes]:
    """Return the kept events, passed in batches of that size."""
    return [
        event.body
        for start in range(0, len(events), size)
        for event in interceptor.intercept(Batch.of(events[start : start + size]))
    ]


EVENTS = [Event(b"%d" % n, {"session": f"s{n % 500}"}) for n in range(5000)]


@pytest.mark.parametrize("size", [1, 7, 10, 4096])
def test_every_nth_event_is_kept_in_any_batches(size: int) -> None:
    assert sampled(make(every="10"), EVENTS, size) == [event.body for event in EVENTS[::10]]


def test_a_random_share_is_kept(seed: int) -> None:
    interceptor = make(rate="0.1")
    interceptor.random = random.Random(seed).random
    assert 350 < len(sampled(interceptor, EVENTS)) < 650  # six standard deviations and more
    assert sampled(make(rate="1"), EVENTS) == [event.body for event in EVENTS]


@pytest.mark.parametrize("properties", [{"rate": "0.1"}, {"every": "10"}])
def test_all_events_of_a_value_are_kept_and_the_same_values_everywhere(properties: dict[str, str]) -> None:
    first = sampled(make(by="session", **properties), EVENTS)
    sessions = {event.headers["session"] for event in EVENTS if event.body in set(first)}
    assert first == [event.body for event in EVENTS if event.headers["session"] in sessions]
    assert 20 < len(sessions) < 100
    assert sampled(make(by="session", **properties), EVENTS, 100) == first
    assert sampled(make(by="session", seed="another", **properties), EVENTS) != first


def test_it_is_pure_only_by_a_header() -> None:
    assert make(by="user", rate="0.5").pure
    assert not make(rate="0.5").pure
    assert not make(every="2").pure


@pytest.mark.parametrize(("by", "told"), [("", ["move it to the source, or set by"]), ("by = user", [])])
def test_a_sink_may_have_a_pure_one_only(by: str, told: list[str], tmp_path: Path) -> None:
    options = ["type = null", "channel = c", "interceptors = i", "interceptors.i.type = sample"]
    options += ["interceptors.i.rate = 0.1", f"interceptors.i.{by}" if by else "batchSize = 5"]
    lines = ["a.sources = s", "a.channels = c", "a.sinks = k", "a.sources.s.type = seq", "a.sources.s.channels = c"]
    lines += ["a.channels.c.type = memory", *(f"a.sinks.k.{option}" for option in options)]
    (tmp_path / "agent.conf").write_text("\n".join(lines))
    _, diagnostics = load(tmp_path / "agent.conf", components=Components())
    errors = [str(diagnostic) for diagnostic in diagnostics if diagnostic.severity == "error"]
    assert len(errors) == len(told)
    assert all(text in error for text, error in zip(told, errors, strict=True))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "exactly one of rate"),
        ({"rate": "0.1", "every": "2"}, "exactly one of rate"),
        ({"rate": "0"}, "must be greater than 0"),
        ({"rate": "2"}, "must be at most 1"),
        ({"every": "0"}, "must be greater than 0"),
    ],
)
def test_invalid_options_are_refused(properties: dict[str, str], message: str) -> None:
    _, (problem,) = SampleConfig.parse(properties)
    assert problem.message.startswith(message)

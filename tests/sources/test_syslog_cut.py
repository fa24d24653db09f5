"""Streams of mutated syslog frames: the borders of packets make no difference."""

from __future__ import annotations

import random

import pytest

from flafka.sources.syslog import MultiportSyslogTcp, SyslogTcp
from tests.conformance.adapters.syslog_driven import received, source_of
from tests.fixtures.examples import examples
from tests.soak.hostile import SHARED, Frames

pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="without the corpora frames are mutated from")


def same_events_wherever_cut(streams: int, points: int, seed: int) -> None:
    frames, choose = Frames(seed), random.Random(seed)
    for n in range(streams):
        stream = frames.stream(8)
        cls, options = (MultiportSyslogTcp, {"ports": "0"}) if n % 2 else (SyslogTcp, {"port": 0})
        size = choose.choice((10, 100, 2500))
        source = source_of(cls, {"eventSize": size, "now": 1_800_000_000_000, **options})
        expected, _ = received(source, [stream], event_size=size)
        for _ in range(points):
            cut = choose.randrange(len(stream) + 1)
            events, _ = received(source, [stream[:cut], stream[cut:]], event_size=size)
            assert events == expected, (stream, cut)


def test_the_same_events_wherever_a_stream_is_cut(seed: int) -> None:
    same_events_wherever_cut(10, examples(100), seed)

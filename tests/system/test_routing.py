"""Real agent that reads lines, extracts headers, and routes by them; one optional channel has no server."""

from __future__ import annotations

import random
import socket
from collections import Counter
from pathlib import Path

from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port

CONFIGURATION = """
a1.sources = lines numbers
a1.channels = errors rest away
a1.sinks = e r

a1.sources.lines.type = netcat
a1.sources.lines.bind = 127.0.0.1
a1.sources.lines.port = 0
a1.sources.lines.channels = errors rest away
a1.sources.lines.interceptors = level id hide drop
a1.sources.lines.interceptors.level.type = regex_extractor
a1.sources.lines.interceptors.level.regex = ^(?<level>\\\\w+) n=(\\\\d+)
a1.sources.lines.interceptors.level.serializers = l n
a1.sources.lines.interceptors.level.serializers.l.name = level
a1.sources.lines.interceptors.level.serializers.n.name = n
a1.sources.lines.interceptors.id.type = org.apache.flume.sink.solr.morphline.UUIDInterceptor$Builder
a1.sources.lines.interceptors.hide.type = search_replace
a1.sources.lines.interceptors.hide.searchPattern = secret=(\\\\w)\\\\w*
a1.sources.lines.interceptors.hide.replaceString = secret=$1
a1.sources.lines.interceptors.drop.type = regex_filter
a1.sources.lines.interceptors.drop.regex = ^DEBUG
a1.sources.lines.interceptors.drop.excludeEvents = true
a1.sources.lines.selector.type = multiplexing
a1.sources.lines.selector.header = level
a1.sources.lines.selector.mapping.ERROR = errors
a1.sources.lines.selector.optional.ERROR = away
a1.sources.lines.selector.mapping.INFO = rest

a1.sources.numbers.type = seq
a1.sources.numbers.totalEvents = 5000
a1.sources.numbers.channels = errors rest
a1.sources.numbers.selector.type = load_balancing

a1.channels.errors.type = memory
a1.channels.rest.type = memory
a1.channels.away.type = kafka
a1.channels.away.kafka.bootstrap.servers = 127.0.0.1:{kafka}
a1.channels.away.kafka.topic = away

a1.sinks.e.type = file_roll
a1.sinks.e.channel = errors
a1.sinks.e.sink.directory = {errors}
a1.sinks.r.type = file_roll
a1.sinks.r.channel = rest
a1.sinks.r.sink.directory = {rest}
"""


def delivered(directory: Path) -> list[bytes]:
    return [line for file in directory.iterdir() for line in file.read_bytes().splitlines()]


def test_each_event_goes_where_its_header_says(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines = [
        b"%s n=%d secret=hidden \xff" % (chance.choice([b"ERROR", b"INFO", b"DEBUG", b"TRACE"]), n)
        for n in range(4000)
    ]
    errors, remaining = tmp_path / "errors", tmp_path / "rest"
    for directory in (errors, remaining):
        directory.mkdir()
    configuration = CONFIGURATION.format(errors=errors, rest=remaining, kafka=free_port())
    with RunningAgent(tmp_path, configuration) as agent:
        with socket.create_connection(("127.0.0.1", agent.port("lines")), timeout=60) as sender:
            sender.sendall(b"".join(line + b"\n" for line in lines))
            answers = sender.makefile("rb")
            assert {answers.readline() for _ in lines} == {b"OK\n"}
        agent.until(lambda: agent.count("SOURCE.numbers", "EventAcceptedCount") == 5000, "all numbers in channels")
        shown, metrics = agent.metrics()["SOURCE.lines"], agent.metrics()
        assert agent.stop() == 0
    kinds = Counter(line.split()[0] for line in lines)
    assert int(shown["EventUnroutedCount"]) == kinds[b"TRACE"]
    assert int(shown["EventFilteredCount"]) == kinds[b"DEBUG"]
    assert int(metrics["INTERCEPTOR.lines.drop"]["EventFilteredCount"]) == kinds[b"DEBUG"]
    assert int(metrics["INTERCEPTOR.lines.hide"]["EventReceivedCount"]) == len(lines)
    assert int(shown["OptionalEventDropCount"]) == kinds[b"ERROR"]
    assert "optional channel away does not take events" in agent.log
    written = {True: delivered(errors), False: delivered(remaining)}
    for is_error, level in ((True, b"ERROR"), (False, b"INFO")):
        expected = [line.replace(b"secret=hidden", b"secret=h") for line in lines if line.startswith(level)]
        assert Counter(line for line in written[is_error] if b"n=" in line) == Counter(expected)
    numbers = Counter(line for line in written[True] + written[False] if line.isdigit())
    assert numbers == Counter(b"%d" % n for n in range(5000))

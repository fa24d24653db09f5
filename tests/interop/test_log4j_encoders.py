"""Source `log4j` and real encoders: the bytes of a socket equal those in `tests/data/encoders`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from flafka.agent.services.running import until
from flafka.plugins import Event
from tests.interop.encoders import APIS, encoders
from tests.sources.test_log4j import running
from tests.sources.test_log4j_encoders import FIELDS, ROUNDED, recorded


def test_every_encoder(tmp_path: Path) -> None:
    with running(**{f"field.{part}": names for part, names in FIELDS.items()}, timeZone="UTC") as (source, events):
        program = encoders(
            tmp_path,
            f'Socket host="127.0.0.1" port="{source.port}"',
            "net.logstash.logback.appender.LogstashTcpSocketAppender "
            f"<destination>127.0.0.1:{source.port}</destination><includeCallerData>true</includeCallerData>",
            user_timezone="UTC",
        )
        with program:
            times = {name: program.times(api, name) for api, names in APIS.items() for name in names}
            program.end()
            until(lambda: len(events) >= 5 * len(times), f"all events\n{program.log[-2000:]}")
    arrived = defaultdict(list)
    for event in events:
        arrived[event.headers.get("logger")].append(event)
    assert arrived.keys() == times.keys()
    for name, (before, after) in times.items():
        for event in arrived[name]:
            assert before - ROUNDED.get(name, 1) < int(event.headers["timestamp"]) <= after
        assert [normalized(event) for event in arrived[name]] == [normalized(event) for event in recorded(name)], name


def normalized(event: Event) -> tuple[str, dict[str, str]]:
    """Return the event without values that depend on the time, the machine or the Java."""
    body = re.sub(r"(?<=Thread\.java:)\d+", "", event.body.decode())
    return body, {
        name: value
        for name, value in event.headers.items()
        if name not in ("timestamp", "host", "HOSTNAME", "source_host")
    }

"""The source `log4j` under a real log4j 2 with conf/log4j/log4j2-json.xml."""

from __future__ import annotations

from pathlib import Path

from plugins import Event
from tests.interop.jvm import Application
from tests.sources.test_log4j import running
from tests.system.running import free_ports, until

SETTINGS = Path(__file__).parents[2] / "conf" / "log4j" / "log4j2-json.xml"
COUNT = 300


def test_log4j2_with_and_without_its_agent(tmp_path: Path) -> None:
    (port,) = free_ports()
    with Application(
        tmp_path, flafka_host="127.0.0.1", flafka_port=port, log4j2_configurationFile=SETTINGS
    ) as application:

        def log(tag: str, count: int = COUNT) -> None:
            assert application.tell(f"log {count} {tag}") == "logged"

        def arrived(events: list[Event], tag: str, count: int) -> bool:
            wanted = {f"{tag}-log4j2-{number}" for number in range(count)}
            return wanted <= {event.body.decode() for event in list(events)}

        log("down")
        with running(port=str(port)) as (_, events):
            until(lambda: log("hello", 1) or arrived(events, "hello", 1), "the appender to connect")
            log("up")
            until(lambda: arrived(events, "up", COUNT), "all events")
            event = next(event for event in events if event.body == b"up-log4j2-7")
            assert int(event.headers.pop("timestamp")) > 1_600_000_000_000
            assert event.headers == {"level": "WARN", "logger": "app.two", "thread": "main", "user": "jane"}
        log("gone")
        application.end()

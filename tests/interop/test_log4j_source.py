"""Source `log4j` with a real log4j 2 and a real logback, with the settings of conf/log4j."""

from __future__ import annotations

import signal
from pathlib import Path

from flafka.agent.services.running import RunningAgent
from flafka.plugins import Event
from tests.fixtures.ports import free_port
from tests.interop.jvm import Application
from tests.sources.calling import Running

SETTINGS = Path(__file__).parents[2] / "conf" / "log4j"
APIS = ("log4j2", "logback")
COUNT = 300
MANY = 60_000
"""More events than appenders and sockets hold."""


def test_log4j2_and_logback_never_block_their_application(tmp_path: Path) -> None:
    port = free_port()
    application = Application(
        tmp_path,
        flafka_host="127.0.0.1",
        flafka_port=port,
        log4j2_configurationFile=SETTINGS / "log4j2-json.xml",
        logback_configurationFile=SETTINGS / "logback.xml",
    )
    with Running() as collector, application:
        text = f"""
a1.sources = logs
a1.channels = c1
a1.sinks = k1
a1.sources.logs.type = log4j
a1.sources.logs.bind = 127.0.0.1
a1.sources.logs.port = {port}
a1.sources.logs.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = avro
a1.sinks.k1.channel = c1
a1.sinks.k1.hostname = 127.0.0.1
a1.sinks.k1.port = {collector.source.port}
"""

        seen: set[str] = set()
        batches_read = 0

        def arrived(tag: str, count: int = COUNT) -> bool:
            nonlocal batches_read
            for batch in collector.batches[batches_read:]:
                seen.update(event.body.decode() for event in batch)
                batches_read += 1
            return {f"{tag}-{api}-{number}" for api in APIS for number in range(count)} <= seen

        def log(tag: str, count: int = COUNT) -> None:
            """Have the application log; it never blocks."""
            assert application.request(f"log {count} {tag}") == "logged"

        def await_reconnection(agent: RunningAgent, tag: str) -> None:
            """Log until events arrive: the appenders detect broken connections only by losing the first events."""
            agent.until(lambda: log(tag, 1) or arrived(tag, 1), f"the appenders to come\n{application.log[-2000:]}")

        log("down")
        with RunningAgent(tmp_path, text) as agent:
            agent.wait_until_healthy()
            await_reconnection(agent, "hello")
            assert application.request("throw error") == "logged"
            log("up")
            agent.until(lambda: arrived("up"), "all events")
            check(collector.events)
            agent.process.send_signal(signal.SIGSTOP)
            log("stopped", MANY)
            agent.process.send_signal(signal.SIGCONT)
            await_reconnection(agent, "continued")
            agent.stop(signal.SIGKILL)
        log("killed")
        with RunningAgent(tmp_path, text) as agent:
            agent.wait_until_healthy()
            await_reconnection(agent, "again")
            log("end")
            agent.until(lambda: arrived("end"), "all events")
            agent.stop(signal.SIGKILL)
        log("killed for good", MANY)
        application.end()


def check(events: list[Event]) -> None:
    """Check level, logger, thread, time, thread context and stack trace."""
    by_body = {event.body.decode(): event.headers for event in events}
    for api, logger in zip(APIS, ("app.two", "app.three"), strict=True):
        headers = by_body[f"up-{api}-7"]
        assert int(headers.pop("timestamp")) > 1_600_000_000_000
        assert headers.pop("application", None) == ("java" if api == "log4j2" else None)
        assert headers == {"level": "WARN", "logger": logger, "thread": "main", "user": "jane"}
        body, headers = next(item for item in by_body.items() if item[0].startswith(f"error-{api}"))
        assert headers["level"] == "ERROR"
        first, second, *frames = body.splitlines()
        assert (first, second) == (f"error-{api}", "java.lang.IllegalStateException: no")
        assert frames[0].startswith("\tat Application.main(Application.java:")
        assert "Caused by: java.lang.RuntimeException: why" in frames

"""Kafka clients whose rights are revoked and granted again, some of which are made anew."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from flafka.agent.services.running import RunningAgent
from tests.fixtures.secured import Right, SecuredKafka
from tests.system.rebuilding import (
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONS,
    WRITE,
    NumberedRecords,
    agent_text,
    all_rights,
    run_after_kill,
)
from tests.system.running import unique

RESUMED_SECONDS = 60.0
"""Longest time from the grant of a right to the arrival of records that were written before it."""
USER = "flafka"


Denial = tuple[str, Right, str, str]
"""Name, right, failing component (empty: only the log has it), and resource as the error names it."""


def denials(name: str) -> list[Denial]:
    """Return the denials of all rights."""
    return [
        ("the channel's puts", (TOPIC, name, WRITE), "SOURCE.s1", f"Write on topic {name} "),
        ("the channel's reader", (TOPIC, name, READ), "SINK.k1", f"Read on topic {name} "),
        ("the channel's group", (GROUP, name, READ), "SINK.k1", f"Read on consumer group {name} "),
        ("transactions", (TRANSACTIONS, "flafka", WRITE), "SINK.k1", f"Write on transactional id flafka.{name}."),
        ("the sink's topic", (TOPIC, f"{name}.out", WRITE), "SINK.k1", f"Write on topic {name}.out "),
        ("the commit log", (TOPIC, f"{name}.positions", WRITE), "SINK.k1", f"{name}.positions"),
        ("dead letters", (TOPIC, f"{name}.deadletters", WRITE), "SINK.k1", f"Write on topic {name}.deadletters "),
        ("the source's topic", (TOPIC, f"{name}.in", READ), "SOURCE.s1", f"Read on topic {name}.in "),
        ("the source's group", (GROUP, f"{name}.in", READ), "SOURCE.s1", f"Read on consumer group {name}.in "),
        ("the audit", (TOPIC, f"{name}.audit", WRITE), "", f"Write on topic {name}.audit "),
    ]


def deny(
    agent: RunningAgent,
    kafka: SecuredKafka,
    records: NumberedRecords,
    denial: Denial,
    seconds: float,
) -> float:
    """Revoke a right for at least so many seconds, and until the agent reports it; return the seconds to resume."""
    what, right, component, resource = denial
    log_start = len(agent.log)
    kafka.revoke({USER: [right]})
    revoked = time.monotonic()

    def is_reported() -> bool:
        logged = any(f"{USER} lacks" in line and resource in line for line in agent.log[log_start:].splitlines())
        return logged and (not component or resource in agent.failing().get(component, ""))

    agent.until(is_reported, f"the denial of {what} to be reported: {resource}", 60)
    time.sleep(max(0.0, revoked + seconds - time.monotonic()))  # the time of the denial, not a wait for a condition
    written = records.sent
    kafka.grant({USER: [right]})
    granted = time.monotonic()
    agent.until(lambda: records.all_arrived(written), f"records after the denial of {what}", 120)
    resumed = time.monotonic() - granted
    agent.until(lambda: not agent.failing(), f"the end of the denial of {what} to be reported", 60)
    return resumed


def prepare(kafka: SecuredKafka, name: str, user: str = USER) -> None:
    for topic in (f"{name}.in", f"{name}.out", f"{name}.deadletters"):
        kafka.create(topic)
    kafka.grant({user: all_rights(name)})


def test_denials_that_come_and_go_lose_and_double_nothing(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    name, kafka = unique("denied"), secured_kafka
    prepare(kafka, name)
    text = agent_text(name, lambda component, kinds: kafka.client("login", component=component, kinds=kinds))
    with NumberedRecords(kafka, name) as records:
        with RunningAgent(tmp_path, text) as agent:
            agent.until(lambda: records.arrived()[7], "the flow of records")
            seconds = {denial[0]: deny(agent, kafka, records, denial, 0.0) for denial in denials(name)}
            assert max(seconds.values()) < RESUMED_SECONDS, seconds
            # Until here nothing was killed, so that nothing may be doubled.
            records.pause()
            agent.until(records.all_arrived, "all records", 120)
            assert records.doubled() == {"channel": [], "sink": []}
            records.resume()
            revoked = [right for _, right, _, _ in denials(name) if right[1] in (name, f"{name}.out")]
            kafka.revoke({USER: revoked})
            agent.until(lambda: {*agent.failing()} >= {"SOURCE.s1", "SINK.k1"}, "the denials to be reported", 60)
            agent.stop(signal.SIGKILL)
        kafka.grant({USER: revoked})
        assert "another owner" not in run_after_kill(tmp_path, text, records)

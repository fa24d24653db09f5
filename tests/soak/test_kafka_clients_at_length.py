"""Kafka clients that are made anew, at length: long denials of each right, one after the other."""

from __future__ import annotations

from pathlib import Path

from flafka.agent.services.running import RunningAgent
from tests.fixtures.secured import SecuredKafka
from tests.system.rebuilding import NumberedRecords, agent_text
from tests.system.running import unique
from tests.system.test_kafka_clients_rebuilt import RESUMED_SECONDS, denials, deny, prepare

DENIED_SECONDS = 100.0
"""Time of a denial, after which attempts have the longest wait between them."""


def test_long_denials_lose_and_double_nothing(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    name, kafka = unique("denied"), secured_kafka
    prepare(kafka, name)
    text = agent_text(name, lambda component, kinds: kafka.client("login", component=component, kinds=kinds))
    with NumberedRecords(kafka, name) as records, RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: records.arrived()[7], "the flow of records")
        seconds = {denial[0]: deny(agent, kafka, records, denial, DENIED_SECONDS) for denial in denials(name)}
        records.stop()
        agent.until(records.all_arrived, "all records", 120)
        assert records.doubled() == {"channel": [], "sink": []}
        assert agent.stop() == 0
    assert max(seconds.values()) < RESUMED_SECONDS, seconds

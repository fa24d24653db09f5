"""Kafka's own appender for log4j 1, with the settings of conf/log4j: through a topic into the source `kafka`."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.interop.jvm import Log4jApplication, interceptors
from tests.system.outage import all_brokers_silent
from tests.system.running import ROOT, unique

SETTINGS = ROOT / "conf" / "log4j" / "log4j-kafka.xml"
COUNT = 300
MANY = 60_000
"""More events than the appender holds."""


def test_the_kafka_appender_and_the_agents_events(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, out = unique("log4j"), tmp_path / "out"
    servers = kafka_cluster.bootstrap_servers
    out.mkdir()
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
    application = Log4jApplication(
        tmp_path, log4j_configuration=SETTINGS.as_uri(), flafka_brokers=servers, flafka_topic=topic
    )
    configuration = f"""
a1.sources = logs
a1.channels = c1
a1.sinks = k1
a1.sources.logs.type = kafka
a1.sources.logs.channels = c1
a1.sources.logs.kafka.bootstrap.servers = {servers}
a1.sources.logs.kafka.topics = {topic}
a1.sources.logs.kafka.consumer.group.id = {topic}
{interceptors(SETTINGS)}
a1.channels.c1.type = memory
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {out}
a1.sinks.k1.sink.serializer = json
"""

    def arrived() -> dict[str, dict[str, str]]:
        """Return headers by body; of complete lines only, as the sink may be writing."""
        lines = [line for file in out.iterdir() for line in file.read_text().splitlines(keepends=True)]
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return {event["body"]: event["headers"] for event in events}

    def bodies(tag: str, count: int = COUNT) -> set[str]:
        return {f"{tag}-{number}" for number in range(count)}

    def log(tag: str, count: int = COUNT) -> None:
        assert application.request(f"log {count} {tag}") == "logged"

    with application, RunningAgent(tmp_path, configuration) as agent:
        log("before")
        assert application.request("throw error") == "logged"
        agent.until(lambda: len(arrived()) > COUNT, f"what was logged\n{application.log[-2000:]}")
        logged = arrived()
        with all_brokers_silent(kafka_cluster):
            log("silent", MANY)  # the application keeps running
        agent.until(
            lambda: log("hello", 1) or "hello-0" in arrived(), f"the appender to go on\n{application.log[-2000:]}"
        )
        log("after")
        agent.until(lambda: bodies("after") <= arrived().keys(), "what was logged last")
        with all_brokers_silent(kafka_cluster):
            log("silent", MANY)
            application.end()  # it can end as well
        assert agent.stop() == 0
    errors = logged.keys() - bodies("before")
    assert bodies("before") <= logged.keys()
    for headers in logged.values():
        assert {name: headers[name] for name in ("logger", "thread", "topic")} == {
            "logger": "app.one",
            "thread": "main",
            "topic": topic,
        }
    assert {logged[body]["level"] for body in bodies("before")} == {"WARN"}
    (error,) = errors
    assert logged[error]["level"] == "ERROR"
    first, second, *frames = error.splitlines()
    assert (first, second) == ("error", "java.lang.IllegalStateException: no")
    assert frames[0].startswith("\tat Log4jApplication.main(Log4jApplication.java:")
    assert "Caused by: java.lang.RuntimeException: why" in frames

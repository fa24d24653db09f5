"""Source `kafka` with the mock brokers of librdkafka; tests/system has it with real ones."""

import threading

import pytest
from confluent_kafka import Producer

from flafka.sources.kafka import KafkaSource, KafkaSourceConfig, consumer


def produce(brokers, *topics):
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for topic in topics:
        producer.produce(topic, topic)
    assert not producer.flush(60)


def test_a_pattern_of_topics_has_javas_meaning(brokers, monkeypatch):
    monkeypatch.setattr(consumer, "NEW_TOPICS_SECONDS", 0.2)
    produce(brokers, "logs1", "logs22", "logsd", "mylogs1", "logs1x")
    config, problems = KafkaSourceConfig.parse(
        {
            "kafka.bootstrap.servers": brokers,
            "kafka.topics.regex": r"(?:logs|\Qlogs.\E)\d+",
            "kafka.consumer.auto.offset.reset": "earliest",
            "kafka.consumer.session.timeout.ms": "6000",
            "batchDurationMillis": "10",
        }
    )
    assert not problems
    source = KafkaSource(config)
    source.open()
    read = []
    watchdog = threading.Timer(180, source.stopping.set)
    watchdog.start()
    try:
        for batch in source.batches():
            read += [event.headers["topic"] for event in batch]
            source.stored(batch)
            if sorted(read) == ["logs1", "logs22"]:
                produce(brokers, "logs333", "logsd")
            elif len(read) > 2:
                break
    finally:
        watchdog.cancel()
        source.close()
    assert sorted(read) == ["logs1", "logs22", "logs333"]


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_a_pattern_never_selects_kafkas_own_topics(topic):
    config, _ = KafkaSourceConfig.parse({"kafka.bootstrap.servers": "broker:9092", "kafka.topics.regex": ".*"})
    assert config.consumes("logs")
    assert not config.consumes(topic)


def test_an_invalid_pattern_is_an_error():
    config, problems = KafkaSourceConfig.parse({"kafka.topics.regex": "logs("})
    assert config is None
    assert problems[0].option == "kafka.topics.regex"


def flumes(**properties):
    return KafkaSourceConfig.for_type("org.apache.flume.source.kafka.KafkaSource").parse(properties)


def test_default_brokers_are_on_the_hosts_of_zookeeper():
    config, problems = flumes(topic="t", zookeeperConnect="one:2181,two:2181/kafka")
    assert not problems
    assert config.brokers() == {"one:9092", "two:9092"}
    (caution,) = config.warnings()
    assert caution.option == "zookeeperConnect"
    assert "looked for at one:9092,two:9092; name them with kafka.bootstrap.servers" in caution.message
    config, _ = flumes(topic="t", zookeeperConnect="one:2181", **{"kafka.bootstrap.servers": "three:1"})
    assert (config.brokers(), [*config.warnings()]) == ({"three:1"}, [])
    _, problems = flumes(topic="t")
    assert [problem.option for problem in problems] == ["kafka.bootstrap.servers"]

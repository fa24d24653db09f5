"""Metrics that several components on Kafka have; Flume's names where Flume has one."""

from __future__ import annotations

from flafka.plugins.metrics import Metric

GET_TIMER = Metric("KafkaEventGetTimer", "counter", "milliseconds", "Time spent waiting for records from Kafka.")
SEND_TIMER = Metric("KafkaEventSendTimer", "counter", "milliseconds", "Time until Kafka acknowledged what was sent.")
COMMIT_TIMER = Metric("KafkaCommitTimer", "counter", "milliseconds", "Time spent committing offsets.")
ROLLBACKS = Metric(
    *("RollbackCount", "counter", "rollbacks"),
    "Times that undelivered events were read again, or a transaction was aborted.",
)
TOPIC_RECREATED = Metric(
    *("TopicRecreatedCount", "counter", "topics"),
    "Times that the topic was found deleted and created again.",
    "known",
)
RECORDS_LOST = Metric(
    *("RecordLostCount", "counter", "records"),
    "Records that a deleted topic still held undelivered.",
    "known",
)

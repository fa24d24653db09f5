"""Metrics of several components that use Kafka, with Flume's names if Flume has them."""

from __future__ import annotations

from flafka.plugins.metrics import Metric

GET_TIMER = Metric("KafkaEventGetTimer", "counter", "milliseconds", "Time spent waiting for records from Kafka.")
SEND_TIMER = Metric("KafkaEventSendTimer", "counter", "milliseconds", "Time until Kafka acknowledged sent records.")
COMMIT_TIMER = Metric("KafkaCommitTimer", "counter", "milliseconds", "Time spent committing offsets.")
ROLLBACKS = Metric(
    *("RollbackCount", "counter", "rollbacks"),
    "Times that undelivered events were read again, or a transaction was aborted.",
)
TOPIC_RECREATED = Metric(
    *("TopicRecreatedCount", "counter", "topics"),
    "Times that the topic was recreated.",
    "known",
)
RECORDS_LOST = Metric(
    *("RecordLostCount", "counter", "records"),
    "Undelivered records of deleted topics.",
    "known",
)

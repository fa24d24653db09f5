"""Batches that are larger than a transaction of their channel: Flume runs no such source or sink, in silence."""

from __future__ import annotations

from flafka.agent.config import catalogue
from flafka.agent.topology import ComponentSpec

_BATCHES = {
    "source seq": ("batchSize", "1"),
    "source exec": ("batchSize", "20"),
    "source spooldir": ("batchSize", "100"),
    "source multiport_syslogtcp": ("batchSize", "100"),
    "source TAILDIR": ("batchSize", "100"),
    "source org.apache.flume.source.kafka.KafkaSource": ("batchSize", "1000"),
    "sink avro": ("batch-size", "100"),
    "sink thrift": ("batch-size", "100"),
    "sink null": ("batchSize", "100"),
    "sink file_roll": ("sink.batchSize", "100"),
    "sink hdfs": ("hdfs.batchSize", "100"),
    "sink hbase": ("batchSize", "100"),
    "sink asynchbase": ("batchSize", "100"),
    "sink hbase2": ("batchSize", "100"),
    "sink morphline_solr": ("batchSize", "1000"),
    "sink org.apache.flume.sink.kafka.KafkaSink": ("flumeBatchSize", "100"),
}
"""By component of Flume's: the property with its maximum number of events of a batch, and the default."""
_TRANSACTIONS = {"channel memory": "100", "channel file": "10000"}
"""By channel of Flume's with bounded transactions: the default of transactionCapacity."""


def larger_than_transaction(kind: str, spec: ComponentSpec, channel: ComponentSpec) -> tuple[str, str]:
    """Return the property with the batch size of a source or sink, and the reason why Flume does not run it.

    Both are empty if Flume runs it.
    """
    batches = _BATCHES.get(_flume_name(kind, spec))
    default = _TRANSACTIONS.get(_flume_name("channel", channel))
    if batches is None or default is None:
        return "", ""
    batch, capacity = spec.properties.get(*batches), channel.properties.get("transactionCapacity", default)
    # An option that has no effect here may hold any text.
    if not (batch.isdecimal() and capacity.isdecimal()) or int(batch) <= int(capacity):
        return "", ""
    return batches[
        0
    ], f"{batches[0]} = {batch} is more than a transaction of channel {channel.name} holds, {capacity}"


def _flume_name(kind: str, spec: ComponentSpec) -> str:
    known = (catalogue.find(kind, name) for name in (spec.cls.type_name, *spec.cls.aliases))
    return next((f"{kind} {flume.name}" for flume in known if flume), "")

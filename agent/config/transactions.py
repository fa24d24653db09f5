"""Check of batch sizes against the transaction capacity of Flume's channels.

Flume silently does not run a source or sink whose batches are larger than a transaction of its channel.
"""

from __future__ import annotations

from flafka.agent.config import catalogue
from flafka.agent.topology import ComponentSpec

_BATCH_SIZES = {
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
"""Option for the maximum number of events of a batch, and its default, by Flume component."""
_TRANSACTION_CAPACITIES = {"channel memory": "100", "channel file": "10000"}
"""Default of transactionCapacity, in events, by Flume channel."""


def oversized_batch(kind: str, spec: ComponentSpec, channel: ComponentSpec) -> tuple[str, str]:
    """Return the option with the batch size of a source or sink, and the reason why Flume does not run it.

    Flume does not if the batch is larger than the channel's transaction capacity. Both texts are empty if Flume runs
    the component. `kind` is "source" or "sink".
    """
    batch_option = _BATCH_SIZES.get(_flume_name(kind, spec))
    default = _TRANSACTION_CAPACITIES.get(_flume_name("channel", channel))
    if batch_option is None or default is None:
        return "", ""
    batch, capacity = spec.properties.get(*batch_option), channel.properties.get("transactionCapacity", default)
    # Options without effect are not validated, and may hold any text.
    if not (batch.isdecimal() and capacity.isdecimal()) or int(batch) <= int(capacity):
        return "", ""
    option = batch_option[0]
    return option, f"{option} = {batch} is larger than the transactionCapacity of channel {channel.name}, {capacity}"


def _flume_name(kind: str, spec: ComponentSpec) -> str:
    known = (catalogue.find_type(kind, name) for name in (spec.cls.type_name, *spec.cls.aliases))
    return next((f"{kind} {flume.name}" for flume in known if flume), "")

"""Types of Apache Flume 1.11. An unsupported type gets its own error, not one about spelling."""

from __future__ import annotations

import difflib
from typing import NamedTuple


class FlumeType(NamedTuple):
    """Component type of Flume."""

    alias: str
    """Name in configurations; empty if Flume has only the class name."""
    java: str
    alternative: str = ""
    """For an unsupported type: the replacement, as an instruction."""

    @property
    def name(self) -> str:
        """Name in configurations, or the class name if there is none."""
        return self.alias or self.java


_LEGACY = (
    "let its senders, agents of Flume 0.9, send to a Flume 1, and let an `avro` sink of that send to type = avro here"
)
_ALTERNATIVES = {
    "org.apache.flume.source.jms.JMSSource": "carry the queue into a Kafka topic, with Kafka Connect for "
    "instance, and write type = kafka; or write a source in Python: `agent template source` prints one to start from",
    "org.apache.flume.source.scribe.ScribeSource": "let its senders write files or send syslog, and write "
    "type = taildir or syslogtcp",
    "org.apache.flume.source.avroLegacy.AvroLegacySource": _LEGACY,
    "org.apache.flume.source.thriftLegacy.ThriftLegacySource": _LEGACY,
    "org.apache.flume.channel.jdbc.JdbcChannel": "write type = file, which is as durable on one disk, or kafka",
    "org.apache.flume.sink.irc.IRCSink": "write a sink in Python: `agent template sink` prints one to start from",
    "org.apache.flume.sink.hive.HiveSink": "write type = hdfs with hdfs.fileType = DataStream, and make an "
    "external table in Hive over hdfs.path: with ROW FORMAT DELIMITED it reads what serializer = DELIMITED is for, "
    "with a JSON SerDe what serializer = JSON is for; escapes in hdfs.path take the place of those in hive.partition",
    "org.apache.kudu.flume.sink.KuduSink": "write a sink in Python with the client of Kudu: `agent template sink` "
    "prints one to start from",
    "org.apache.flume.configfilter.HadoopCredentialStoreConfigFilter": "keep its passwords in files of their own and "
    "write ${file:/run/secrets/NAME}, or write type = external with a command that prints the value of a key",
}
"""Replacement of each type that may be unsupported, by class, as an instruction."""


def _types(package: str, **aliases: str) -> list[FlumeType]:
    classes = {alias: f"{package}.{java}" for alias, java in aliases.items()}
    return [FlumeType(alias, java, _ALTERNATIVES.get(java, "")) for alias, java in classes.items()]


def _classes(*names: str) -> list[FlumeType]:
    return [FlumeType("", name, _ALTERNATIVES.get(name, "")) for name in names]


FLUME_TYPES: dict[str, list[FlumeType]] = {
    "source": [
        *_types(
            "org.apache.flume.source",
            seq="SequenceGeneratorSource",
            netcat="NetcatSource",
            netcatudp="NetcatUdpSource",
            exec="ExecSource",
            avro="AvroSource",
            thrift="ThriftSource",
            syslogtcp="SyslogTcpSource",
            multiport_syslogtcp="MultiportSyslogTCPSource",
            syslogudp="SyslogUDPSource",
            spooldir="SpoolDirectorySource",
            http="http.HTTPSource",
            jms="jms.JMSSource",
            TAILDIR="taildir.TaildirSource",
        ),
        *_classes(
            "org.apache.flume.source.kafka.KafkaSource",
            "org.apache.flume.source.StressSource",
            "org.apache.flume.source.scribe.ScribeSource",
            "org.apache.flume.source.twitter.TwitterSource",
            "org.apache.flume.source.avroLegacy.AvroLegacySource",
            "org.apache.flume.source.thriftLegacy.ThriftLegacySource",
        ),
    ],
    "channel": [
        *_types(
            "org.apache.flume.channel",
            memory="MemoryChannel",
            file="file.FileChannel",
            jdbc="jdbc.JdbcChannel",
            SPILLABLEMEMORY="SpillableMemoryChannel",
        ),
        *_classes("org.apache.flume.channel.kafka.KafkaChannel", "org.apache.flume.channel.PseudoTxnMemoryChannel"),
    ],
    "sink": [
        *_types(
            "org.apache.flume.sink",
            null="NullSink",
            logger="LoggerSink",
            file_roll="RollingFileSink",
            hdfs="hdfs.HDFSEventSink",
            irc="irc.IRCSink",
            avro="AvroSink",
            thrift="ThriftSink",
            elasticsearch="elasticsearch.ElasticSearchSink",
            hbase="hbase.HBaseSink",
            asynchbase="hbase.AsyncHBaseSink",
            hbase2="hbase2.HBase2Sink",
            morphline_solr="solr.morphline.MorphlineSolrSink",
            hive="hive.HiveSink",
            http="http.HttpSink",
        ),
        *_classes("org.apache.flume.sink.kafka.KafkaSink", "org.apache.kudu.flume.sink.KuduSink"),
    ],
    "interceptor": [
        *_types(
            "org.apache.flume.interceptor",
            timestamp="TimestampInterceptor$Builder",
            host="HostInterceptor$Builder",
            static="StaticInterceptor$Builder",
            regex_filter="RegexFilteringInterceptor$Builder",
            regex_extractor="RegexExtractorInterceptor$Builder",
            remove_header="RemoveHeaderInterceptor$Builder",
            search_replace="SearchAndReplaceInterceptor$Builder",
        ),
        *_classes(
            "org.apache.flume.sink.solr.morphline.UUIDInterceptor$Builder",
            "org.apache.flume.sink.solr.morphline.MorphlineInterceptor$Builder",
        ),
    ],
    "selector": _types(
        "org.apache.flume.channel",
        replicating="ReplicatingChannelSelector",
        multiplexing="MultiplexingChannelSelector",
        load_balancing="LoadBalancingChannelSelector",
    ),
    "sink processor": _types(
        "org.apache.flume.sink",
        default="DefaultSinkProcessor",
        failover="FailoverSinkProcessor",
        load_balance="LoadBalancingSinkProcessor",
    ),
    "serializer": [
        *_types(
            "org.apache.flume.serialization",
            TEXT="BodyTextEventSerializer$Builder",
            HEADER_AND_TEXT="HeaderAndBodyTextEventSerializer$Builder",
            AVRO_EVENT="FlumeEventAvroEventSerializer$Builder",
        ),
        *_classes(
            "org.apache.flume.sink.hdfs.AvroEventSerializer$Builder",
            "org.apache.flume.sink.hbase.SimpleHbaseEventSerializer",
            "org.apache.flume.sink.hbase.RegexHbaseEventSerializer",
            "org.apache.flume.sink.hbase.SimpleAsyncHbaseEventSerializer",
            "org.apache.flume.sink.hbase2.SimpleHBase2EventSerializer",
            "org.apache.flume.sink.hbase2.RegexHBase2EventSerializer",
        ),
    ],
    "deserializer": [
        *_types(
            "org.apache.flume.serialization", LINE="LineDeserializer$Builder", AVRO="AvroEventDeserializer$Builder"
        ),
        *_classes("org.apache.flume.sink.solr.morphline.BlobDeserializer$Builder"),
    ],
    "config filter": _types(
        "org.apache.flume.configfilter",
        env="EnvironmentVariableConfigFilter",
        external="ExternalProcessConfigFilter",
        hadoop="HadoopCredentialStoreConfigFilter",
    ),
}


def spelling_hint(kind: str, written: str) -> str:
    """Return `, did you mean 'x'?` if `written` resembles the class name of a type of Flume; else an empty text."""
    known = [flume_type.java for flume_type in FLUME_TYPES[kind]]
    matches = difflib.get_close_matches(written, known, n=1, cutoff=0.95) if written.startswith("org.apache.") else []
    return f", did you mean {matches[0]!r}?" if matches else ""


def find_type(kind: str, written: str) -> FlumeType | None:
    """Return Flume's type with this alias or class name, in any case; None if Flume has none.

    A final `$Builder` of a class name is optional. Unsupported types are included.
    """
    name = written.lower().removesuffix("$builder")
    for known in FLUME_TYPES[kind]:
        if name and name in (known.alias.lower(), known.java.lower().removesuffix("$builder")):
            return known
    return None

"""The types Apache Flume 1.11 knows, so that one not built here is named as such and not as a typing error."""

from __future__ import annotations

from typing import NamedTuple


class FlumeType(NamedTuple):
    """One of Flume's types."""

    alias: str
    """As users write it; empty where Flume has the class name only."""
    java: str
    """Its class."""

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        return self.alias or self.java


def _types(package: str, **aliases: str) -> list[FlumeType]:
    return [FlumeType(alias, f"{package}.{java}") for alias, java in aliases.items()]


def _classes(*names: str) -> list[FlumeType]:
    return [FlumeType("", name) for name in names]


FLUME: dict[str, list[FlumeType]] = {
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


def find(kind: str, written: str) -> FlumeType | None:
    """Flume's type of that alias or class name, in any case; a `$Builder` at its end may be left out."""
    name = written.lower().removesuffix("$builder")
    for known in FLUME[kind]:
        if name and name in (known.alias.lower(), known.java.lower().removesuffix("$builder")):
            return known
    return None

"""Built-in sinks, each in the module of its type name."""

from flafka.plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """Return the built-in sinks."""
    from flafka.sinks.avro import AvroSink
    from flafka.sinks.elasticsearch import ElasticsearchSink
    from flafka.sinks.file_roll import FileRollSink
    from flafka.sinks.hbase import HBaseSink
    from flafka.sinks.hdfs import HdfsSink
    from flafka.sinks.http import HttpSink
    from flafka.sinks.kafka import KafkaSink
    from flafka.sinks.logger import LoggerSink
    from flafka.sinks.null import NullSink
    from flafka.sinks.solr import SolrSink
    from flafka.sinks.spark import SparkSink
    from flafka.sinks.thrift import ThriftSink

    return [
        AvroSink,
        ElasticsearchSink,
        FileRollSink,
        HBaseSink,
        HdfsSink,
        HttpSink,
        KafkaSink,
        LoggerSink,
        NullSink,
        SolrSink,
        SparkSink,
        ThriftSink,
    ]

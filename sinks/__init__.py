"""Where events go: one sink a module, named by its type."""

from plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """The built-in sinks."""
    from sinks.avro import AvroSink
    from sinks.elasticsearch import ElasticsearchSink
    from sinks.file_roll import FileRollSink
    from sinks.hbase import HBaseSink
    from sinks.hdfs import HdfsSink
    from sinks.http import HttpSink
    from sinks.kafka import KafkaSink
    from sinks.logger import LoggerSink
    from sinks.null import NullSink
    from sinks.solr import SolrSink
    from sinks.spark import SparkSink
    from sinks.thrift import ThriftSink

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

"""Elasticsearch sink: writes each event to a document, which a redelivery replaces."""

from flafka.sinks.elasticsearch.config import ElasticsearchConfig
from flafka.sinks.elasticsearch.sink import ElasticsearchSink

__all__ = ["ElasticsearchConfig", "ElasticsearchSink"]

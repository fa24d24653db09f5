"""The Elasticsearch sink: each event a document, replaced by itself when it is delivered again."""

from flafka.sinks.elasticsearch.config import ElasticsearchConfig
from flafka.sinks.elasticsearch.sink import ElasticsearchSink

__all__ = ["ElasticsearchConfig", "ElasticsearchSink"]

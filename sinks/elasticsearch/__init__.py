"""The Elasticsearch sink: each event a document, replaced by itself when it is delivered again."""

from sinks.elasticsearch.config import ElasticsearchConfig
from sinks.elasticsearch.sink import ElasticsearchSink

__all__ = ["ElasticsearchConfig", "ElasticsearchSink"]

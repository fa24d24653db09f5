"""The Solr sink: each event a document, replaced by itself when it is delivered again."""

from flafka.sinks.solr.config import SolrConfig
from flafka.sinks.solr.sink import SolrSink

__all__ = ["SolrConfig", "SolrSink"]

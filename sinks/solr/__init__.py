"""The Solr sink: each event a document, replaced by itself when it is delivered again."""

from sinks.solr.config import SolrConfig
from sinks.solr.sink import SolrSink

__all__ = ["SolrConfig", "SolrSink"]

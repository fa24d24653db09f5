"""Solr sink: writes each event to a document, which a redelivery replaces."""

from flafka.sinks.solr.config import SolrConfig
from flafka.sinks.solr.sink import SolrSink

__all__ = ["SolrConfig", "SolrSink"]

"""Compatibility notes of the Solr sink. Flume's always runs a morphline."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote
from flafka.plugins.morphline.options import MORPHLINE_COMPATIBILITY

_OPTION = "morphlineFile"
SOLR = (
    CompatibilityNote(
        flume="`solrLocator` with `zkHost` finds the servers of the collection in ZooKeeper at all times",
        here="the servers are read from ZooKeeper at the start; `url` names one instead. A morphline loads into one "
        "collection",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="an event with which the morphline fails is lost, with a line in the log",
        here="it becomes a dead letter; documents that were made before the failure are delivered, as in Flume",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="an event with which a command raises an error stops the sink forever, or is lost with "
        "`isProductionMode`",
        here="it becomes a dead letter in both modes",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="`generateUUID` gives a new identifier each time, so that a redelivery duplicates documents",
        here="the identifier is derived from the event's id: a redelivery replaces the document",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="`sanitizeUnknownSolrFields` downloads `schema.xml`",
        here="the sink reads the schema from Solr when it starts",
        option=_OPTION,
    ),
    *MORPHLINE_COMPATIBILITY,
)

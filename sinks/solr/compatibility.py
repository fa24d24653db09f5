"""What the sink `solr` does otherwise than Flume's, which always runs a morphline."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote
from flafka.plugins.morphline.options import DIFFERENCES

_OPTION = "morphlineFile"
SOLR = (
    CompatibilityNote(
        flume="`solrLocator` with `zkHost` loads into the collection by ZooKeeper",
        here="ZooKeeper is asked which Solr servers are up; `url` names one instead. A morphline loads into one "
        "collection",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="an event with which the morphline fails is lost, with a line in the log",
        here="it becomes a dead letter; documents that were made of it before are delivered, as in Flume",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="an event with which a command raises an error stops the sink for ever, or is lost with "
        "`isProductionMode`",
        here="it becomes a dead letter in both modes",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="`generateUUID` gives another identifier each time, so that redeliveries are there twice",
        here="the identifier is made of the event's id: a redelivery replaces itself",
        option=_OPTION,
    ),
    CompatibilityNote(
        flume="`sanitizeUnknownSolrFields` downloads `schema.xml`",
        here="Solr is asked for its schema when the sink opens",
        option=_OPTION,
    ),
    *DIFFERENCES,
)

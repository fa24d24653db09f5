"""Real servers (Kafka, HDFS, HBase, Solr, Spark) from locked jars, without root, containers or Maven."""


class ServiceError(Exception):
    """A server or its jars could not be made ready; the message tells the user what to do."""

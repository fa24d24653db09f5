"""Real servers (Kafka, HDFS, HBase, Solr, Spark, YARN) from locked jars, without root, containers or Maven."""

from flafka.agent.jvm import ServiceError

__all__ = ["ServiceError"]

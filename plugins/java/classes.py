"""Error messages for a configuration that names a user's Java class."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

_CLASS_NAME = re.compile(r"[a-zA-Z_]\w*(?:\.[a-zA-Z_$][\w$]*)+")


class JavaClassFamily(NamedTuple):
    """Widely used Java classes, and their replacement."""

    examples: str
    """Class names for the documentation."""
    pattern: str
    """Regular expression to search in a class name, ignoring case."""
    replacement: str
    """Replacement: clauses of a sentence."""


FAMILIES = (
    JavaClassFamily(
        "Twitter: `org.apache.flume.source.twitter.TwitterSource`, `com.cloudera.flume.source.TwitterSource` and "
        "others",
        r"twitter\w*source",
        "it reads Twitter's streaming API of version 1.1, which was switched off in 2023: a source in Python with "
        "`tweepy`'s `StreamingClient` reads X's API of version 2, for which X charges; to try a pipeline out, put "
        "stored "
        "tweets through `exec` or `taildir`",
    ),
    JavaClassFamily(
        "Cygnus: `com.telefonica.iot.cygnus.…`",
        r"\.cygnus\.",
        "Cygnus is a program of its own on top of Flume: keep it running, and let an `avro` sink of it send to an "
        "`avro` "
        "source here",
    ),
    JavaClassFamily(
        "Kafka, before Flume had it: `org.apache.flume.plugins.KafkaSource`, `KafkaSink`",
        r"kafka(source|sink)$",
        "write type = org.apache.flume.source.kafka.KafkaSource or org.apache.flume.sink.kafka.KafkaSink, with "
        "`kafka.bootstrap.servers` and `kafka.topics` or `kafka.topic`",
    ),
    JavaClassFamily(
        "Followed files: `com.taomee.tms.flume.source.TaildirSource`, `uk.co.probablyfine.flume.TailerSource`",
        r"tail(dir|er)?source$",
        "write type = taildir, with `filegroups`; `multiline.pattern` joins lines",
    ),
    JavaClassFamily(
        "RabbitMQ: `org.apache.flume.source.rabbitmq.RabbitMQSource`, "
        "`com.aweber.flume.source.rabbitmq.RabbitMQSource`, "
        "`…RabbitMQSink`",
        r"rabbitmq",
        "take a source or sink with `pika`: acknowledge a delivery in `stored`, use publisher confirms in `flush`; "
        "or "
        "Kafka Connect's RabbitMQ connector into a topic, and the source `kafka`",
    ),
    JavaClassFamily(
        "SQL: `org.keedio.flume.source.SQLSource`, `com.stratio.ingestion.sink.jdbc.JDBCSink`, "
        "`com.citic.source.canal.CanalSource`",
        r"\b\w*(sql|oracle|mariadb)\w*(source|sink)|jdbc|canal",
        "take a source or sink with `SQLAlchemy`: keep the last key in a file in `stored`, insert by "
        "`batch.id(row)` in "
        "`flush`; to follow a database's changes: Debezium into a topic, and the source `kafka`",
    ),
    JavaClassFamily(
        "FTP, SFTP: `org.keedio.flume.source.ftp.source.Source`",
        r"\.s?ftp\.",
        "fetch the files with `lftp -c mirror` or `rclone` into a directory, and follow them with `taildir` or "
        "`spooldir`; or take a source with `ftplib` or `paramiko`",
    ),
    JavaClassFamily(
        "Kinesis, S3: `com.amazonaws.services.kinesis.flume.KinesisSource`, `KinesisSink`, `…FlumeAwsS3`",
        r"kinesis|\bs3\b|awss3",
        "take a source or sink with `boto3`: keep the shards' sequence numbers in `stored`, use `put_records` in "
        "`flush`; for S3, deliver into HDFS and copy with `hadoop distcp`",
    ),
    JavaClassFamily(
        "Kite: `org.apache.flume.sink.kite.DatasetSink`",
        r"\.kite\.",
        "write type = hdfs with `hdfs.fileType = DataStream` and `serializer = PARQUET`, or `AVRO_BODY` for bodies "
        "that "
        "are Avro; `%Y/%m/%d` and `%{header}` in `hdfs.path` are the partitions",
    ),
    JavaClassFamily(
        "Cassandra, MongoDB, …: `com.stratio.ingestion.sink.cassandra.CassandraSink`, `…mongodb.MongoSink`",
        r"cassandra|mongo",
        "take a sink with that database's client that writes by `batch.id(row)`, so that a redelivery replaces; or "
        "the "
        "sink `kafka`, and Kafka Connect",
    ),
    JavaClassFamily(
        "Spark: `org.apache.spark.streaming.flume.sink.SparkSink`",
        r"\.spark\.",
        "Spark 3 has removed its end of that: write type = spark, with a processor, or type = kafka, from which "
        "Spark reads",
    ),
    JavaClassFamily(
        "Redis: `com.flumeng.plugins.sink.RedisSink`",
        r"redis",
        "take a source or sink with `redis`: `XADD` in `flush`, `XREADGROUP` and `XACK` in `stored`",
    ),
    JavaClassFamily(
        "REST: `com.stratio.ingestion.source.rest.RestSource`",
        r"restsource",
        "take a source with `requests`, or `exec` with `curl` in a loop",
    ),
)
"""Known families. The first with a match in a class name applies."""


def is_java_class(name: str) -> bool:
    """Return True if the name has the form of a Java class name with package."""
    return _CLASS_NAME.fullmatch(name) is not None


def java_class_error(kind: str, name: str) -> str:
    """Return an error message that names the class and its replacement.

    `kind` is the kind of the class: `source`, `sink`, `interceptor`, `channel`, `serializer`, `handler` and so on.
    """
    if kind in ("source", "channel", "sink", "interceptor"):
        article = "an" if kind == "interceptor" else "a"
        command = f"agent template {kind} {shlex.quote(name)}"  # $Builder is a variable to a shell
        remedy = f"{article} {kind} in Python may have its name: `{command}` prints one to start from"
        remedy = f"{_BUILT_IN[kind]}; {remedy}" if kind in _BUILT_IN else remedy
    elif kind in _BUILT_IN:
        remedy = _BUILT_IN[kind]
    else:
        remedy = f"{_REPLACEMENTS.get(kind, _BODIES)}: `agent template interceptor` prints one to start from"
    family = next((family for family in FAMILIES if re.search(family.pattern, name, re.IGNORECASE)), None)
    replacement = f"{family.replacement}; " if family else ""
    return f"the {kind} {name} is a Java class, which cannot run here; {replacement}{remedy}; {_MORE}"


_MORE = "docs/migrating-from-flume.md says more"
_BODIES = "an interceptor in Python can make bodies of what it writes, for serializer = TEXT"
_BUILT_IN = {
    "channel": "write type = file, which is durable on one disk, or kafka, or memory",
    "sink processor": "write processor.type = failover or load_balance",
    "selector of a load_balance processor": "write processor.selector = round_robin or random",
}
_REPLACEMENTS = {
    "channel selector": "write selector.type = multiplexing, and an interceptor in Python that sets the header it "
    "reads",
    "serializer of regex_extractor": "leave its type out, and let an interceptor in Python change the header",
    "handler": "take handler = blob or ndjson, and an interceptor in Python that makes events of the bodies",
    "deserializer": "take deserializer = LINE, and an interceptor in Python that makes events of the lines",
    "serializer of Elasticsearch": "an interceptor in Python can make the headers that become fields",
    "index name builder of Elasticsearch": "an interceptor in Python can make a header that indexName names",
    "serializer of HBase": "an interceptor in Python can make headers, for rowKey and serializer.depositHeaders",
}

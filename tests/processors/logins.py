"""Processors of the tests, written as a user would."""

from pyspark.sql import functions as F

from flafka.plugins.dataframe import avro_body, json_body

SCHEMA = "user string, outcome string, at timestamp"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
    ],
}


VISIT = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}


def failures(events, options):
    """Return failed logins of a user within a minute, at least `limit` of them."""
    logins = events.withColumn("login", json_body(SCHEMA)).select("login.*").where("outcome = 'failed'")
    counted = logins.withWatermark("at", "10 seconds").groupBy(F.window("at", "1 minute"), "user").count()
    return counted.where(F.col("count") >= int(options["limit"])).select("window.start", "user", "count")


def joined(events, options):
    """Return requests with their answers, joined by the header `id`."""
    events = events.select(
        F.col("headers")["id"].alias("id"), F.col("headers")["kind"].alias("kind"), "body", "timestamp"
    ).withWatermark("timestamp", "10 seconds")
    requests = events.where("kind = 'request'").alias("q")
    answers = events.where("kind = 'answer'").alias("a")
    within = F.expr("q.id = a.id AND a.timestamp BETWEEN q.timestamp AND q.timestamp + INTERVAL 5 SECONDS")
    return requests.join(answers, within).select("q.id", F.col("a.body").alias("answer"))


def orders(events, options):
    return events.withColumn("order", avro_body(ORDER))


def visits(events, options):
    return events.select(avro_body(VISIT).alias("visit"))


def both(events, options):
    """Return every event unchanged, in capitals, and the number of events of each host."""
    upper = events.withColumn("body", F.upper(F.col("body").cast("string"))).withColumn(
        "key", F.col("headers")["host"]
    )
    return {
        "capitals": upper,
        "rows": events.select("topic", "partition", "offset", "index", "headers", "body"),
    }


def again(events, options):
    return both(events, options)


def raises(events, options):
    return events.where(F.col("nothing") == 1)


def fails_later(events, options):
    return events.withColumn("body", F.udf(lambda body: 1 // 0, "int")("body"))


def fails_in_a_batch(events, options):
    def lengths(frames):
        for frame in frames:
            frame["body"] = [1 // (len(body) - 5) for body in frame["body"]]
            yield frame[["body"]]

    return events.mapInPandas(lengths, "body int")


def wrong(events, options):
    return events.columns


def leaves(events, options):
    raise SystemExit(3)


def one_argument(events):
    return events

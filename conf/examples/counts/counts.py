"""Number of messages of each host and severity, minute by minute."""

from pyspark.sql import functions as F

SEVERITIES = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"]


def per_minute(events, options):
    """An event for each host, severity and minute, and another whenever its count has grown (`mode = update`)."""
    header = F.col("headers")
    sent = F.timestamp_millis(header["timestamp"].try_cast("bigint"))
    messages = events.select(
        # A host whose clock is ahead must not close everyone's minutes: nothing is sent after it came.
        F.coalesce(F.least(sent, "timestamp"), "timestamp").alias("at"),
        F.coalesce(header["host"], F.lit("unknown")).alias("host"),
        F.get(F.array(*map(F.lit, SEVERITIES)), header["Severity"].try_cast("int")).alias("severity"),
    )
    counted = (
        messages.withWatermark("at", options.get("late", "10 minutes"))
        .groupBy(F.window("at", "1 minute"), "host", "severity")
        .count()
        .withColumn("minute", F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'"))
    )
    names = ["host", "severity", "minute", "count"]
    return counted.select(
        F.concat_ws(" ", "host", "severity", "minute").alias("key"),  # one partition: a later count stays the later
        F.create_map(*(part for name in names for part in (F.lit(name), F.col(name).cast("string")))).alias(
            "headers"
        ),
        F.lit("").alias("body"),
    )

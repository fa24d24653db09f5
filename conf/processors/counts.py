"""Processors of conf/flafka.conf: PySpark functions over the stream of events."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

SYSLOG = ["EMERGENCY", "ALERT", "CRITICAL", "ERROR", "WARN", "NOTICE", "INFO", "DEBUG"]
"""By the number in syslog's header Severity; log4j's level is a name already."""


def by_level(events: Any, options: dict[str, str]) -> Any:
    """Number of events of each level from each application or host, minute by minute.

    With `mode = update` a row comes whenever its count has changed, and holds all of it: under its key, the last one
    counts. A minute's counts are forgotten, here, 10 minutes later.
    """
    severity = F.expr("try_cast(headers['Severity'] AS int)")
    level = F.coalesce(F.expr("headers['level']"), F.get(F.array(*map(F.lit, SYSLOG)), severity), F.lit("-"))
    who = F.coalesce(F.expr("headers['application']"), F.expr("headers['host']"), F.lit("-"))
    counted = (
        events.withWatermark("timestamp", "10 minutes")
        .groupBy(F.window("timestamp", "1 minute"), who.alias("who"), level.alias("level"))
        .count()
    )
    minute = F.date_format("window.start", "yyyy-MM-dd HH:mm")
    return counted.select(
        F.concat_ws(" ", minute, "who", "level").alias("key"),
        F.create_map(F.lit("minute"), minute, F.lit("who"), "who", F.lit("level"), "level").alias("headers"),
        F.col("count").alias("body"),
    )

"""Compares what was put into each topic with what each consumer group took out of it, and alerts on differences."""

import msgspec
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from flafka.agent.audit.sums import Ledger, decode_report


def alerts(events, options):
    """Yield a row for each minute and group that differ, `grace` seconds after the last report on that minute.

    If they balance later, one more row has an empty `difference`.
    """
    grace = int(float(options["grace"]) * 1000)

    def compare(topic, frames, state):
        ledger = msgspec.json.decode(state.get[0], type=Ledger) if state.exists else Ledger()
        reports = pd.concat(frames).sort_values("offset")
        for event in reports.itertuples():
            if report := decode_report(event.body):
                ledger.add(report, event.at)
        found = ledger.new_discrepancies(int(reports["at"].max()) - grace)  # agents report every 10 s, events or none
        state.update((msgspec.json.encode(ledger).decode(),))
        rows = [(*topic, d.minute, d.stage, d.put.events, d.had.events, d.text) for d in found]
        yield pd.DataFrame(rows, columns=["topic", "minute", "stage", "put", "had", "difference"])

    topic = F.get_json_object(F.col("body").cast("string"), "$.topic").alias("topic")
    reports = events.select(topic, "offset", F.unix_millis("timestamp").alias("at"), "body").where(
        "topic IS NOT NULL"
    )
    return (
        reports.groupBy("topic")
        .applyInPandasWithState(
            compare,
            outputStructType="topic string, minute long, stage string, put long, had long, difference string",
            stateStructType="ledger string",
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
        .withColumn("minute", F.timestamp_millis("minute"))
    )

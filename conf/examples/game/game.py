"""Suspicious trades of a game: from another place than the player's last login, or many within seconds."""

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from flafka.plugins.dataframe import json_body

SCHEMA = "user string, at timestamp, place string, item string"


def suspicious(events, options):
    """Alerts of both kinds, each an output of its own; `limit` trades within `window` are too many."""
    told = events.select(F.col("headers")["topic"].alias("kind"), json_body(SCHEMA).alias("told"))
    actions = told.select("kind", "told.*").where("user IS NOT NULL AND at IS NOT NULL")
    return {
        "elsewhere": actions.groupBy("user").applyInPandasWithState(
            trades_elsewhere,
            outputStructType="user string, at timestamp, reason string",
            stateStructType="place string, since timestamp",
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        ),
        "hurried": actions.where("kind = 'trades'")
        .withWatermark("at", options["late"])
        .groupBy("user", F.window("at", options["window"]).alias("within"))
        .count()
        .where(F.col("count") >= int(options["limit"]))
        .select(
            "user", "within.start", F.format_string("%d trades within " + options["window"], "count").alias("reason")
        ),
    }


def trades_elsewhere(user, frames, state):
    """Return the suspicious trades of one player. The state is the place and the time of the latest login."""
    place, since = state.get if state.exists else (None, pd.Timestamp.min)
    alerts = []
    for action in pd.concat(frames).sort_values(["at", "kind"]).itertuples():  # at the same time, the login is first
        if action.kind == "logins" and action.at >= since:
            place, since = action.place, action.at
        elif action.kind == "trades" and action.at >= since and place not in (None, action.place):
            alerts.append((*user, action.at, f"a trade from {action.place} after a login from {place}"))
    state.update((place, since))
    yield pd.DataFrame(alerts, columns=["user", "at", "reason"])

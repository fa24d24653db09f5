"""Throttle of replication during a partition reassignment, as `kafka-reassign-partitions.sh` sets it.

Each broker concerned has a rate, and each topic the replicas for which it counts (KIP-73).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from flafka.agent.cli.kafka_admin import MissingRight
from flafka.agent.cli.replica_plan import ReplicaMove

LEADERS, FOLLOWERS = "leader.replication.throttled", "follower.replication.throttled"
RATES = (f"{LEADERS}.rate", f"{FOLLOWERS}.rate")
"""Settings of a broker, in bytes per second."""
THROTTLED = (f"{LEADERS}.replicas", f"{FOLLOWERS}.replicas")
"""Settings of a topic, as in `0:1,0:2`: partition and broker."""
_ALWAYS_SET = "num.io.threads"
"""Setting that a broker always shows to a user who may see its settings."""
_OWN_SOURCES = ("DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG")
"""Sources of a setting that one topic or one broker has."""

Settings = Mapping[tuple[str, str], Mapping[str, str | None]]
"""Changes by kind (`TOPIC` or `BROKER`) and name of the resource; None deletes a setting."""


def throttle_settings(moves: Sequence[ReplicaMove], rate: int) -> Settings:
    """Return the settings that limit the copies of these moves to so many bytes per second on each broker."""
    rates: dict[str, str | None] = dict.fromkeys(RATES, str(rate))
    brokers = sorted({broker for move in moves for broker in (*move.replicas, *move.new_replicas)})
    pairs: dict[str, dict[str, list[str]]] = {}
    for move in moves:
        of_topic = pairs.setdefault(move.topic, {name: [] for name in THROTTLED})
        for name, copying in zip(THROTTLED, (move.replicas, move.added), strict=True):
            of_topic[name] += [f"{move.partition}:{broker}" for broker in copying]
    return {("BROKER", str(broker)): rates for broker in brokers} | {
        ("TOPIC", topic): {name: ",".join(named) for name, named in of_topic.items()}
        for topic, of_topic in pairs.items()
    }


def find_throttles(admin: Any, brokers: Iterable[int]) -> Settings | None:
    """Return the changes that delete all throttles of topics and of these brokers.

    None if this user may not see the settings of brokers.
    """
    from kafka.admin import ConfigResource

    topics = [topic["name"] for topic in admin.describe_topics()]
    resources = [ConfigResource("TOPIC", name, dict.fromkeys(THROTTLED)) for name in topics]
    resources += [ConfigResource("BROKER", str(broker), dict.fromkeys((*RATES, _ALWAYS_SET))) for broker in brokers]
    found = admin.describe_configs(resources, config_filter="all") if resources else {}
    if not all(found.get("broker", {"": True}).values()):  # a broker that refuses the request has no settings
        return None
    changes: dict[tuple[str, str], dict[str, str | None]] = {}
    for kind, by_name in found.items():
        for name, settings in by_name.items():
            names = settings.keys() & {*RATES, *THROTTLED}
            if throttled := sorted(key for key in names if settings[key]["config_source"] in _OWN_SOURCES):
                changes[kind.upper(), name] = dict.fromkeys(throttled)
    return changes


def apply(admin: Any, settings: Settings) -> None:
    """Change these settings. Raises ClickException if brokers refuse one, and MissingRight."""
    from kafka.admin import AlterConfigOp, ConfigResource

    resources = [
        ConfigResource(
            kind,
            name,
            {key: (AlterConfigOp.SET if value else AlterConfigOp.DELETE, value) for key, value in new.items()},
        )
        for (kind, name), new in settings.items()
    ]
    results = admin.alter_configs(resources, raise_on_unknown=False) if resources else {}
    for kind, by_name in results.items():
        for name, result in by_name.items():
            if "AuthorizationFailed" in result:
                if kind == "topic":
                    raise MissingRight("topic", name, "AlterConfigs", result)
                raise MissingRight("cluster", "", "AlterConfigs", result)
            if result != "OK":
                raise click.ClickException(f"the throttle of {kind} {name} is not changed: {result}")


def removal(settings: Settings) -> Settings:
    """Return the changes that delete these settings."""
    return {resource: dict.fromkeys(new) for resource, new in settings.items()}

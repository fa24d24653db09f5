"""kafka-python's `KafkaAdminClient` over the simulated brokers, as `agent topic` and `agent group` use it."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError, for_code
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from tests.simulator.kafka.brokers import ASKING, CHANGING, LOST_SECONDS, brokers
from tests.simulator.kafka.groups import Group
from tests.simulator.kafka.topics import TOPIC_DEFAULTS, Partition, Topic

_STATES = {"Preparing": "PreparingRebalance", "Completing": "CompletingRebalance"}
_NOT_THERE = "This server does not host this topic-partition."


class KafkaAdminClient:
    """`kafka.KafkaAdminClient`."""

    def __init__(self, **config: Any) -> None:
        self.config = {"security_protocol": "PLAINTEXT", **config}
        self.cluster = brokers()
        self._ask("connect", lambda: None, *ASKING)

    def _ask(self, what: str, work: Callable[[], Any], *kinds: Any) -> Any:
        try:
            return self.cluster.ask(f"kafka.{what}", work, LOST_SECONDS, *kinds)
        except KafkaException as e:
            code = e.args[0].code()
            raise (for_code(code)(e.args[0].str()) if code > 0 else KafkaTimeoutError(e.args[0].str())) from e

    def close(self) -> None:
        """Close the client; no resource is open."""

    def __enter__(self) -> KafkaAdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- topics

    def describe_topics(self, topics: Iterable[str] | None = None) -> list[dict[str, Any]]:
        def describe() -> list[dict[str, Any]]:
            return [self._description(name) for name in (self.cluster.topics if topics is None else topics)]

        descriptions: list[dict[str, Any]] = self._ask("describe_topics", describe, *ASKING)
        return descriptions

    def _description(self, name: str) -> dict[str, Any]:
        topic = self.cluster.topics.get(name)
        if topic is None:
            return {"error_code": 3, "name": name, "topic_id": None, "is_internal": False, "partitions": []}
        nodes = list(self.cluster.nodes[: topic.replicas])
        partitions = [
            {
                "error_code": 0,
                "partition_index": partition.number,
                "leader_id": nodes[0],
                "leader_epoch": 0,
                "replica_nodes": nodes,
                "isr_nodes": nodes,
                "offline_replicas": [],
            }
            for partition in topic.partitions
        ]
        return {
            "error_code": 0,
            "name": name,
            "topic_id": _uuid(topic),
            "is_internal": topic.internal,
            "partitions": partitions,
        }

    def create_topics(
        self, new_topics: Mapping[str, Mapping[str, Any]], raise_errors: bool = True, **_: Any
    ) -> dict[str, Any]:
        def create(name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
            try:
                partitions, replicas = wanted.get("num_partitions", -1), wanted.get("replication_factor", -1)
                made = self.cluster.create_topic(
                    name,
                    partitions if partitions > 0 else 3,
                    dict(wanted.get("configs") or {}),
                    replicas if replicas > 0 else 3,
                )
            except KafkaException as e:
                error = e.args[0]
                return {"name": name, "topic_id": None, "error_code": error.code(), "error_message": error.str()}
            return {"name": name, "topic_id": _uuid(made), "error_code": 0, "error_message": None}

        answers = [
            self._ask("create_topic", lambda name=name, wanted=wanted: create(name, wanted), *CHANGING)
            for name, wanted in new_topics.items()
        ]
        return _topics(answers, raise_errors=raise_errors)

    def wait_for_topics(self, topic_names: Iterable[str], timeout_ms: int = 10_000) -> None:
        """Return at once: the metadata is complete."""

    def delete_topics(self, topics: Iterable[str], raise_errors: bool = True, **_: Any) -> dict[str, Any]:
        def delete(name: str) -> dict[str, Any]:
            topic = self.cluster.topics.get(name)
            if topic is None:
                return {"name": name, "topic_id": None, "error_code": 3, "error_message": _NOT_THERE}
            self.cluster.delete_topic(name)
            return {"name": name, "topic_id": _uuid(topic), "error_code": 0, "error_message": None}

        answers = [self._ask("delete_topic", lambda name=name: delete(name), *CHANGING) for name in topics]
        return _topics(answers, raise_errors=raise_errors)

    def describe_configs(self, config_resources: Iterable[Any], **_: Any) -> dict[str, dict[str, Any]]:
        """Only what differs from the cluster's own settings, as the client asks for it."""

        def describe(name: str) -> dict[str, Any]:
            topic = self.cluster.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(_NOT_THERE)
            return {key: {"value": value} for key, value in topic.configs.items() if TOPIC_DEFAULTS.get(key) != value}

        return {
            "topic": {
                r.name: self._ask("describe_configs", lambda r=r: describe(r.name), *ASKING) for r in config_resources
            }
        }

    def list_partition_offsets(
        self, topic_partition_specs: Mapping[TopicPartition, Any], **_: Any
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        def find(log: Partition, spec: Any) -> OffsetAndTimestamp:
            if spec == OffsetSpec.EARLIEST:
                return OffsetAndTimestamp(log.low, -1, 0)
            if spec == OffsetSpec.LATEST:
                return OffsetAndTimestamp(log.high, -1, 0)
            entry = next((e for e in log.visible(0, read_committed=False) if e.timestamp >= int(spec)), None)
            return OffsetAndTimestamp(entry.offset, entry.timestamp, 0) if entry else OffsetAndTimestamp(-1, -1, None)

        def ask() -> dict[TopicPartition, OffsetAndTimestamp]:
            logs = {key: self.cluster.partition(key.topic, key.partition) for key in topic_partition_specs}
            if missing := [str(key) for key, partition in logs.items() if partition is None]:
                raise UnknownTopicOrPartitionError(f"The following partitions are not known: {', '.join(missing)}")
            known = {key: log for key, log in logs.items() if log is not None}
            return {key: find(log, topic_partition_specs[key]) for key, log in known.items()}

        offsets: dict[TopicPartition, OffsetAndTimestamp] = self._ask("list_offsets", ask, *ASKING)
        return offsets

    # --- groups

    def list_groups(self, **_: Any) -> list[dict[str, Any]]:
        def ask() -> list[dict[str, Any]]:
            return [
                {
                    "group_id": group.name,
                    "protocol_type": "consumer" if group.members else "",
                    "group_state": _STATES.get(group.state, group.state),
                    "group_type": "classic",
                }
                for group in self.cluster.groups.values()
            ]

        groups: list[dict[str, Any]] = self._ask("list_groups", ask, *ASKING)
        return groups

    def describe_groups(self, group_ids: Iterable[str], **_: Any) -> dict[str, dict[str, Any]]:
        return {
            name: self._ask("describe_group", lambda name=name: self._described(name), *ASKING) for name in group_ids
        }

    def _described(self, name: str) -> dict[str, Any]:
        group = self.cluster.groups.get(name)
        error = f"[Error 69] GroupIdNotFoundError: Group {name} not found." if group is None else None
        return {
            "group_id": name,
            "group_state": _STATES.get(group.state, group.state) if group is not None else "Dead",
            "protocol_type": "consumer" if group is not None and group.members else "",
            "members": _members(group) if group is not None else [],
            "error": error,
        }

    def list_group_offsets(self, group_specs: Any) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        names = [group_specs] if isinstance(group_specs, str) else list(group_specs)

        def ask(name: str) -> dict[TopicPartition, OffsetAndMetadata]:
            group = self.cluster.groups.get(name)
            known = group.offsets.items() if group is not None else ()
            return {
                TopicPartition(*tp): OffsetAndMetadata(committed.offset, committed.metadata, -1)
                for tp, committed in known
            }

        return {name: self._ask("list_group_offsets", lambda name=name: ask(name), *ASKING) for name in names}

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], **_: Any
    ) -> dict[TopicPartition, Any]:
        def ask() -> dict[TopicPartition, Any]:
            requested = [
                (key.topic, key.partition, committed.offset, committed.metadata) for key, committed in offsets.items()
            ]
            errors = self.cluster.group(group_id).commit(requested)
            return {TopicPartition(*tp): for_code(code or 0) for tp, code in errors.items()}

        answers: dict[TopicPartition, Any] = self._ask("alter_group_offsets", ask, *CHANGING)
        return answers

    def delete_groups(self, group_ids: Iterable[str], **_: Any) -> dict[str, str]:
        def ask(name: str) -> str:
            try:
                self.cluster.delete_group(name)
            except KafkaException as e:
                return str(for_code(e.args[0].code()).__name__)
            return "OK"

        return {name: self._ask("delete_group", lambda name=name: ask(name), *CHANGING) for name in group_ids}

    # --- the cluster

    def describe_cluster(self) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            return {
                "cluster_id": self.cluster.cluster_id,
                "controller_id": self.cluster.nodes[0],
                "brokers": [
                    {"broker_id": n, "host": "broker", "port": 9000 + n, "rack": None, "is_fenced": False}
                    for n in self.cluster.nodes
                ],
            }

        description: dict[str, Any] = self._ask("describe_cluster", ask, *ASKING)
        return description


def _topics(answers: list[dict[str, Any]], *, raise_errors: bool) -> dict[str, Any]:
    for answer in answers:
        if raise_errors and answer["error_code"]:
            raise for_code(answer["error_code"])(answer["error_message"])
    return {"topics": answers}


def _uuid(topic: Topic) -> str:
    halves = topic.id.get_most_significant_bits(), topic.id.get_least_significant_bits()
    return str(uuid.UUID(bytes=struct.pack("!qq", *halves)))


def _members(group: Group) -> list[dict[str, Any]]:
    descriptions = []
    for member in group.members.values():
        shares: dict[str, list[int]] = {}
        for topic, number in member.assignment:
            shares.setdefault(topic, []).append(number)
        descriptions.append(
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client.client_id,
                "client_host": "/127.0.0.1",
                "member_assignment": {
                    "assigned_partitions": [{"topic": topic, "partitions": n} for topic, n in shares.items()]
                },
            }
        )
    return descriptions

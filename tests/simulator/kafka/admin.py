"""`confluent_kafka.admin.AdminClient` over the simulated brokers, as far as it is used.

Requests are under way side by side; their futures are done one after the other, on one thread of the client's: a
callback of one that waits for another holds it up.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection, TopicPartition

from tests.simulator.futures import Future
from tests.simulator.kafka.brokers import ASKING, CHANGING, LOST_SECONDS, Brokers, brokers
from tests.simulator.kafka.messages import answer, exception, to_commit
from tests.simulator.kafka.topics import Topic


def metadata_of(cluster: Brokers, topic: str | None, timeout: float = -1) -> Any:
    """`ClusterMetadata`."""

    def ask() -> Any:
        names = list(cluster.topics) if topic is None else [topic]
        return SimpleNamespace(
            cluster_id=cluster.cluster_id,
            controller_id=cluster.nodes[0],
            orig_broker_id=cluster.nodes[0],
            brokers={node.id: node for node in _nodes(cluster.nodes)},
            topics={name: _topic_metadata(cluster, name) for name in names},
        )

    return cluster.ask("kafka.metadata", ask, timeout if timeout >= 0 else LOST_SECONDS, *ASKING)


def _topic_metadata(cluster: Brokers, name: str) -> Any:
    topic = cluster.topics.get(name)
    if topic is None:
        return SimpleNamespace(topic=name, partitions={}, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    partitions = _listed(cluster.nodes[: topic.replicas], len(topic.partitions))
    return SimpleNamespace(topic=name, partitions=partitions, error=None)


# These answers are asked for again and again, and nobody changes them.


@cache
def _nodes(ids: tuple[int, ...]) -> list[Any]:
    return [SimpleNamespace(id=node, host="broker", port=9000 + node) for node in ids]


@cache
def _listed(ids: tuple[int, ...], count: int) -> dict[int, Any]:
    nodes = list(ids)
    return {p: SimpleNamespace(id=p, leader=nodes[0], replicas=nodes, isrs=nodes, error=None) for p in range(count)}


@cache
def _described(ids: tuple[int, ...], count: int) -> list[Any]:
    nodes = _nodes(ids)
    return [SimpleNamespace(id=p, leader=nodes[0], replicas=nodes, isr=nodes) for p in range(count)]


class AdminClient:
    """`confluent_kafka.admin.AdminClient`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.cluster = brokers()
        self._answers: deque[Callable[[], None]] = deque()
        self._answering = False

    def _ask(self, what: str, work: Callable[[], Any], *kinds: Any) -> Future:
        future = Future()

        def run() -> None:
            try:
                result = self.cluster.ask(f"kafka.{what}", work, LOST_SECONDS, *kinds)
            except KafkaException as e:
                self._answers.append(partial(future.set_exception, e))
            else:
                self._answers.append(partial(future.set_result, result))
            if not self._answering:
                self._answer()

        self.cluster.world.spawn(run, f"admin {what}")
        return future

    def _answer(self) -> None:
        self._answering = True
        while self._answers:
            self._answers.popleft()()
        self._answering = False

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return metadata_of(self.cluster, topic, timeout)

    # --- topics

    def create_topics(self, new_topics: Iterable[Any], **_: Any) -> dict[str, Future]:
        def create(topic: Any) -> None:
            replicas = topic.replication_factor
            if replicas > len(self.cluster.nodes):
                raise exception(
                    KafkaError.INVALID_REPLICATION_FACTOR,
                    f"Unable to replicate the partition {replicas} time(s): The target replication factor of "
                    f"{replicas} cannot be reached because only {len(self.cluster.nodes)} broker(s) are registered.",
                )
            self.cluster.create_topic(
                topic.topic,
                topic.num_partitions if topic.num_partitions > 0 else 3,
                dict(topic.config or {}),
                replicas if replicas > 0 else 3,
            )

        return {t.topic: self._ask("create_topic", lambda t=t: create(t), *CHANGING) for t in new_topics}

    def delete_topics(self, topics: Iterable[str], **_: Any) -> dict[str, Future]:
        return {
            name: self._ask("delete_topic", lambda name=name: self.cluster.delete_topic(name), *CHANGING)
            for name in topics
        }

    def create_partitions(self, new_partitions: Iterable[Any], **_: Any) -> dict[str, Future]:
        def add(wanted: Any) -> None:
            topic = self._topic(wanted.topic)
            if wanted.new_total_count <= len(topic.partitions):
                raise exception(KafkaError.INVALID_PARTITIONS)
            self.cluster.add_partitions(wanted.topic, wanted.new_total_count)

        return {n.topic: self._ask("create_partitions", lambda n=n: add(n), *CHANGING) for n in new_partitions}

    def delete_records(self, topic_partition_offsets: Iterable[TopicPartition], **_: Any) -> dict[Any, Future]:
        def delete(tp: TopicPartition) -> Any:
            partition = self.cluster.partition(tp.topic, tp.partition)
            if partition is None:
                raise exception(KafkaError.UNKNOWN_TOPIC_OR_PART)
            if tp.offset > partition.high:
                raise exception(KafkaError.OFFSET_OUT_OF_RANGE)
            self.cluster.advance_low_watermark(
                tp.topic, tp.partition, tp.offset if tp.offset >= 0 else partition.high
            )
            return SimpleNamespace(low_watermark=partition.low)

        return {
            tp: self._ask("delete_records", lambda tp=tp: delete(tp), *CHANGING) for tp in topic_partition_offsets
        }

    def describe_topics(self, topics: TopicCollection, **_: Any) -> dict[str, Future]:
        names: list[str] = topics.topic_names  # type: ignore[attr-defined]
        return {name: self._ask("describe_topic", lambda name=name: self._describe(name), *ASKING) for name in names}

    def _topic(self, name: str) -> Topic:
        topic = self.cluster.topics.get(name)
        if topic is None:
            raise exception(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return topic

    def _describe(self, name: str) -> Any:
        topic = self._topic(name)
        partitions = _described(self.cluster.nodes[: topic.replicas], len(topic.partitions))
        return SimpleNamespace(
            name=name,
            topic_id=topic.id,
            is_internal=topic.internal,
            partitions=partitions,
            authorized_operations=topic.rights,
        )

    def describe_configs(self, resources: Iterable[Any], **_: Any) -> dict[Any, Future]:
        def describe(name: str) -> dict[str, Any]:
            return {key: SimpleNamespace(name=key, value=value) for key, value in self._topic(name).configs.items()}

        return {r: self._ask("describe_configs", lambda r=r: describe(r.name), *ASKING) for r in resources}

    def list_offsets(self, topic_partition_offsets: dict[TopicPartition, Any], **options: Any) -> dict[Any, Future]:
        committed = getattr(options.get("isolation_level"), "name", "") == "READ_COMMITTED"

        def find(tp: TopicPartition, spec: Any) -> Any:
            partition = self.cluster.partition(tp.topic, tp.partition)
            if partition is None:
                raise exception(KafkaError.UNKNOWN_TOPIC_OR_PART)
            value, timestamp = int(spec._value), -1
            if value == -2:
                offset = partition.low
            elif value == -1:
                offset = partition.stable if committed else partition.high
            else:
                entry = next((e for e in partition.visible(0, read_committed=False) if e.timestamp >= value), None)
                offset, timestamp = (entry.offset, entry.timestamp) if entry is not None else (-1, -1)
            return SimpleNamespace(offset=offset, timestamp=timestamp, leader_epoch=partition.leader_epoch)

        return {
            tp: self._ask("list_offsets", lambda tp=tp, spec=spec: find(tp, spec), *ASKING)
            for tp, spec in topic_partition_offsets.items()
        }

    # --- groups

    def list_consumer_group_offsets(
        self, list_consumer_group_offsets_request: list[Any], **_: Any
    ) -> dict[str, Future]:
        def find(request: Any) -> Any:
            group = self.cluster.groups.get(request.group_id)
            known = group.offsets if group is not None else {}
            wanted = request.topic_partitions
            tps = list(known) if wanted is None else [(tp.topic, tp.partition) for tp in wanted]
            offsets = []
            for tp in tps:
                committed = known.get(tp)
                offsets.append(
                    answer(*tp, committed.offset, committed.metadata) if committed is not None else answer(*tp, -1001)
                )
            return ConsumerGroupTopicPartitions(request.group_id, offsets)

        return {
            r.group_id: self._ask("list_group_offsets", lambda r=r: find(r), *ASKING)
            for r in list_consumer_group_offsets_request
        }

    def alter_consumer_group_offsets(
        self, alter_consumer_group_offsets_request: list[Any], **_: Any
    ) -> dict[str, Future]:
        def alter(request: Any) -> Any:
            offsets = to_commit(request.topic_partitions)
            errors = self.cluster.group(request.group_id).commit(offsets)
            return ConsumerGroupTopicPartitions(
                request.group_id,
                [
                    answer(*tp, offset, None, KafkaError(code) if code is not None else None)
                    for (*tp, offset, _), code in zip(offsets, errors.values(), strict=True)
                ],
            )

        return {
            r.group_id: self._ask("alter_group_offsets", lambda r=r: alter(r), *CHANGING)
            for r in alter_consumer_group_offsets_request
        }

    def delete_consumer_groups(self, group_ids: Iterable[str], **_: Any) -> dict[str, Future]:
        return {
            name: self._ask("delete_group", lambda name=name: self.cluster.delete_group(name), *CHANGING)
            for name in group_ids
        }

    def describe_consumer_groups(self, group_ids: Iterable[str], **_: Any) -> dict[str, Future]:
        def describe(name: str) -> Any:
            group = self.cluster.groups.get(name)
            members = [
                SimpleNamespace(
                    member_id=m.id,
                    group_instance_id=m.instance,
                    client_id=m.client.client_id,
                    host="/127.0.0.1",
                    assignment=SimpleNamespace(topic_partitions=[answer(*tp, -1001) for tp in m.assignment]),
                )
                for m in (group.members.values() if group is not None else ())
            ]
            state = {"Preparing": "PREPARING_REBALANCING", "Completing": "COMPLETING_REBALANCING"}
            known = group.state if group is not None else "Dead"
            return SimpleNamespace(
                group_id=name, state=SimpleNamespace(name=state.get(known, known.upper())), members=members
            )

        return {name: self._ask("describe_group", lambda name=name: describe(name), *ASKING) for name in group_ids}

    def list_groups(self, group: str | None = None, timeout: float = -1) -> list[Any]:
        def find() -> list[Any]:
            known = self.cluster.groups.get(group or "")
            if known is None:
                return []
            members = [
                SimpleNamespace(
                    id=m.id,
                    client_id=m.client.client_id,
                    client_host="/127.0.0.1",
                    assignment=_assignment(m.assignment),
                )
                for m in known.members.values()
            ]
            return [SimpleNamespace(id=group, state=known.state, error=None, members=members)]

        groups: list[Any] = self.cluster.ask("kafka.list_groups", find, timeout, *ASKING)
        return groups

    def describe_cluster(self, **_: Any) -> Future:
        def describe() -> Any:
            nodes = _nodes(self.cluster.nodes)
            return SimpleNamespace(cluster_id=self.cluster.cluster_id, controller=nodes[0], nodes=nodes)

        return self._ask("describe_cluster", describe, *ASKING)

    def poll(self, timeout: float = 0) -> int:
        return 0


def _assignment(places: Iterable[tuple[str, int]]) -> bytes:
    """Encode an assignment as the leader of a group does."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    data = struct.pack(">hi", 0, len(topics))
    for topic, partitions in topics.items():
        name, count = topic.encode(), len(partitions)
        data += struct.pack(f">h{len(name)}si{count}i", len(name), name, count, *partitions)
    return data + struct.pack(">i", 0)

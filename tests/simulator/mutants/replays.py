"""Mutants of `agent replay`: its own group, the ends of the span, and what retention or a kill leaves of it."""

from tests.simulator.mutants.mutant import ALL, Mutant

REPLAYING = "agent/runner/replaying.py"
STORIES = "tests/simulator/test_replay_stories.py::test_"

SPANS = (
    Mutant(
        "replay-group",
        "a replay reads in a group of its own",
        ALL,
        REPLAYING,
        "    group = replay_group(channel.kafka.stream(live.group).group, live.path, start, end)\n",
        "    group = channel.kafka.stream(live.group).group\n",
    ),
    Mutant(
        "replay-topic",
        "a replay ends if its topic is recreated",
        ALL,
        REPLAYING,
        "        if part is not None and topic.topic_id != part.start.topic_partition.topic_id:\n",
        "        if part is None:\n",
        f"{STORIES}a_recreated_topic_ends_a_replay",
    ),
    Mutant(
        "replay-retention",
        "a replay continues behind records that retention has removed, and reports them",
        ALL,
        REPLAYING,
        "        if (first := max(first, oldest)) == offset:\n",
        "        if first == offset:\n",
        f"{STORIES}retention_overtakes_a_killed_replay",
    ),
    Mutant(
        "replay-lost",
        "a replay is complete if brokers have lost records that it had replayed",
        ALL,
        REPLAYING,
        "        if part.final_offset < offset:  #",
        "        if False:  #",
        f"{STORIES}a_killed_replay_continues_in_partitions_that_were_not_truncated",
    ),
    Mutant(
        "replay-shorter",
        "a replay checks that its topic still has the whole span",
        ALL,
        REPLAYING,
        "            if (end := ends.get(part.partition, part.span.end)) < part.span.end:\n",
        "            if (end := ends.get(part.partition, part.span.end)) < 0:\n",
        f"{STORIES}a_replay_continues_with_the_records_that_brokers_did_not_lose",
    ),
    Mutant(
        "replay-added",
        "partitions added since are not in the span",
        ALL,
        "channels/kafka/consumer.py",
        "offset >= self._until.get(partition, 0)",
        "offset >= self._until.get(partition, offset + 1)",
        f"{STORIES}a_partition_added_during_a_replay_is_not_in_its_span",
    ),
    Mutant(
        "replay-ids",
        "replayed events have the ids that the agents gave them",
        ALL,
        REPLAYING,
        "committed if offset is not None else committed.replace(id_scheme=schemes[partition])",
        "committed",
        f"{STORIES}replayed_documents_keep_their_ids",
    ),
)

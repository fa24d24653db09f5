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
        "a replay ends where its topic was made again",
        ALL,
        REPLAYING,
        "        if part is not None and found.topic_id != part.start.topic_partition.topic_id:\n",
        "        if part is None:\n",
        f"{STORIES}a_topic_made_again_ends_a_replay",
    ),
    Mutant(
        "replay-retention",
        "a replay goes on behind what retention has removed, and says so",
        ALL,
        REPLAYING,
        "        if (first := max(first, oldest)) == offset:\n",
        "        if first == offset:\n",
        f"{STORIES}retention_overtakes_a_replay_that_was_killed",
    ),
    Mutant(
        "replay-lost",
        "a replay is complete though brokers have lost what it had replayed",
        ALL,
        REPLAYING,
        "        if part.reached_end < offset:  #",
        "        if False:  #",
        f"{STORIES}a_killed_replay_goes_on_in_other_partitions_than_that_which_brokers_have_cut",
    ),
    Mutant(
        "replay-shorter",
        "a replay looks whether its topic still has all of the span",
        ALL,
        REPLAYING,
        "            if (end := ends.get(part.partition, part.span.end)) < part.span.end:\n",
        "            if (end := ends.get(part.partition, part.span.end)) < 0:\n",
        f"{STORIES}a_replay_whose_records_brokers_lose_meanwhile_goes_on_with_what_is_left",
    ),
    Mutant(
        "replay-added",
        "partitions that were added since are not of the span",
        ALL,
        "channels/kafka/consumer.py",
        "offset >= self._until.get(partition, 0)",
        "offset >= self._until.get(partition, offset + 1)",
        f"{STORIES}a_partition_that_is_added_meanwhile_is_not_of_the_span",
    ),
    Mutant(
        "replay-ids",
        "events have the ids in a replay that they have for the agents",
        ALL,
        REPLAYING,
        "committed if offset is not None else committed.of(id_scheme=schemes[partition])",
        "committed",
        f"{STORIES}documents_keep_the_names_that_they_have_for_the_agents",
    ),
)

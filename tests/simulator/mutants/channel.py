"""Mutants of the Kafka channel: its reader, its producer, and the overflow that an agent has before it."""

from tests.simulator.mutants.mutant import ALL, OVERFLOWS, SOLR, Mutant

READER_PY = "channels/kafka/consumer.py"
FETCHED_PY = "channels/kafka/consumer.py"
FORWARDING_PY = "agent/runner/local/forwarding.py"
OUTAGE_PY = "agent/runner/local/outage.py"

READER = (
    Mutant(
        "topic-confirmed",
        "what was fetched waits until the topic's id is confirmed",
        ALL,
        READER_PY,
        "        self._topic_ids.ask(self._confirmed)\n",
        "        self._confirmed(self._claim.topic_id)\n",
    ),
    Mutant(
        "offset-of-old-topic",
        "an offset of a topic that was deleted counts as none",
        ALL,
        "plugins/kafka/offsets.py",
        'elif said.version == VERSION and said.topic_id not in ("", topic_id):',
        "elif False:",
        "test_the_records_of_a_topic_made_again_are_delivered_from_the_first_on",
    ),
    Mutant(
        "loss-of-this-topic",
        "no record of a topic made again is taken for the rest of one that has lost some",
        ALL,
        READER_PY,
        "return error if same else self._made_again()",
        "return error",
        "tests/channels/test_kafka_reading.py::test_nobody_is_told_to_give_up_records_of_a_topic_that_is_made_again_meanwhile",
    ),
    Mutant(
        "fetched-before-seek",
        "what was fetched before a seek is dropped",
        ALL,
        FETCHED_PY,
        "if partition not in self.assignments or partition in self._seeks:",
        "if partition not in self.assignments:",
        "test_what_arrives_between_a_failure_and_the_seek_is_not_delivered_before_what_failed",
    ),
    Mutant(
        "queued-before-seek",
        "what waits is dropped at a rewind",
        ALL,
        FETCHED_PY,
        "            for partition in owned:\n                self._forget(partition)\n",
        "",
        "test_what_arrives_between_a_failure_and_the_seek_is_not_delivered_before_what_failed",
    ),
    Mutant(
        "begin-registered",
        "where a partition begins is committed before it is read",
        ALL,
        READER_PY,
        "            self._commit(fresh)  # where each begins, and in which generation, before anything is taken\n",
        "            pass\n",
    ),
    Mutant(
        "begin-kept",
        "a partition is read from where its group was registered, and not from whatever is its first record later",
        ALL,
        READER_PY,
        "return [TopicPartition(one.topic, one.partition, one.next_offset or 0) for one in starts]",
        "return [TopicPartition(one.topic, one.partition, one.next_offset or -2) for one in starts]",
        "test_what_retention_takes_between_the_begin_of_a_group_and_its_first_record_is_said",
    ),
    Mutant(
        "loss-lasts",
        "a loss of records by brokers is kept with the group's offset",
        ALL,
        "plugins/kafka/offsets.py",
        "(lost := OffsetMetadata.parse(metadata_of(tp)).lost)",
        '(lost := "")',
        "test_a_group_that_is_ahead_of_its_topic_stops_until_it_is_reset",
    ),
    Mutant(
        "loss-committed",
        "a reader that finds a loss of records by brokers commits it",
        SOLR,
        READER_PY,
        "                self.consumer.commit(offsets=[at], asynchronous=False)\n",
        "                pass\n",
        "test_a_group_that_is_ahead_of_its_topic_stops_until_it_is_reset",
    ),
    Mutant(
        "loss-followed",
        "a loss that is kept begins where brokers end once they have lost more",
        ALL,
        "plugins/kafka/offsets.py",
        """lost if int(lost.rstrip("?+")) <= high else f"{high}?\"""",
        "lost",
        "test_a_loss_that_is_followed_by_another_one_is_accepted_from_the_first_record_lost_on",
    ),
    Mutant(
        "epoch-looked-up",
        "a reader looks up the leader epoch of the record before an offset that was committed without one",
        ALL,
        READER_PY,
        "with_leader_epochs(CHANNEL, self._properties, without)",
        "{}",
        "test_a_loss_before_an_offset_that_another_program_has_committed_is_noticed_once_an_agent_has_it",
    ),
    Mutant(
        "partition-unread",
        "a partition that nobody reads makes a member join anew",
        ALL,
        "channels/kafka/consumer.py",
        "return before & self.ask()",
        "return frozenset()",
        "test_a_drain_does_not_give_up_a_partition_that_was_added_while_its_agent_was_away",
    ),
)

PRODUCER = (
    Mutant(
        "put-acknowledged",
        "a put returns when the brokers have the batch",
        ALL,
        "channels/kafka/producer.py",
        "            self._await(delivery)\n            if delivery.failed:\n",
        "            if False:\n",
    ),
    Mutant(
        "put-refused",
        "of a put with refused records only these are produced again",
        ALL,
        "channels/kafka/producer.py",
        "        rows = sorted(row for some, _ in failed.failed for row in some)\n",
        "        rows = [*range(len(batch))]\n",
        "tests/simulator/test_kafka_sink.py::test_a_put_whose_limit_is_lowered_stores_the_others_once",
    ),
    Mutant(
        "put-stuck",
        "where its client never sends again, a put is made by another one",
        ALL,
        "plugins/kafka/producer.py",
        "            if not (before and well):\n",
        "            if True:\n",
        "tests/simulator/test_stuck_client_stories.py::test_the_channel_has_another_one_put_again_what_waits",
    ),
)

OVERFLOW = (
    Mutant(
        "overflow-late",
        "what a late put has stored is not forwarded",
        OVERFLOWS,
        FORWARDING_PY,
        "late.put if late is not None else None, failed)",
        "None, failed)",
    ),
    Mutant(
        "overflow-behind",
        "while the overflow holds anything all puts go there",
        OVERFLOWS,
        OUTAGE_PY,
        "            taken = None if self._storing else reader.take(0)\n",
        "            taken = None\n",
    ),
    Mutant(
        "overflow-under-way",
        "an overflow does not end while a put into it is under way",
        OVERFLOWS,
        OUTAGE_PY,
        "                if not self._storing and self._reason:\n",
        "                if self._reason:\n",
    ),
    Mutant(
        "overflow-commit",
        "what is forwarded is committed once the channel holds it",
        OVERFLOWS,
        FORWARDING_PY,
        "                    self._pass_on(taken)\n"
        "                    reader.commit([taken.assignment.at(taken.offsets.end)])\n",
        "                    reader.commit([taken.assignment.at(taken.offsets.end)])\n"
        "                    self._pass_on(taken)\n",
    ),
    Mutant(
        "overflow-inherited",
        "an agent that finds events in the overflow forwards them first",
        OVERFLOWS,
        FORWARDING_PY,
        '                self._outage.begin("events of an earlier outage are left")\n',
        "                pass\n",
    ),
    Mutant(
        "batches-in-turn",
        "batches that are on their way together come into a channel in order",
        OVERFLOWS,
        "agent/runner/local/sources.py",
        "        turns.wait(number)\n",
        "",
    ),
)

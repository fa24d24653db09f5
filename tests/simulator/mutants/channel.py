"""Mutants of the Kafka channel: its reader, its producer, and the overflow that an agent has before it."""

from tests.simulator.mutants.mutant import ALL, OVERFLOWS, SOLR, Mutant

READER_PY = "channels/kafka/consumer.py"
FETCHED_PY = "channels/kafka/consumer.py"
FORWARDING_PY = "agent/runner/local/forwarding.py"
OUTAGE_PY = "agent/runner/local/outage.py"

READER = (
    Mutant(
        "topic-confirmed",
        "fetched records wait until the topic's id is confirmed",
        ALL,
        READER_PY,
        "        self._topic_ids.request(self._on_topic_id)\n",
        "        self._on_topic_id(self._assignment.topic_partition.topic_id)\n",
    ),
    Mutant(
        "offset-of-old-topic",
        "an offset of a deleted topic is ignored",
        ALL,
        "plugins/kafka/offsets.py",
        'elif metadata.version == METADATA_VERSION and metadata.topic_id not in ("", topic_id):',
        "elif False:",
        "test_all_records_of_a_recreated_topic_are_delivered",
    ),
    Mutant(
        "loss-of-this-topic",
        "records of a recreated topic are not taken for the rest of one that has lost some",
        ALL,
        READER_PY,
        "return error if is_same else self._recreated_error()",
        "return error",
        "tests/channels/test_kafka_reading.py::test_no_loss_is_reported_for_a_topic_that_is_recreated_meanwhile",
    ),
    Mutant(
        "fetched-before-seek",
        "records fetched before a seek are dropped",
        ALL,
        FETCHED_PY,
        "if partition not in self.assignments or partition in self._seeks:",
        "if partition not in self.assignments:",
        "test_records_polled_after_a_failure_are_not_delivered_before_those_that_failed",
    ),
    Mutant(
        "queued-before-seek",
        "queued records are dropped at a rewind",
        ALL,
        FETCHED_PY,
        "            for partition in owned:\n                self._drop_waiting(partition)\n",
        "",
        "test_records_polled_after_a_failure_are_not_delivered_before_those_that_failed",
    ),
    Mutant(
        "begin-registered",
        "the first offset of a partition is committed before it is read",
        ALL,
        READER_PY,
        "            self._commit(changed)  # the start offset and the generation, before any record is taken\n",
        "            pass\n",
    ),
    Mutant(
        "begin-kept",
        "a partition is read from its registered first offset, even if retention has passed it",
        ALL,
        READER_PY,
        "return [TopicPartition(start.topic, start.partition, start.next_offset or 0) for start in starts]",
        "return [TopicPartition(start.topic, start.partition, start.next_offset or -2) for start in starts]",
        "test_records_removed_before_a_new_group_read_any_are_reported",
    ),
    Mutant(
        "loss-lasts",
        "a loss of records by brokers is stored with the group's offset",
        ALL,
        "plugins/kafka/offsets.py",
        "(lost := OffsetMetadata.parse(metadata_of(tp)).lost)",
        '(lost := "")',
        "test_a_group_ahead_of_its_topic_stops_until_a_reset",
    ),
    Mutant(
        "loss-committed",
        "a reader that finds a loss of records by brokers commits it",
        SOLR,
        READER_PY,
        "                self.consumer.commit(offsets=[offset], asynchronous=False)\n",
        "                pass\n",
        "test_a_group_ahead_of_its_topic_stops_until_a_reset",
    ),
    Mutant(
        "loss-followed",
        "a stored loss is extended when brokers lose more records",
        ALL,
        "plugins/kafka/offsets.py",
        """lost if int(lost.rstrip("?+")) <= high else f"{high}?\"""",
        "lost",
        "test_two_losses_are_accepted_from_the_first_lost_record",
    ),
    Mutant(
        "epoch-looked-up",
        "a reader looks up the leader epoch of the record before an offset that was committed without one",
        ALL,
        READER_PY,
        "with_leader_epochs(CHANNEL, self._properties, without_epoch)",
        "{}",
        "test_a_loss_before_an_offset_of_another_program_is_reported",
    ),
    Mutant(
        "partition-unread",
        "a member joins again for a partition without a reader",
        ALL,
        "channels/kafka/consumer.py",
        "return before & self.request()",
        "return frozenset()",
        "test_a_drain_delivers_a_partition_that_was_added_before_it",
    ),
)

PRODUCER = (
    Mutant(
        "put-acknowledged",
        "a put returns when the brokers have the batch",
        ALL,
        "channels/kafka/producer.py",
        "            self._wait_for_reports(delivery)\n            if delivery.failed:\n",
        "            if False:\n",
    ),
    Mutant(
        "put-refused",
        "only the refused records of a put are produced again",
        ALL,
        "channels/kafka/producer.py",
        "        rows = sorted(row for rows_of_record, _ in failed.failed for row in rows_of_record)\n",
        "        rows = [*range(len(batch))]\n",
        "tests/simulator/test_kafka_sink.py::test_a_put_whose_limit_is_lowered_stores_the_others_once",
    ),
    Mutant(
        "put-stuck",
        "another producer sends the put of a stalled one",
        ALL,
        "plugins/kafka/producer.py",
        "            if not (was_writable and is_writable):\n",
        "            if True:\n",
        "tests/simulator/test_stalled_client_stories.py::test_a_channel_replaces_a_stalled_producer",
    ),
)

OVERFLOW = (
    Mutant(
        "overflow-late",
        "events stored by a late put are not forwarded",
        OVERFLOWS,
        FORWARDING_PY,
        "in_doubt.put if in_doubt is not None else None, on_failure)",
        "None, on_failure)",
    ),
    Mutant(
        "overflow-behind",
        "all puts go to the overflow until it is empty",
        OVERFLOWS,
        OUTAGE_PY,
        "            taken = None if self._storing else reader.take(0)\n",
        "            taken = None\n",
    ),
    Mutant(
        "overflow-under-way",
        "an overflow does not end during a put into it",
        OVERFLOWS,
        OUTAGE_PY,
        "                if not self._storing and self._reason:\n",
        "                if self._reason:\n",
    ),
    Mutant(
        "overflow-commit",
        "forwarded events are committed once the channel has them",
        OVERFLOWS,
        FORWARDING_PY,
        "                    self._forward_batch(taken)\n"
        "                    reader.commit([taken.assignment.with_offset(taken.offsets.end)])\n",
        "                    reader.commit([taken.assignment.with_offset(taken.offsets.end)])\n"
        "                    self._forward_batch(taken)\n",
    ),
    Mutant(
        "overflow-inherited",
        "an agent that finds events in the overflow forwards them first",
        OVERFLOWS,
        FORWARDING_PY,
        '                self._outage.start("events of an earlier outage are left")\n',
        "                pass\n",
    ),
    Mutant(
        "batches-in-turn",
        "batches in flight at once are stored in order",
        OVERFLOWS,
        "agent/runner/local/sources.py",
        "        sequencer.wait(number)\n",
        "",
    ),
)

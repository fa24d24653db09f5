"""Mutants of the driver on Spark: what it commits, and what it does about resets and lost records."""

from tests.simulator.mutants.mutant import OVERTAKEN, SPARK, Mutant

COMMITS = "plugins/kafka/offsets.py"

DRIVER = (
    Mutant(
        "loss-kept-by-driver",
        "a driver stores a loss of records by brokers with the group's offset",
        SPARK,
        "agent/runner/spark/query.py",
        "                self.channel.kafka.store_error(error)\n",
        "                pass\n",
        "test_a_group_ahead_of_its_topic_stops_until_a_reset",
    ),
    Mutant(
        "driver-overtaken",
        "a driver that was overtaken commits no offset",
        SPARK,
        COMMITS,
        "elif reason := fencing_reason(assignment, metadata):",
        "elif why := '':",
    ),
    Mutant(
        "driver-of-old-topic",
        "a driver of a deleted topic commits no offset for the recreated one",
        SPARK,
        COMMITS,
        "                        self._confirm(assignment)\n",
        "                        pass\n",
        "tests/system/test_kafka_channel.py::test_offsets_of_a_former_topic_are_not_committed_to_the_group_of_a_recreated_one",
    ),
    Mutant(
        "reset-restored",
        "a reset that a late commit has overwritten is restored",
        SPARK,
        "agent/runner/spark/query.py",
        "            if committed.generation.epoch < own.generation.epoch or committed.next_offset is None:\n",
        "            if False:\n",
        f"{OVERTAKEN}::test_a_late_commit_from_before_a_reset_is_corrected",
    ),
    Mutant(
        "loss-of-this-topic-on-spark",
        "records of a recreated topic are not taken for the rest of one that has lost some",
        SPARK,
        "agent/runner/spark/query.py",
        "        refusals = self.channel.kafka.blocking_errors(self.job.sink.group, starts)\n"
        "        self._check_ownership()\n",
        "        self._check_ownership()\n"
        "        refusals = self.channel.kafka.blocking_errors(self.job.sink.group, starts)\n",
        "test_no_loss_is_reported_for_a_topic_recreated_during_a_lookup",
    ),
    Mutant(
        "loss-under-a-query",
        "during its query a driver checks that brokers have the last record that it delivered",
        SPARK,
        "agent/runner/spark/query.py",
        "                            self._check_truncations()\n",
        "                            self._check_ownership()\n",
        "test_a_new_record_with_the_offset_of_a_delivered_one_is_reported_on_spark",
    ),
    Mutant(
        "time-of-last-record",
        "a driver commits the time of the last record, by which its successor finds that brokers have lost it",
        SPARK,
        "plugins/kafka/offsets.py",
        "time=last.timestamp",
        "time=-1",
        "test_a_new_record_with_the_offset_of_a_delivered_one_is_reported_on_spark",
    ),
)

"""Mutants of the driver on Spark: what it commits, and what it does about resets and lost records."""

from tests.simulator.mutants.mutant import OVERTAKEN, SPARK, Mutant

COMMITS = "plugins/kafka/offsets.py"

DRIVER = (
    Mutant(
        "loss-kept-by-driver",
        "a driver keeps a loss of records by brokers with the group's offset",
        SPARK,
        "agent/runner/spark/query.py",
        "                self.channel.kafka.refuse(error)\n",
        "                pass\n",
        "test_a_group_that_is_ahead_of_its_topic_stops_until_it_is_reset",
    ),
    Mutant(
        "driver-overtaken",
        "a driver that was overtaken commits no offset",
        SPARK,
        COMMITS,
        "elif why := overtaken(assignment, said):",
        "elif why := '':",
    ),
    Mutant(
        "driver-of-old-topic",
        "a driver of a topic that was deleted commits no offset for the one made again",
        SPARK,
        COMMITS,
        "                        self._confirm(assignment)\n",
        "                        pass\n",
        "tests/system/test_kafka_channel.py::test_positions_of_a_topic_that_was_made_again_are_not_told_where_its_group_says_nothing_any_more",
    ),
    Mutant(
        "reset-restored",
        "a reset that a late commit has undone is made good",
        SPARK,
        "agent/runner/spark/query.py",
        "            if committed.generation.epoch < ours.generation.epoch or committed.next_offset is None:\n",
        "            if False:\n",
        f"{OVERTAKEN}::test_a_commit_of_a_driver_before_a_reset_that_comes_late_does_not_undo_the_reset",
    ),
    Mutant(
        "loss-of-this-topic-on-spark",
        "no record of a topic made again is taken for the rest of one that has lost some",
        SPARK,
        "agent/runner/spark/query.py",
        "        refusals = self.channel.kafka.refusals(self.job.sink.group, starts)\n        self._look()\n",
        "        self._look()\n        refusals = self.channel.kafka.refusals(self.job.sink.group, starts)\n",
        "test_nobody_is_told_to_give_up_records_of_a_topic_that_is_made_again_while_a_driver_looks_what_is_left",
    ),
    Mutant(
        "loss-under-a-query",
        "a driver checks while its query runs that brokers have the last record that it delivered",
        SPARK,
        "agent/runner/spark/query.py",
        "                            self._look_for_truncations()\n",
        "                            self._look()\n",
        "test_a_sink_on_spark_notices_that_a_new_record_has_the_offset_of_one_it_has_delivered",
    ),
    Mutant(
        "time-of-last-record",
        "a driver commits the time of the last record, by which its successor finds that brokers have lost it",
        SPARK,
        "plugins/kafka/offsets.py",
        "time=last.timestamp",
        "time=-1",
        "test_a_sink_on_spark_notices_that_a_new_record_has_the_offset_of_one_it_has_delivered",
    ),
)

"""Mutants of the sink to Kafka: its transactions, and its record beside the group's offsets."""

from tests.simulator.mutants.mutant import KAFKA, Mutant

SINK = "sinks/kafka/sink.py"

KAFKA_SINK = (
    Mutant(
        "kafka-fencing",
        "a new owner fences the producer of the one before",
        KAFKA,
        "sinks/kafka/writers.py",
        '        name = f"flafka.{claim.group}.{claim.topic}.{claim.topic_id}.{claim.partition}"\n',
        "        name = str(__import__('uuid').uuid4())\n",
        "tests/simulator/test_kafka_sink.py::test_a_new_owner_ends_the_transaction_of_the_one_before",
    ),
    Mutant(
        "kafka-offset",
        "the channel's offset is in the transaction of its records",
        KAFKA,
        "sinks/kafka/writers.py",
        "            self._producer.send_offsets_to_transaction([at], group_metadata, ANSWER_SECONDS)\n",
        "            pass\n",
        "tests/simulator/test_kafka_sink.py::test_a_transaction_moves_the_group_with_its_records",
    ),
    Mutant(
        "kafka-member",
        "a transaction's offsets are those of a member of the group",
        KAFKA,
        SINK,
        "self.membership() or self._onlooker",
        "self._onlooker",
        "test_a_transaction_of_an_agent_that_slept_does_not_undo_a_reset",
    ),
    Mutant(
        "kafka-resume-group",
        "who takes over asks where the last transaction ended",
        KAFKA,
        SINK,
        "                committed, claim = at.offset, claim._replace(epoch=said.epoch, record=said.record)\n",
        "                pass\n",
        "tests/simulator/test_kafka_sink.py::"
        "test_where_there_may_be_no_record_the_group_says_where_the_last_transaction_ended",
    ),
    Mutant(
        "kafka-record",
        "the record beside the group's offsets is read",
        KAFKA,
        SINK,
        "            entry = positions.read(claim) if positions is not None else None\n",
        "            entry = None\n",
    ),
    Mutant(
        "kafka-record-written",
        "the record beside the group's offsets is written",
        KAFKA,
        SINK,
        "            positions.write(writer, claim, end, note)\n",
        "            pass\n",
    ),
    Mutant(
        "kafka-record-end",
        "the record is read to its end",
        KAFKA,
        "sinks/kafka/positions.py",
        "high, READ_SECONDS, wait=True)",
        "high, READ_SECONDS)",
        "tests/simulator/test_kafka_sink.py::test_a_record_is_not_taken_for_the_newest_while_what_is_behind_it_is_hidden_by_a_transaction",
    ),
    Mutant(
        "kafka-settled",
        "records are stored before the channel is committed",
        KAFKA,
        SINK,
        "            writer.settle()\n",
        "            pass\n",
        "tests/simulator/test_kafka_sink.py::test_records_for_another_cluster_are_stored_when_their_stage_returns",
    ),
    Mutant(
        "kafka-other-epoch",
        "a position of an earlier epoch says nothing about the record's",
        KAFKA,
        SINK,
        "                committed = None  # it belongs to an earlier epoch\n",
        "                pass\n",
        "tests/simulator/test_kafka_sink.py::test_a_position_of_an_earlier_epoch_than_the_records_own_is_none",
    ),
    Mutant(
        "kafka-letters-aborted",
        "a transaction that holds letters alone is aborted, too",
        KAFKA,
        SINK,
        "if writer is not None and (writer.events or writer.began):",
        "if writer is not None and writer.events:",
        "test_a_transaction_that_holds_letters_alone_is_aborted_where_the_brokers_are_away",
    ),
)

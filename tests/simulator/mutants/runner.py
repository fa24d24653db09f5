"""Mutants of the runner of sinks: commits, failures and conflicts, dead letters and their replay, drains."""

from tests.simulator.mutants.mutant import ALL, EXACTLY_ONCE, OVERTAKEN, SOLR, Mutant

RUNNER = "agent/runner/local/sinks.py"
LETTERS = "agent/runner/deadletters/letters.py"
DELIVERY = "agent/runner/delivery.py"
BULK = "sinks/bulk.py"

SINKS = (
    Mutant(
        "reset-on-resume",
        "what is staged here is dropped when another owner was faster",
        EXACTLY_ONCE,
        RUNNER,
        "            self.members[0].delivery.lost({committed.partition})\n",
        "            self.members[0].delivery.rejections.lost({committed.partition})\n",
        "tests/runner/test_sinks.py::test_a_committing_sink_whose_answer_was_lost_goes_on_behind_its_own_commit",
    ),
    Mutant(
        "bulk-same-key",
        "of requests with a key in common the later one waits for the earlier one",
        SOLR,
        BULK,
        "            not keys.isdisjoint(others) for others, _ in self._under_way\n",
        "            False for others, _ in self._under_way\n",
        "tests/sinks/test_hbase.py::test_rows_of_one_key_and_timestamp_are_written_in_order",
    ),
    Mutant(
        "drop-on-failure",
        "what was written is dropped before it is taken again",
        EXACTLY_ONCE,
        RUNNER,
        "        self.reader.rewind(member.delivery.start_over())\n        member.sink.reset()\n",
        "        self.reader.rewind(member.delivery.start_over())\n",
    ),
    Mutant(
        "rewind-on-failure",
        "what was not committed is taken again after a failure",
        ALL,
        RUNNER,
        "        self.reader.rewind(member.delivery.start_over())\n        member.sink.reset()\n",
        "        member.delivery.start_over()\n        member.sink.reset()\n",
    ),
    Mutant(
        "rewind-on-conflict",
        "after a conflict the channel goes on where the record ends",
        EXACTLY_ONCE,
        RUNNER,
        "            self.reader.rewind([start])\n",
        "",
    ),
    Mutant(
        "flush-before-commit",
        "a simple sink is flushed before the channel is committed",
        SOLR,
        RUNNER,
        "            delivery.flush()\n",
        "",
    ),
    Mutant(
        "letters-before-commit",
        "dead letters are stored before the channel is committed",
        ALL,
        DELIVERY,
        '        self.metrics.add("EventRejectedCount", self.rejections.store(partition))\n',
        "        self.rejections.take()\n",
    ),
    Mutant(
        "own-offsets",
        "what was delivered of a partition is forgotten with it",
        ALL,
        "agent/runner/committer.py",
        "                self._unstored.pop(partition, None)\n",
        "                pass\n",
        f"{OVERTAKEN}::test_a_commit_that_waits_for_the_brokers_does_not_set_back_what_another_member_has_delivered_since",
    ),
)

DEAD_LETTERS = (
    Mutant(
        "letter-name",
        "a delivery that is tried again gives its letter the same name",
        SOLR,
        LETTERS,
        "        name = _name(path, id, polled)\n",
        "        name = uuid.uuid4().hex\n",
    ),
    Mutant(
        "letter-generation",
        "an event that is rejected after its replay is a new letter",
        ALL,
        LETTERS,
        'polled.replays.get(id, ""))',
        '"")',
    ),
    Mutant(
        "letter-epoch",
        "an event that is rejected after a reset is a new letter",
        ALL,
        LETTERS,
        "group, str(epoch), str(id)",
        'group, "", str(id)',
        f"{OVERTAKEN}::test_an_event_that_is_rejected_again_after_a_reset_is_a_letter_of_its_own",
    ),
    Mutant(
        "letters-count-once",
        "letters of one name count once",
        EXACTLY_ONCE,
        "agent/runner/deadletters/stored.py",
        "        if kept.letter not in seen:\n",
        "        if True:\n",
    ),
    Mutant(
        "replay-noted",
        "what is replayed is noted",
        ALL,
        "agent/runner/deadletterreplay.py",
        "**marker(kept.letter for kept, _ in lot)",
        "**marker(())",
    ),
    Mutant(
        "replay-committed",
        "a replay ends its transaction",
        ALL,
        "agent/runner/deadletterreplay.py",
        "            producer.commit_transaction(REPLAY_SECONDS)\n",
        "",
    ),
)

DRAIN = (
    Mutant(
        "drain-end",
        "a drain ends when nothing is left to deliver",
        ALL,
        "agent/runner/drain.py",
        "        self._over = not self._ends\n",
        "        self._over = True\n",
    ),
)

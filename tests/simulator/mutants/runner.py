"""Mutants of the runner of sinks: commits, failures and conflicts, dead letters and their replay, drains."""

from tests.simulator.mutants.mutant import ALL, EXACTLY_ONCE, OVERTAKEN, SOLR, Mutant

RUNNER = "agent/runner/local/sinks.py"
LETTERS = "agent/runner/deadletters/store.py"
DELIVERY = "agent/runner/delivery.py"
BULK = "sinks/bulk.py"

SINKS = (
    Mutant(
        "reset-on-resume",
        "staged records are dropped when another assignee was faster",
        EXACTLY_ONCE,
        RUNNER,
        "            self.members[0].delivery.lost({committed.partition})\n",
        "            self.members[0].delivery.rejections.lost({committed.partition})\n",
        "tests/runner/test_sinks.py::test_a_committing_sink_resumes_after_its_own_commit_whose_reply_was_lost",
    ),
    Mutant(
        "bulk-same-key",
        "a request waits for an earlier one with a key in common",
        SOLR,
        BULK,
        "            not keys.isdisjoint(pending) for pending, _ in self._pending\n",
        "            False for pending, _ in self._pending\n",
        "tests/sinks/test_hbase.py::test_rows_of_one_key_and_timestamp_are_written_in_order",
    ),
    Mutant(
        "drop-on-failure",
        "written events are dropped before they are polled again",
        EXACTLY_ONCE,
        RUNNER,
        "        self.reader.rewind(member.delivery.start_over())\n        member.sink.reset()\n",
        "        self.reader.rewind(member.delivery.start_over())\n",
    ),
    Mutant(
        "rewind-on-failure",
        "uncommitted records are polled again after a failure",
        ALL,
        RUNNER,
        "        self.reader.rewind(member.delivery.start_over())\n        member.sink.reset()\n",
        "        member.delivery.start_over()\n        member.sink.reset()\n",
    ),
    Mutant(
        "rewind-on-conflict",
        "after a conflict the channel continues at the end of the commit log",
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
        "        self.rejections.take_all()\n",
    ),
    Mutant(
        "own-offsets",
        "offsets of a lost partition are not committed",
        ALL,
        "agent/runner/committer.py",
        "                self._unstored.pop(partition, None)\n",
        "                pass\n",
        f"{OVERTAKEN}::test_a_retried_commit_does_not_rewind_what_another_member_delivered",
    ),
)

DEAD_LETTERS = (
    Mutant(
        "letter-name",
        "a retried delivery gives its dead letter the same name",
        SOLR,
        LETTERS,
        "        name = _name(path, id, polled)\n",
        "        name = uuid.uuid4().hex\n",
    ),
    Mutant(
        "letter-generation",
        "an event that is rejected after its replay is a new dead letter",
        ALL,
        LETTERS,
        'polled.replays.get(id, ""))',
        '"")',
    ),
    Mutant(
        "letter-epoch",
        "an event that is rejected after a reset is a new dead letter",
        ALL,
        LETTERS,
        "group, str(epoch), str(id)",
        'group, "", str(id)',
        f"{OVERTAKEN}::test_an_event_rejected_again_after_a_reset_is_another_dead_letter",
    ),
    Mutant(
        "letters-count-once",
        "dead letters of one name count once",
        EXACTLY_ONCE,
        "agent/runner/deadletters/reading.py",
        "        if dead_letter.name not in seen:\n",
        "        if True:\n",
    ),
    Mutant(
        "replay-noted",
        "replayed dead letters are marked",
        ALL,
        "agent/runner/deadletterreplay.py",
        "**replay_record(one.name for one, _ in batch)",
        "**replay_record(())",
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
        "a drain ends when all events are delivered",
        ALL,
        "agent/runner/drain.py",
        "        self._is_complete = not self._ends\n",
        "        self._is_complete = True\n",
    ),
)

"""Mutants: the project with one of its guards taken away, each of which the simulator has to find.

A schedule that passes says something only as far as it would fail where the code is wrong. Each mutant is an exact
replacement in one file; where the file has changed so that it cannot be made, that is an error: the list follows the
code. `./dev simulate --mutants` makes each of them in a copy of the tree. Then it runs the story that is told for it,
where there is one, or schedules until one fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STORIES = "tests/simulator/test_stories.py"
COPIED = ("agent", "plugins", "sources", "channels", "interceptors", "sinks", "conf", "tests")


class Mutant(NamedTuple):
    """One guard taken away."""

    name: str
    guard: str
    """What the code does no more."""
    sinks: tuple[str, ...]
    """Whose schedules find it."""
    file: str
    old: str
    new: str
    story: str = ""
    """The test that finds it, of `test_stories.py` where no file is named: where it takes more to coincide than comes
    about by chance, or what schedules do not have: other sinks, another cluster, an owner that sleeps for days."""


class Outdated(Exception):
    """A mutant cannot be made of the present code."""


HDFS, KAFKA, SOLR = ("hdfs",), ("kafka",), ("solr",)
SOURCES = ("taildir", "overflow")
"""What schedules without a sink are about."""
EXACTLY_ONCE = ("hdfs", "kafka")
ALL = ("hdfs", "kafka", "solr")
ON_HDFS = ("hdfs", "spark-hdfs")
SPARK = ("spark-hdfs", "spark-kafka", "spark-solr")
CHAIN, HDFS_SINK, KAFKA_SINK = "sinks/hdfs/chain.py", "sinks/hdfs/sink.py", "sinks/kafka/sink.py"
READER, RUNNER = "channels/kafka/reader.py", "agent/runner/local/sinks.py"
LETTERS = "agent/runner/deadletters/letters.py"
DELIVERY = "agent/runner/delivery.py"
OVERFLOW, OVERFLOWS = "agent/runner/local/overflow.py", ("overflow",)
FILES, TAILDIR, FILE_STORIES = "sources/taildir/files.py", ("taildir",), "tests/simulator/test_file_stories.py"

MUTANTS = (
    # --- the commit record on HDFS
    Mutant(
        "commit-swap",
        "a manifest whose place is taken is a conflict",
        HDFS,
        CHAIN,
        "        self._made.clear()  # the directory may have been moved or deleted, with what was uploaded\n"
        "        raise self._conflict(manifest)\n",
        "        return\n",
    ),
    Mutant(
        "commit-behind",
        "a commit that starts before the record's end is a conflict",
        HDFS,
        CHAIN,
        "if self.sealed or (self.position or 0) > manifest.start:",
        "if self.sealed:",
        "tests/sinks/test_hdfs_commits.py::test_a_start_within_a_committed_range_is_a_conflict",
    ),
    Mutant(
        "commit-sealed",
        "nothing is committed behind a seal",
        HDFS,
        CHAIN,
        "if self.sealed or (self.position or 0) > manifest.start:",
        "if (self.position or 0) > manifest.start:",
        "tests/sinks/test_hdfs_epochs.py::test_an_owner_that_sleeps_while_the_group_is_reset_commits_no_more",
    ),
    Mutant(
        "commit-gap",
        "a manifest begins where the one before ended",
        HDFS,
        CHAIN,
        "            manifest = msgspec.structs.replace(manifest, start=self.last.end)\n",
        "            pass\n",
        "tests/sinks/test_hdfs_commits.py::test_offsets_that_hold_no_records_are_passed_over",
    ),
    Mutant(
        "finish-commit",
        "who takes over finishes the renames of a commit that a crash cut off",
        HDFS,
        CHAIN,
        "            if self.last.id != self._published:\n                self._publish(self.last)\n",
        "",
    ),
    Mutant(
        "renamed-already",
        "a rename that was done and not answered is taken for done",
        HDFS,
        CHAIN,
        "        if self._hdfs.status(file.temporary) is None:\n",
        "        if False:\n",
    ),
    Mutant(
        "position-behind",
        "a group's position behind the record is not followed",
        HDFS,
        CHAIN,
        "            committed = max(committed or 0, self.last.end)\n        self.position",
        "            committed = committed if committed is not None else self.last.end\n        self.position",
    ),
    Mutant(
        "note-until-kept",
        "the letters of a commit stay with it until they are kept elsewhere",
        HDFS,
        CHAIN,
        "        if not manifest.note:\n            with",
        "        if True:\n            with",
    ),
    Mutant(
        "seal-with-note",
        "a seal hands on the letters of the commit before it",
        HDFS,
        CHAIN,
        "end=end, note=note))",
        "end=end))",
        "test_letters_of_a_commit_are_kept_though_its_owner_was_killed_and_its_path_changed",
    ),
    Mutant(
        "later-epoch",
        "a record of a later epoch than the group's is found",
        HDFS,
        CHAIN,
        "claim._replace(epoch=latest(hdfs, state, claim))",
        "claim._replace(epoch=claim.epoch)",
        "test_a_later_epoch_is_gone_on_with_though_who_opened_it_was_killed_and_its_group_deleted",
    ),
    Mutant(
        "seal-earlier",
        "who opens an epoch seals the earlier ones",
        ON_HDFS,
        HDFS_SINK,
        "                earlier.seal(successor)\n",
        "                earlier.look()\n",
        "test_an_owner_that_sleeps_in_a_commit_while_its_group_is_reset_does_not_end_it",
    ),
    Mutant(
        "other-epoch",
        "a position of another epoch says nothing about the record's",
        ON_HDFS,
        HDFS_SINK,
        "            committed = None  # it belongs to another epoch, and says nothing about this one\n",
        "            pass\n",
        "test_a_reset_that_a_late_commit_has_undone_before_anything_was_delivered_is_carried_out",
    ),
    Mutant(
        "moved-root",
        "a record below another root is settled and followed",
        HDFS,
        HDFS_SINK,
        "state if kind == self._kind else self.state",
        "self.state",
    ),
    Mutant(
        "old-root-sealed",
        "a record below another root is sealed",
        HDFS,
        HDFS_SINK,
        "            if (end := before.seal(chain)) is not None:\n"
        "                committed = max(committed or 0, end)\n"
        "            if before.successor() != chain.as_successor():\n",
        "            if False:\n",
        "test_an_owner_that_sleeps_in_a_commit_while_its_path_is_changed_does_not_end_it",
    ),
    Mutant(
        "one-successor",
        "of two that take a record over, one is told to ask again",
        ON_HDFS,
        HDFS_SINK,
        "if before.successor() != chain.as_successor():",
        "if False:",
        "test_of_two_drivers_that_take_a_record_over_to_other_paths_one_is_told_to_ask_again",
    ),
    Mutant(
        "epoch-opened-meanwhile",
        "an owner that finds a later epoch does not begin in its own",
        HDFS,
        HDFS_SINK,
        "if chain.sealed or latest(self._hdfs, self.state, chain.claim) != chain.claim.epoch:",
        "if False:",
        "tests/sinks/test_hdfs_epochs.py::test_of_two_owners_that_open_epochs_at_once_only_the_later_commits",
    ),
    Mutant(
        "epoch-by-clock",
        "no epoch is used twice, though the group was deleted",
        HDFS,
        "plugins/shared/offsets.py",
        "return max(epoch + 1, int(time.time() * 1000))",
        "return epoch + 1",
        "tests/plugins/test_offsets.py::test_an_epoch_is_later_than_the_one_before_and_than_any_from_before_now",
    ),
    # --- the runner of sinks
    Mutant(
        "reset-on-resume",
        "what is staged here is dropped when another owner was faster",
        EXACTLY_ONCE,
        RUNNER,
        "        self.members[0].delivery.lost({partition})\n        found",
        "        self.members[0].delivery.rejections.lost({partition})\n        found",
        "tests/runner/test_sinks.py::test_a_committing_sink_whose_answer_was_lost_goes_on_behind_its_own_commit",
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
        "                self.reader.rewind({partition: position})\n",
        "",
    ),
    Mutant(
        "flush-before-commit",
        "a simple sink is flushed before the channel is committed",
        SOLR,
        RUNNER,
        "            member.delivery.flush()\n",
        "",
    ),
    Mutant(
        "letters-before-commit",
        "a simple sink's letters are kept before the channel is committed",
        SOLR,
        RUNNER,
        '            member.metrics.add("EventRejectedCount", member.delivery.rejections.keep())\n',
        "            member.delivery.rejections.lost(set(self.ranges))\n",
    ),
    Mutant(
        "letters-with-commit",
        "letters travel with the commit",
        EXACTLY_ONCE,
        DELIVERY,
        "start, end, to_note(letters))",
        "start, end, b'')",
    ),
    Mutant(
        "letters-resumed",
        "who takes over keeps the letters of the newest commit",
        EXACTLY_ONCE,
        RUNNER,
        "self.notes[partition] = (found.claim, of_notes(found.notes))",
        "self.notes[partition] = (found.claim, [])",
    ),
    Mutant(
        "letters-after-commit",
        "letters are kept for a commit that came about, and for no other",
        EXACTLY_ONCE,
        DELIVERY,
        "        letters = self.rejections.of(claim.partition)\n",
        "        letters = self.rejections.of(claim.partition)\n        self.rejections.letters.put(letters)\n",
        "tests/runner/test_sinks.py::test_what_a_committing_sink_rejects_is_a_letter_once_however_often_it_is_offered",
    ),
    Mutant(
        "own-claims",
        "what was delivered of a partition is forgotten with it",
        ALL,
        RUNNER,
        "        self._forget_untold(partitions)\n        for member",
        "        for member",
        "test_a_commit_that_waits_for_the_brokers_does_not_set_back_what_another_member_has_delivered_since",
    ),
    # --- dead letters and their replay
    Mutant(
        "letter-name",
        "a delivery that is tried again gives its letter the same name",
        SOLR,
        LETTERS,
        "                name = _name(path, claim, id, taken)\n",
        "                name = uuid.uuid4().hex\n",
    ),
    Mutant(
        "letter-generation",
        "an event that is rejected after its replay is a new letter",
        ALL,
        LETTERS,
        'str(taken.replays.get(id, ""))',
        '""',
    ),
    Mutant(
        "letter-epoch",
        "an event that is rejected after a reset is a new letter",
        ALL,
        LETTERS,
        "str(claim.epoch), str(id)",
        '"", str(id)',
        "test_an_event_that_is_rejected_again_after_a_reset_is_a_letter_of_its_own",
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
        "agent/runner/deadletters/replay.py",
        "**marker(kept.letter for kept, _ in lot)",
        "**marker(())",
    ),
    Mutant(
        "replay-committed",
        "a replay ends its transaction",
        ALL,
        "agent/runner/deadletters/replay.py",
        "            producer.commit_transaction(ANSWER_SECONDS)\n",
        "",
    ),
    # --- the channel's reader
    Mutant(
        "topic-confirmed",
        "what was fetched waits until the topic's id is confirmed",
        ALL,
        READER,
        "        self._topic_ids.ask(self._confirmed)\n",
        "        self._confirmed(self._claim.topic_id)\n",
    ),
    Mutant(
        "offset-of-old-topic",
        "an offset of a topic that was deleted counts as none",
        ALL,
        "channels/kafka/positions.py",
        'elif said.topic_id not in ("", claim.topic_id):',
        "elif False:",
    ),
    Mutant(
        "loss-of-this-topic",
        "no record of a topic made again is taken for the rest of one that has lost some",
        ALL,
        READER,
        "return error if self._topic_ids.get() == self._claim.topic_id else self._made_again()",
        "return error",
        "tests/channels/test_kafka.py::test_nobody_is_told_to_give_up_records_of_a_topic_that_is_made_again_meanwhile",
    ),
    Mutant(
        "fetched-before-seek",
        "what was fetched before a seek is dropped",
        ALL,
        READER,
        "if partition not in self._queues or partition in self._seeks:",
        "if partition not in self._queues:",
        "test_what_arrives_between_a_failure_and_the_seek_is_not_delivered_before_what_failed",
    ),
    Mutant(
        "queued-before-seek",
        "what waits is dropped when the position is moved",
        ALL,
        READER,
        "            for partition in positions:\n                self._forget(partition)\n            seeks",
        "            seeks",
    ),
    Mutant(
        "begin-registered",
        "where a partition begins is committed before it is read",
        ALL,
        READER,
        "        if positions:\n            self._commit(positions)\n",
        "",
    ),
    Mutant(
        "partition-unread",
        "a partition that nobody reads makes a member join anew",
        ALL,
        READER,
        "            again, self._unread = self._unread & members.unread, members.unread\n",
        "            again = set[int]()\n",
        "test_a_drain_does_not_give_up_a_partition_that_was_added_while_its_agent_was_away",
    ),
    # --- the channel's producer
    Mutant(
        "put-acknowledged",
        "a put returns when the brokers have the batch",
        ALL,
        "channels/kafka/producing.py",
        "            self._await(delivery, len(batch))\n",
        "            pass\n",
    ),
    # --- the sink to Kafka
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
        KAFKA_SINK,
        "self.membership() or self._onlooker",
        "self._onlooker",
        "test_a_transaction_of_an_agent_that_slept_does_not_undo_a_reset",
    ),
    Mutant(
        "kafka-resume-group",
        "who takes over asks where the last transaction ended",
        KAFKA,
        KAFKA_SINK,
        "                committed, claim = at.offset, claim._replace(epoch=said.epoch, record=said.record)\n",
        "                pass\n",
        "tests/simulator/test_kafka_sink.py::"
        "test_where_there_may_be_no_record_the_group_says_where_the_last_transaction_ended",
    ),
    Mutant(
        "kafka-record",
        "the record beside the group's offsets is read",
        KAFKA,
        KAFKA_SINK,
        "            entry = positions.read(claim) if positions is not None else None\n",
        "            entry = None\n",
    ),
    Mutant(
        "kafka-record-written",
        "the record beside the group's offsets is written",
        KAFKA,
        KAFKA_SINK,
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
        KAFKA_SINK,
        "            writer.settle()\n",
        "            pass\n",
        "tests/simulator/test_kafka_sink.py::test_records_for_another_cluster_are_stored_when_their_stage_returns",
    ),
    Mutant(
        "kafka-other-epoch",
        "a position of an earlier epoch says nothing about the record's",
        KAFKA,
        KAFKA_SINK,
        "                committed = None  # it belongs to an earlier epoch\n",
        "                pass\n",
        "tests/simulator/test_kafka_sink.py::test_a_position_of_an_earlier_epoch_than_the_records_own_is_none",
    ),
    Mutant(
        "kafka-letters-aborted",
        "a transaction that holds letters alone is aborted, too",
        KAFKA,
        KAFKA_SINK,
        "if writer is not None and (writer.events or writer.began):",
        "if writer is not None and writer.events:",
        "test_a_transaction_that_holds_letters_alone_is_aborted_where_the_brokers_are_away",
    ),
    # --- the driver on Spark
    Mutant(
        "driver-overtaken",
        "a driver that was overtaken commits no offset",
        SPARK,
        "channels/kafka/__init__.py",
        "elif why := overtaken(claim, said):",
        "elif why := '':",
    ),
    Mutant(
        "driver-of-old-topic",
        "a driver of a topic that was deleted commits no offset for the one made again",
        SPARK,
        "channels/kafka/__init__.py",
        "                        self.confirm(claim)\n",
        "                        pass\n",
        "tests/system/test_kafka_channel.py::test_positions_of_a_topic_that_was_made_again_are_not_told_where_its_group_says_nothing_any_more",
    ),
    Mutant(
        "reset-restored",
        "a reset that a late commit has undone is made good",
        SPARK,
        "agent/runner/spark/query.py",
        "            if found.epoch < ours.epoch or position is None:\n",
        "            if False:\n",
        "test_a_commit_of_a_driver_before_a_reset_that_comes_late_does_not_undo_the_reset",
    ),
    Mutant(
        "loss-of-this-topic-on-spark",
        "no record of a topic made again is taken for the rest of one that has lost some",
        SPARK,
        "agent/runner/spark/query.py",
        "        starts, ends = self.channel.starts(), self.channel.ends()\n        self._look()\n",
        "        self._look()\n        starts, ends = self.channel.starts(), self.channel.ends()\n",
        "test_nobody_is_told_to_give_up_records_of_a_topic_that_is_made_again_while_a_driver_looks_what_is_left",
    ),
    # --- a drain
    Mutant(
        "drain-end",
        "a drain ends when nothing is left to deliver",
        ALL,
        "agent/runner/drain.py",
        "        self._over = not self._ends\n",
        "        self._over = True\n",
    ),
    # --- files that are followed
    Mutant(
        "taildir-present",
        "of several files that had a name, writes are those of the one that has it now",
        TAILDIR,
        FILES,
        "for named in (False, True):",
        "for named in (True, False):",
        f"{FILE_STORIES}::"
        "test_writes_to_a_file_are_heard_of_after_what_its_name_held_before_was_read_in_a_compressed_copy",
    ),
    Mutant(
        "taildir-replaced",
        "what is written under a name that another file had since may be that one's",
        TAILDIR,
        FILES,
        "tail.grown = None if tail.replaced else True",
        "tail.grown = True",
        f"{FILE_STORIES}::"
        "test_what_is_written_to_a_file_that_was_renamed_since_does_not_count_as_lost_with_the_one_before",
    ),
    # --- the overflow of a Kafka channel
    Mutant(
        "overflow-late",
        "what a late put has stored is not forwarded",
        OVERFLOWS,
        OVERFLOW,
        "batch, self._letters, owners), put, len(batch))",
        "batch, self._letters, owners), None, len(batch))",
    ),
    Mutant(
        "overflow-behind",
        "while the overflow holds anything all puts go there",
        OVERFLOWS,
        OVERFLOW,
        "            taken = None if self._storing else reader.take(0)\n",
        "            taken = None\n",
    ),
    Mutant(
        "overflow-under-way",
        "an overflow does not end while a put into it is under way",
        OVERFLOWS,
        OVERFLOW,
        "                if not self._storing and self._reason:\n",
        "                if self._reason:\n",
    ),
    Mutant(
        "overflow-commit",
        "what is forwarded is committed once the channel holds it",
        OVERFLOWS,
        OVERFLOW,
        "                    self._pass_on(taken)\n"
        "                    reader.commit({self._claims[taken.partition]: taken.end})\n",
        "                    reader.commit({self._claims[taken.partition]: taken.end})\n"
        "                    self._pass_on(taken)\n",
    ),
    Mutant(
        "overflow-inherited",
        "an agent that finds events in the overflow forwards them first",
        OVERFLOWS,
        OVERFLOW,
        '                    self._begin("events of an earlier outage are left")\n',
        "                    pass\n",
    ),
)


def made(mutant: Mutant, directory: Path) -> None:
    """A copy of the tree with that guard taken away. Raises Outdated."""
    text = (ROOT / mutant.file).read_text()
    if (found := text.count(mutant.old)) != 1:
        raise Outdated(f"mutant {mutant.name}: {mutant.file} has {found} times, not once:\n{mutant.old}")
    for name in COPIED:
        shutil.copytree(ROOT / name, directory / name)  # with what is compiled: nothing else is as slow to begin
    shutil.copy(ROOT / "pyproject.toml", directory)  # how tests are run
    (directory / mutant.file).write_text(text.replace(mutant.old, mutant.new))


def chosen(names: Collection[str]) -> list[Mutant]:
    """Those of these names; all where none is named. Raises Outdated for what is in the list no more."""
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        raise Outdated(f"there is no mutant {min(unknown)}")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def found(mutant: Mutant, *, first: int = 0, attempts: int) -> str | None:
    """What finds it, in words that begin with the seed or with the story's name; None where all pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        directory = Path(name)
        made(mutant, directory)
        return _by_story(mutant, directory) if mutant.story else _by_chance(mutant, directory, first, attempts)


def _by_story(mutant: Mutant, directory: Path) -> str | None:
    test = mutant.story if "::" in mutant.story else f"{STORIES}::{mutant.story}"
    outcome = _run(directory, "pytest", "-q", "-p", "no:cacheprovider", test)
    if outcome.returncode == 0:
        return None
    if outcome.returncode != 1:  # pytest's code for tests that failed
        raise RuntimeError(f"mutant {mutant.name} does not run:\n{outcome.stdout}{outcome.stderr}")
    why = re.search(r"^E +(.*)$", outcome.stdout, re.MULTILINE)
    return f"{mutant.story}: {why[1] if why else outcome.stdout}"


def _by_chance(mutant: Mutant, directory: Path, first: int, attempts: int) -> str | None:
    sinks = [word for sink in mutant.sinks for word in ("--source" if sink in SOURCES else "--sink", sink)]
    limits = ["--first", str(first), "--seeds", str(attempts), "--no-shrink"]
    outcome = _run(directory, "tests.simulator", *limits, *sinks)
    failure = re.search(r"^seed (\d+: .*)$", outcome.stdout, re.MULTILINE)
    if failure is None and "passed, 0 failed" not in outcome.stdout:
        raise RuntimeError(f"mutant {mutant.name} does not run:\n{outcome.stdout}{outcome.stderr}")
    return failure[1] if failure is not None else None


def _run(directory: Path, *module: str) -> subprocess.CompletedProcess[str]:
    """That module of Python's, in the copy."""
    alone = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, **alone}
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)

"""File channel whose processes die: no acknowledged event is lost, and no id is given twice."""

import contextlib
import logging
import os
import tempfile
import threading
from collections import Counter
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flafka.plugins import Assignment, Batch, Event
from tests.channels.file_running import consumer, events, opened, segments
from tests.fixtures.memory import room
from tests.fixtures.processes import Forked


def put_and_take(directory: Path, round: int, acknowledged: Connection, delivered: Connection) -> None:
    """Put and take until the process is killed."""
    files = opened(directory)

    def put(writer: int) -> None:
        for n in range(10**9):
            files.put(Batch.of([Event(b"%d %d" % (writer, n))]))
            os.write(acknowledged.fileno(), b"%d %d\n" % (writer, n))

    for writer in range(4):
        threading.Thread(target=put, args=(round * 4 + writer,)).start()
    owner = consumer(files)
    while True:
        for polled in iter(lambda: owner.reader.take(0.01), None):
            owner.got.append(polled)
            for body, id in zip(polled.batch.bodies.to_pylist(), polled.batch.ids(), strict=True):
                os.write(delivered.fileno(), b"%s %s\n" % (body, str(id).encode()))
            owner.commit()


def test_nothing_that_was_acknowledged_is_lost_by_kills(tmp_path: Path, forked: Forked) -> None:
    acknowledged: set[str] = set()
    delivered: dict[str, str] = {}
    for round in range(4):
        pipes = [Pipe(duplex=False) for _ in range(2)]
        process = forked.start(put_and_take, tmp_path, round, *(sender for _, sender in pipes))
        for _, sender in pipes:
            sender.close()
        with contextlib.ExitStack() as stack:
            answers, deliveries = (
                stack.enter_context(os.fdopen(os.dup(receiver.fileno()), "rb")) for receiver, _ in pipes
            )
            taken_lines: list[bytes] = []
            reader = threading.Thread(target=lambda pipe=deliveries, to=taken_lines: to.extend(pipe))
            reader.start()
            lines = [answers.readline() for _ in range(400)]
            process.kill()
            lines += answers.readlines()
            process.join()
            reader.join()
        for receiver, _ in pipes:
            receiver.close()
        acknowledged |= {line.decode().strip() for line in lines if line.endswith(b"\n")}
        for line in taken_lines:
            writer, n, id = line.decode().split()
            assert delivered.setdefault(id, f"{writer} {n}") == f"{writer} {n}", "an id is given to two events"
    files = opened(tmp_path)
    owner = consumer(files)
    remaining = {body.decode() for body in owner.take_all()}
    for polled in owner.got:
        for id, event in zip(polled.batch.ids(), polled.batch, strict=True):
            assert delivered.setdefault(str(id), event.body.decode()) == event.body.decode()
    files.close()
    assert acknowledged <= {*delivered.values(), *remaining}
    assert len(acknowledged) >= 1600
    assert max(Counter(delivered.values()).values()) == 1, "no event is stored twice"


class Model(RuleBasedStateMachine):
    """Puts, takes, commits, rewinds and crashes in any order, beside a plain list of the expected events."""

    @initialize()
    def begin(self) -> None:
        logging.disable(logging.CRITICAL)
        self.disk = mock.patch.multiple(os, fsync=lambda _: None, fdatasync=lambda _: None)  # power stays
        self.disk.start()
        self.temporary = tempfile.TemporaryDirectory(dir=room())
        self.directory = Path(self.temporary.name)
        self.files = opened(self.directory)
        self.owner = consumer(self.files)
        self.waiting: list[bytes] = []
        self.taken = 0
        self.number = 0

    @rule(count=st.integers(1, 3), size=st.sampled_from([0, 0, 300_000]))
    def put(self, count: int, size: int) -> None:
        batch = events(*range(self.number, self.number + count), size=size)
        self.number += count
        self.files.put(batch)
        self.waiting += batch.bodies.to_pylist()

    @rule()
    def take(self) -> None:
        bodies = self.owner.take_all()
        assert bodies == self.waiting[self.taken :]
        self.taken = len(self.waiting)

    @precondition(lambda self: self.owner.got)
    @rule()
    def commit(self) -> None:
        self.owner.commit()
        self.waiting = self.waiting[self.taken :]
        self.taken = 0

    @precondition(lambda self: self.owner.got)
    @rule()
    def rewind(self) -> None:
        assert self.owner.reader is not None
        starts: dict[int, Assignment] = {}
        for polled in self.owner.got:
            starts.setdefault(polled.assignment.partition, polled.assignment.with_offset(polled.offsets.start))
        self.owner.reader.rewind(starts.values())
        self.owner.got.clear()
        self.taken = 0

    @rule(torn=st.binary(max_size=100))
    def crash(self, torn: bytes) -> None:
        self.files.close()
        for path in segments(self.directory)[-1:]:
            with path.open("ab") as file:
                file.write(torn)
        self.files = opened(self.directory)
        self.owner = consumer(self.files)
        self.taken = 0

    @invariant()
    def size(self) -> None:
        if hasattr(self, "files"):
            assert self.files.metrics.get("ChannelSize") == len(self.waiting)
            share = (len(self.waiting) - self.taken) / self.files.config.capacity
            assert self.files.metrics.get("ChannelFillPercentage") == pytest.approx(100 * share)

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        self.disk.stop()
        if hasattr(self, "files"):
            self.files.close()
            self.temporary.cleanup()


TestModel = Model.TestCase

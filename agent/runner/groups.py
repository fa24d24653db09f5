"""Runs a sink group: one reader of the channel, several sinks, and a processor that says which one gets a batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence

from agent.runner.processors import processor_of
from agent.runner.sinks import ReaderFailed, SinkRunner
from agent.runner.supervise import Backoff
from agent.topology import SinkGroupSpec
from plugins import Claim, Reader

ROUND_SECONDS = 5.0
"""The longest wait, as in Flume, before all sinks are asked again when none of them worked."""


class GroupRunner:
    """Hands each batch to one sink, and where that fails to another, at least once.

    A batch is what is taken from one commit of the channel to the next. The members share the reader and what is
    taken and not committed: after a failure that is dropped and taken again, whoever gets it then. A member that
    fails shows in its own metrics until it has delivered a batch again.
    """

    def __init__(self, spec: SinkGroupSpec, members: Sequence[SinkRunner], member: str) -> None:
        self.spec, self.members, self.member = spec, tuple(members), member
        self.channel = members[0].channel
        self.processor = processor_of(spec.processor, spec.sinks)
        self.stopping, self.draining = threading.Event(), threading.Event()
        self.ranges = members[0].ranges
        for sink in members:
            sink.ranges, sink.draining = self.ranges, self.draining
            sink.stopping = sink.component.stopping = self.stopping
        self.log = logging.getLogger(spec.path)
        self.thread = threading.Thread(target=self.run, name=spec.path, daemon=True)
        self._reader: Reader | None = None
        self._opened: set[str] = set()
        self._attempts: Iterator[str] | None = None
        """Whom to try next with the present batch."""
        self._current: SinkRunner | None = None
        self._busy = False
        """Whether the current member has some of the batch."""
        self._failing = False
        self._backoff = Backoff(ROUND_SECONDS)

    def failing(self) -> bool:
        """Whether all members have failed, one after the other, and none has delivered a batch since."""
        return self._failing

    # --- life

    def run(self) -> None:
        """Drain the channel until stopping is set; a reader that fails is made anew."""
        backoff = Backoff()
        while not self.stopping.is_set():
            try:
                self.work()
                return
            except Exception as e:  # noqa: BLE001  # whatever it is, it must not end the group
                self._failing = True
                (self._current or self.members[0]).failed(e)
            finally:
                self.close()
            backoff.wait(self.stopping)

    def work(self) -> None:
        """Read until stopping is set, then deliver what was taken."""
        while not self.channel.ready.wait(0.2):
            if self.stopping.is_set():
                return
        self.open()
        while not self.stopping.is_set():
            if not self.turn():
                self._backoff.wait(self.stopping)
        if self._current is not None:
            self._current.flush(set(self.ranges))

    def open(self) -> None:
        """Open what can be opened, and join the channel's group."""
        for sink in self.members:
            try:
                self._open(sink)
            except Exception as e:  # noqa: BLE001  # tried again when it has to work
                sink.failed(e)
                self.processor.failed(sink.spec.name)
        self._reader = self.channel.channel.reader(self, group=self.members[0].spec.group, member=self.member)
        for sink in self.members:
            sink.reader = self._reader

    def close(self) -> None:
        """Release the reader and all members."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._current, self._attempts, self._busy = None, None, None, False
        self._opened.clear()
        for sink in self.members:
            sink.reader = None
            sink.close()

    # --- events

    def turn(self) -> bool:
        """Take once for the member whose turn it is, and have it flush what is due. False where no member is left."""
        if self._current is None and not self._choose():
            self._failing = True
            return False
        try:
            self._step()
        except ReaderFailed:
            raise
        except Exception as e:  # noqa: BLE001  # the next member gets it
            self._member_failed(e)
            self._current = None
        return True

    def _step(self) -> None:
        sink = self._current
        assert sink is not None
        self._open(sink)
        taken = sink.take()
        if taken is not None:
            sink.write(taken)
            self._busy = sink.waiting()
        elif isinstance(sink.last_failure, ReaderFailed):
            sink.forget_failure()
        sink.flush_due(idle=taken is None)
        if self._busy and not sink.waiting():
            self.processor.delivered(sink.spec.name)
            self._backoff.reset()
            self._current, self._attempts, self._busy, self._failing = None, None, False, False

    def _choose(self) -> bool:
        """Say who is next; False where none of the group is left for now."""
        if self._attempts is None:
            self._attempts = self.processor.attempts()
        name = next(self._attempts, None)
        if name is None:
            self._attempts = None
            return False
        for sink in self.members:
            if sink.spec.name == name:
                self._current = sink
            else:
                sink.metrics.forget("Lag")  # it is the channel's, and shown once
        return True

    def _open(self, sink: SinkRunner) -> None:
        if sink.spec.name not in self._opened:
            try:
                sink.open()
            except BaseException:
                sink.release()
                raise
            self._opened.add(sink.spec.name)

    def _member_failed(self, error: Exception) -> None:
        sink = self._current
        assert sink is not None
        sink.failed(error)
        if self._busy and not sink.waiting():  # it did its part: the channel did not take the commit
            self.processor.delivered(sink.spec.name)
        else:
            self.processor.failed(sink.spec.name)
        self._busy = False
        try:
            sink.untold.clear()  # another member may come further before this one delivers again
            sink.start_over()
        except Exception as e:  # noqa: BLE001  # what it still holds goes with it
            sink.failed(e)
            self._opened.discard(sink.spec.name)
            sink.release()

    # --- Owner

    def assigned(self, committed: Mapping[Claim, int | None]) -> Mapping[Claim, int | None]:
        """Take partitions over."""
        return self.members[0].assigned(committed)

    def revoked(self, partitions: set[int]) -> None:
        """Deliver what was taken of them while they are still ours."""
        if self._current is not None:
            try:
                self._current.flush(partitions)
            except Exception as e:  # noqa: BLE001  # the next owner takes it again from the last commit
                self._member_failed(e)
        self.lost(partitions)

    def lost(self, partitions: set[int]) -> None:
        """Forget them."""
        for sink in self.members:
            sink.rejections.lost(partitions)
        self.members[0].lost(partitions)

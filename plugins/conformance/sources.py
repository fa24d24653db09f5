"""Conformance checks of a source."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from flafka.plugins.batch import Batch
from flafka.plugins.conformance.components import Properties, check_component, make
from flafka.plugins.conformance.samples import ARRIVAL_SECONDS, ODD, some_of
from flafka.plugins.source import Source

IDLE_SECONDS = 0.5
"""Time in which a source without events may begin to wait, before it has to stop."""
STOP_SECONDS = 5.0
"""Maximum time between `stopping` and the end of `batches`."""


def check_source(
    cls: type[Source[Any]],
    properties: Properties,
    send: Callable[[Any, Sequence[bytes]], None],
    *,
    repeats: bool | None = None,
    failing: Properties | None = None,
) -> None:
    """Check that a source brings in what is sent, stops when it has to, and repeats what was not stored.

    `send(source, bodies)` makes the world send so many events with exactly these bodies. `repeats` says that what was
    yielded but not stored comes again after a failure and after a restart. If it is None, the class docstring says
    so: a source that promises "at least once" or "exactly once" has to repeat. Give False if the sender repeats what
    was not acknowledged, as clients of HTTP do, because `send` sends once.
    """
    check_component(cls, properties, failing=failing)
    if repeats is None:
        repeats = re.search(r"(?i)\b(at least|exactly)\s+once\b", cls.__doc__ or "") is not None
    with _Drain(make(cls, properties), store=True) as drain:
        drain.idle()
    with _Drain(make(cls, properties), store=True) as drain:
        for bodies in ([b"one"], [b"line %d" % i for i in range(200)], [ODD, b"after"]):
            drain.received.clear()
            send(drain.source, bodies)
            drain.expect(bodies)
    if repeats:
        bodies = [b"again %d" % i for i in range(10)]
        source = make(cls, properties)
        with _Drain(source, store=False) as drain:
            send(drain.source, bodies)
            drain.wait(lambda: bool(drain.received))
        with _Drain(source, store=False) as drain:  # the runner opens the same object again after a failure
            drain.repeats(bodies[:1], "a failure")
        with _Drain(make(cls, properties), store=True) as drain:
            drain.repeats(bodies, "a restart")
            drain.expect(bodies)


class _Drain:
    """Open a source, iterate it on a thread of its own, as the runner does, and close it."""

    def __init__(self, source: Source[Any], *, store: bool) -> None:
        self.received: list[bytes] = []
        self.source, self._store = source, store
        source.stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Drain:
        self.source.open()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.source.stopping.set()
        self._thread.join(STOP_SECONDS)
        goes_on = self._thread.is_alive()
        self.source.close()
        if kind is None:
            name = type(self.source).__name__
            assert not goes_on, f"{name} goes on for {STOP_SECONDS} s after stopping is set"
            self._tell()

    def idle(self) -> None:
        """Leave the source alone for a while."""
        self._thread.join(IDLE_SECONDS)
        self._tell()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, at most until the source has ended or patience is over."""
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while not condition() and self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.01)
        self._tell()

    def repeats(self, bodies: Sequence[bytes], cause: str) -> None:
        """Raise AssertionError unless these bodies, which were yielded and not stored, come again."""
        wanted = Counter(bodies)
        self.wait(lambda: not wanted - Counter(self.received))
        assert not (missing := wanted - Counter(self.received)), (
            f"{type(self.source).__name__} lost {some_of(missing)}: they were yielded, no channel had stored them, "
            f"and after {cause} they do not come again. Save a position in stored(), not before the yield. If the "
            "sender repeats what was not acknowledged, give check_source(…, repeats=False)"
        )

    def expect(self, bodies: Sequence[bytes]) -> None:
        """Raise AssertionError unless the source brings in these bodies and no others."""
        wanted = Counter(bodies)
        self.wait(lambda: not wanted - Counter(self.received))
        name = type(self.source).__name__
        assert not (missing := wanted - Counter(self.received)), f"{name} lost {some_of(missing)}"
        assert not (wrong := Counter(self.received) - wanted), f"{name} brought in what nobody sent: {some_of(wrong)}"

    def _tell(self) -> None:
        if self._failure is not None:
            name = type(self.source).__name__
            raise AssertionError(f"{name}.batches() failed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        pending: list[Batch] = []
        try:
            for batch in self.source.batches():
                assert batch.origin is None, "what a source yields has no origin: only a channel gives one"
                if (names := self.source.sets_headers()) is not None:
                    new = set(batch.header_names) - set(names)
                    assert not new, f"sets_headers() does not name the headers {', '.join(sorted(new))}"
                self.received += batch.bodies.to_pylist()
                pending.append(batch)
                # As late as it may be: only when no more batches may be on their way.
                while self._store and len(pending) >= self.source.in_flight:
                    self.source.stored(pending.pop(0))
                if not self._store and len(pending) >= self.source.in_flight:
                    break
            for batch in pending if self._store else ():
                self.source.stored(batch)
        except BaseException as e:  # noqa: BLE001  # told by __exit__
            self._failure = e

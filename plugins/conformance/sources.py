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
from flafka.plugins.conformance.samples import ARRIVAL_SECONDS, NON_UTF8_BODY, describe_bodies
from flafka.plugins.source import Source

IDLE_SECONDS = 0.5
"""Time for which a source without events waits, before it must stop."""
STOP_SECONDS = 5.0
"""Longest time between `stopping` and the end of `batches`."""


def check_source(
    cls: type[Source[Any]],
    properties: Properties,
    send: Callable[[Any, Sequence[bytes]], None],
    *,
    redelivers: bool | None = None,
    failing: Properties | None = None,
) -> None:
    """Check that a source yields sent events, stops in time, and redelivers unstored events.

    `send(source, bodies)` sends one event for each body to the running source. `redelivers` is True if the source
    yields unstored events again, after a failure and after a restart. If None, it is True if the docstring of the
    class promises "at least once" or "exactly once". Pass False if the sender repeats unacknowledged events, as
    clients of HTTP do: `send` sends once.
    """
    check_component(cls, properties, failing=failing)
    if redelivers is None:
        redelivers = re.search(r"(?i)\b(at least|exactly)\s+once\b", cls.__doc__ or "") is not None
    with _SourceRunner(make(cls, properties), store=True) as runner:
        runner.idle()
    with _SourceRunner(make(cls, properties), store=True) as runner:
        for bodies in ([b"one"], [b"line %d" % i for i in range(200)], [NON_UTF8_BODY, b"after"]):
            runner.received.clear()
            send(runner.source, bodies)
            runner.expect(bodies)
    if redelivers:
        bodies = [b"again %d" % i for i in range(10)]
        source = make(cls, properties)
        with _SourceRunner(source, store=False) as runner:
            send(runner.source, bodies)
            runner.wait(lambda: bool(runner.received))
        with _SourceRunner(source, store=False) as runner:  # the runner reopens the object after a failure
            runner.expect_redelivery(bodies[:1], "a failure")
        with _SourceRunner(make(cls, properties), store=True) as runner:
            runner.expect_redelivery(bodies, "a restart")
            runner.expect(bodies)


class _SourceRunner:
    """Context that opens a source, iterates it on another thread, as the agent's runner does, and closes it."""

    def __init__(self, source: Source[Any], *, store: bool) -> None:
        self.received: list[bytes] = []
        self.source, self._store = source, store
        source.stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _SourceRunner:
        self.source.open()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.source.stopping.set()
        self.source.wake()
        self._thread.join(STOP_SECONDS)
        is_running = self._thread.is_alive()
        self.source.close()
        if kind is None:
            name = type(self.source).__name__
            assert not is_running, f"{name} goes on for {STOP_SECONDS} s after stopping is set"
            self._raise_failure()

    def idle(self) -> None:
        """Let the source wait without events for `IDLE_SECONDS`. Raises AssertionError if it fails."""
        self._thread.join(IDLE_SECONDS)
        self._raise_failure()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true or the source ends, and after `ARRIVAL_SECONDS` at the latest.

        Raises AssertionError if the source has failed.
        """
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while not condition() and self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.01)
        self._raise_failure()

    def expect_redelivery(self, bodies: Sequence[bytes], cause: str) -> None:
        """Raise AssertionError unless the source yields these unstored bodies again."""
        wanted = Counter(bodies)
        self.wait(lambda: not wanted - Counter(self.received))
        assert not (missing := wanted - Counter(self.received)), (
            f"{type(self.source).__name__} lost {describe_bodies(missing)}: they were yielded but not stored, and "
            f"after {cause} they are not yielded again. Save offsets in stored(), not before the yield. If the "
            "sender repeats unacknowledged events, pass check_source(…, redelivers=False)"
        )

    def expect(self, bodies: Sequence[bytes]) -> None:
        """Raise AssertionError unless the source has yielded exactly these bodies, in any order."""
        wanted = Counter(bodies)
        self.wait(lambda: not wanted - Counter(self.received))
        name = type(self.source).__name__
        assert not (missing := wanted - Counter(self.received)), f"{name} lost {describe_bodies(missing)}"
        assert not (unexpected := Counter(self.received) - wanted), (
            f"{name} yielded events that nobody sent: {describe_bodies(unexpected)}"
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            name = type(self.source).__name__
            raise AssertionError(f"{name}.batches() failed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        """Iterate the source, and store its batches as late as allowed.

        Without `store`, stop at `in_flight` batches.
        """
        pending: list[Batch] = []
        try:
            for batch in self.source.batches():
                assert batch.origin is None, "a source yields batches without origin: only a channel sets it"
                if (names := self.source.sets_headers()) is not None:
                    new = set(batch.header_names) - set(names)
                    assert not new, f"sets_headers() does not name the headers {', '.join(sorted(new))}"
                self.received += batch.bodies.to_pylist()
                pending.append(batch)
                # As late as the contract allows: once `in_flight` batches are unresolved.
                while self._store and len(pending) >= self.source.in_flight:
                    self.source.stored(pending.pop(0))
                if not self._store and len(pending) >= self.source.in_flight:
                    break
            for batch in pending if self._store else ():
                self.source.stored(batch)
        except BaseException as e:  # noqa: BLE001  # raised by __exit__
            self._failure = e

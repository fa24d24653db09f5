"""Syslog source on a thread of its own, as the runner has it, and its events."""

import threading

from flafka.agent.services.running import until
from flafka.plugins import Event


class Running:
    """`with Running(source) as running:` iterates `batches()` until the block ends or `stop()` is called."""

    def __init__(self, source, hold=None):
        self.source, self.hold = source, hold
        self.batches = []
        self.failure = None
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def _pump(self):
        try:
            for batch in self.source.batches():
                self.batches.append(batch)
                if self.hold is not None:
                    self.hold.wait()
        except Exception as e:
            self.failure = e

    def __enter__(self):
        self.source.open()
        self._thread.start()
        return self

    def __exit__(self, *_):
        if self.hold is not None:
            self.hold.set()
        self.stop()
        self.source.close()
        if self.failure is not None:
            raise self.failure

    def stop(self, within=60.0):
        self.source.stopping.set()
        self.source.wake()
        self._thread.join(within)
        assert not self._thread.is_alive(), "the source did not stop"

    @property
    def events(self) -> list[Event]:
        return [event for batch in list(self.batches) for event in batch]

    @property
    def count(self):
        return sum(len(batch) for batch in list(self.batches))

    def wait_for(self, events):
        until(lambda: self.count >= events, f"{events} events")
        assert self.count == events
        return self.events

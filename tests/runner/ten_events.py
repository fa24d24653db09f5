"""Sources of ten events, channels that keep their events in memory, and a runner for both."""

import threading

import pyarrow as pa

from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.topology import ComponentSpec, ConfigLocation, Route, SelectorSpec, SourceSpec
from flafka.plugins import Batch, Channel, Config, Event, Interceptor, Source
from tests.runner.pipelines import MemoryDeadLetters

NOWHERE = ConfigLocation("test.conf", 1)
NUMBERS = [b"%d" % n for n in range(10)]


class Ten(Source[Config]):
    """Ten batches of one event each; keeps the stored ones."""

    type_name = "ten"

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.reported: list[bytes] = []

    def batches(self):
        for n in range(10):
            yield Batch.of([Event(b"%d" % n)])

    def stored(self, batch):
        self.reported.append(batch.bodies[0].as_py())


class TenAtOnce(Ten):
    """Ten batches with four in flight, of columns, as the source's own thread delivers few events."""

    type_name = "ten-at-once"
    in_flight = 4

    def batches(self):
        for number in NUMBERS:
            yield Batch.of_columns(pa.array([number], pa.binary()), {})


class Store(Channel[Config]):
    """Channel that keeps its events, and fails a given number of times."""

    type_name = "store"

    def __init__(self, config=None, name=""):
        super().__init__(config or Config(), name)
        self.held: list[bytes] = []
        self.failures: list[Exception] = []
        self.lock = threading.Lock()

    def put(self, batch):
        with self.lock:
            if self.failures:
                raise self.failures.pop()
            self.held += batch.bodies.to_pylist()

    def reader(self, owner, *, group, member):
        raise NotImplementedError


class Stumble(Interceptor[Config]):
    """Interceptor that fails the first time."""

    type_name = "stumble"

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.fallen = False

    def intercept(self, batch):
        if not self.fallen:
            self.fallen = True
            raise RuntimeError("a bug in an interceptor")
        return batch


def run(cls, *stores, interceptors=(), optional=frozenset(), selector=None, give_up=None, audit=None):
    channels = {store.name: ChannelRunner(f"a.channels.{store.name}", store.name, store) for store in stores}
    for channel in channels.values():
        channel.ready.set()
        channel.audit = audit
    spec = SourceSpec(
        "s",
        "a.sources.s",
        cls,
        Config(),
        {},
        NOWHERE,
        channels=tuple(channels),
        interceptors=tuple(ComponentSpec(c.type_name, "i", c, Config(), {}, NOWHERE) for c in interceptors),
        selector=selector or SelectorSpec(default=Route(tuple(channels.keys() - optional), tuple(optional))),
    )
    letters = MemoryDeadLetters()
    runner = SourceRunner(spec, channels, dict.fromkeys(channels, letters))
    runner.give_up = give_up or runner.give_up
    runner.run()
    runner.close()
    return runner, letters

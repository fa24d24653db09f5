"""Sources that have ten events, channels that keep in memory what they get, and what runs one on the other."""

import threading

from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.topology import ComponentSpec, Place, Route, SelectorSpec, SourceSpec
from flafka.plugins import Batch, Channel, Config, Event, Interceptor, Source
from tests.runner.pipelines import Letters

NOWHERE = Place("test.conf", 1)
NUMBERS = [b"%d" % n for n in range(10)]


class Ten(Source[Config]):
    """Ten batches of one event each; remembers what it was told is stored."""

    type_name = "ten"

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.told: list[bytes] = []

    def batches(self):
        for n in range(10):
            yield Batch.of([Event(b"%d" % n)])

    def stored(self, batch):
        self.told.append(batch.bodies[0].as_py())


class TenAtOnce(Ten):
    """The same with four in flight."""

    type_name = "ten-at-once"
    in_flight = 4


class Store(Channel[Config]):
    """Keeps what it is given; fails as often as told."""

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
    """Fails the first time."""

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
        selector=selector or SelectorSpec(otherwise=Route(tuple(channels.keys() - optional), tuple(optional))),
    )
    letters = Letters()
    runner = SourceRunner(spec, channels, dict.fromkeys(channels, letters))
    runner.give_up = give_up or runner.give_up
    runner.run()
    runner.close()
    return runner, letters

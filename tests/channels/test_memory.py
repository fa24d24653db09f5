"""Memory channel: no event in it is lost, a full one blocks."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Batch, Event, Retry
from flafka.plugins.conformance import AssignmentListener
from tests.fixtures.examples import examples


def ends(owner, *batches):
    return [owner.assignments[polled.assignment.partition].with_offset(polled.offsets.end) for polled in batches]


def begin(polled):
    return [polled.assignment.with_offset(polled.offsets.start)]


def channel(**properties: str) -> MemoryChannel:
    config, problems = MemoryConfig.parse(properties)
    assert config is not None
    assert not problems
    return MemoryChannel(config, "m")


def events(*numbers: int) -> Batch:
    return Batch.of([Event(b"%d" % n) for n in numbers])


def bodies(polled) -> list[bytes]:
    return polled.batch.bodies.to_pylist()


def test_numbers_below_one_are_taken_as_flume_takes_them():
    for number in ("0", "-1"):
        config = channel(capacity=number, transactionCapacity=number, byteCapacity=number).config
        default = channel().config
        assert (config.capacity, config.transaction_capacity) == (default.capacity, default.transaction_capacity)
        memory = channel(byteCapacity=number)
        memory.stopping.set()  # a put that finds no room raises
        for _ in range(80):
            memory.put(Batch.of([Event(b"x" * (1 << 20))]))
    assert channel(capacity="50", transactionCapacity="0").config.capacity == 50


def test_events_are_taken_in_order():
    memory = channel()
    memory.put(events(1, 2))
    memory.put(events(3))
    owner = AssignmentListener()
    reader = memory.reader(owner, group=None, member="k")
    assert bodies(reader.take(0)) == [b"1", b"2"]
    assert bodies(reader.take(0)) == [b"3"]
    assert reader.take(0) is None


def test_rewind_redelivers_the_same_events_with_the_same_ids():
    memory = channel()
    memory.put(events(1, 2))
    memory.put(events(3))
    owner = AssignmentListener()
    reader = memory.reader(owner, group=None, member="k")
    _, second = reader.take(0), reader.take(0)
    reader.rewind(begin(second))
    redelivered = reader.take(0)
    assert redelivered.batch.ids() == second.batch.ids()
    assert reader.take(0) is None


def test_a_full_channel_blocks_until_a_sink_takes_its_events():
    memory = channel(capacity="2", transactionCapacity="1")
    memory.put(events(1, 2))
    reader = memory.reader(AssignmentListener(), group=None, member="k")
    stored = threading.Event()
    thread = threading.Thread(target=lambda: (memory.put(events(3)), stored.set()))
    thread.start()
    assert not stored.wait(0.2)
    reader.take(0)
    assert stored.wait(60), "what is taken takes no room, though it is not committed: a sink may wait for much more"
    thread.join()


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(["put", "take", "take", "commit", "rewind", "close"]), max_size=40))
def test_only_untaken_events_use_capacity(steps):
    memory = channel(capacity="10")
    memory.stopping.set()  # a put that finds no room raises
    owner = AssignmentListener()
    reader = memory.reader(owner, group=None, member="k")
    uncommitted, waits = [], 0
    for step in steps:
        if step == "put":
            try:
                memory.put(events(0))
                waits += 1
            except Retry:
                assert waits == 10
        elif step == "take" and (polled := reader.take(0)):
            uncommitted.append(polled)
            waits -= 1
        elif step == "commit" and uncommitted:
            reader.commit(ends(owner, uncommitted.pop(0)))
        elif step == "rewind" and uncommitted:
            reader.rewind(begin(uncommitted[0]))
            waits, uncommitted = waits + len(uncommitted), []
        elif step == "close":
            reader.close()
            reader = memory.reader(owner, group=None, member="k")
            waits, uncommitted = waits + len(uncommitted), []
        assert memory.metrics.get("ChannelSize") == waits + len(uncommitted)
    while waits < 10:
        memory.put(events(0))
        waits += 1
    with pytest.raises(Retry, match="full"):
        memory.put(events(0))


def test_a_sink_with_many_uncommitted_events_is_asked_to_commit(monkeypatch):
    monkeypatch.setattr("flafka.channels.memory.MAX_UNCOMMITTED_BYTES", 100)
    memory = channel()
    for _ in range(3):
        memory.put(Batch.of([Event(b"x" * 40)]))
    owner = AssignmentListener()
    reader = memory.reader(owner, group=None, member="k")
    pressed = []
    while reader.take(0):
        pressed.append(reader.needs_commit())
    assert pressed == sorted(pressed)
    assert pressed[-1]
    reader.commit([owner.assignments[1].with_offset(3)])
    assert not reader.needs_commit()


def test_a_closed_reader_returns_uncommitted_events():
    memory = channel()
    for n in (1, 2, 3):
        memory.put(events(n))
    owner = AssignmentListener()
    reader = memory.reader(owner, group=None, member="k")
    first = reader.take(0)
    reader.take(0)
    reader.commit(ends(owner, first))
    reader.close()
    other = memory.reader(AssignmentListener(), group=None, member="k")
    assert [bodies(other.take(0)), bodies(other.take(0))] == [[b"2"], [b"3"]]


def test_a_batch_larger_than_the_channel_goes_through_in_pieces():
    memory = channel(capacity="10")
    owner = AssignmentListener()
    reader = memory.reader(owner, group=None, member="k")
    thread = threading.Thread(target=lambda: memory.put(events(*range(100))))
    thread.start()
    delivered = []
    while len(delivered) < 100:
        polled = reader.take(60)
        delivered += bodies(polled)
        reader.commit(ends(owner, polled))
    thread.join()
    assert delivered == [b"%d" % n for n in range(100)]
    assert memory.metrics.get("ChannelSize") == 0


def test_a_put_that_waits_for_room_wakes_when_the_agent_stops():
    memory = channel(capacity="1")
    memory.put(events(1))
    memory.stopping.set()
    with pytest.raises(Retry, match="full"):
        memory.put(events(2))


def test_two_readers_compete_and_their_offsets_do_not_mix():
    memory = channel()
    for n in range(4):
        memory.put(events(n))
    first, second = (memory.reader(AssignmentListener(), group=None, member="k") for _ in range(2))
    batches = [first.take(0), second.take(0), first.take(0), second.take(0)]
    assert sorted(b for t in batches for b in bodies(t)) == [b"0", b"1", b"2", b"3"]
    assert batches[0].assignment.partition != batches[1].assignment.partition
    assert [t.offsets.start for t in batches] == [0, 0, 1, 1]

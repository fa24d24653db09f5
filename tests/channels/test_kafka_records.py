"""Formats of Kafka records: written records can be read, by columns as one by one, and damage is detected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig, records
from flafka.plugins import Batch, Event, EventId, LastRecord, OffsetRange, PolledBatch, Record
from flafka.plugins.wire import flumeevent
from tests.fixtures.partitions import assignment

TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
EVENTS = st.builds(Event, st.binary(max_size=200), st.dictionaries(TEXT, TEXT, max_size=4))
ASSIGNMENT = assignment("", "topic", "", "", 0, 2)
PREFIX = ASSIGNMENT.id_prefix


def read(stored: list[Record], *, parse: bool = True, group: str = "") -> list[PolledBatch]:
    remaining: Iterator[Record] = iter(stored)
    batches = []
    while (
        polled := records.decode(remaining, ASSIGNMENT.replace(group=group), parse_as_flume_event=parse)
    ) is not None:
        batches.append(polled)
    return batches


def test_few_large_events_are_compressed() -> None:
    events = Batch.of([Event(b"text " * 20_000)])
    format, value = records.encode_batch(events)
    assert format == records.ARROW
    assert len(value) < 10_000
    assert [*records.decode_batch(format, value)] == [*events]


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value[: len(value) // 2],
        lambda value: value[:1],
        lambda value: value + b"\0\0",
        lambda value: value.replace(b"host", b"\xff\xfe12"),
        lambda value: value.replace(b"name", b"host"),
        lambda value: bytes(len(value)),
        lambda _: bytes(2_000_000),
        lambda _: b"",
    ],
)
def test_a_damaged_record_of_few_events_is_undecodable(damage: Callable[[bytes], bytes]) -> None:
    format, value = records.encode_batch(Batch.of([Event(b"text", {"host": "h", "name": "n"})] * 2))
    assert format == records.ROWS
    assert len(records.decode_batch(format, value)) == 2
    with pytest.raises(ValueError, match=r"\w"):
        records.decode_batch(format, damage(value))


def of_flume(offset: int, event: Event) -> Record:
    return Record(offset, 7, None, flumeevent.encode_event(event), ())


def of_raw(offset: int, event: Event) -> Record:
    (headers,) = records.raw_headers(Batch.of([event]))
    return Record(offset, 7, None, event.body, [(n, v.encode() if isinstance(v, str) else v) for n, v in headers])


def of_arrow(offset: int, *events: Event) -> Record:
    return Record(offset, 7, None, records.encode(Batch.of(events)), [(records.FORMAT, records.ARROW)])


@given(st.lists(EVENTS, min_size=1, max_size=40))
def test_columns_and_single_events_are_encoded_and_decoded_alike(events: list[Event]) -> None:
    values = flumeevent.encode(Batch.of(events)).to_pylist()
    assert [flumeevent.decode_event(value) for value in values] == events
    decoded = flumeevent.decode(values)
    assert decoded is None or list(decoded) == events
    names = {name for event in events for name in event.headers}
    assert (decoded is None) == (len(names) > 64)


@pytest.mark.parametrize(
    ("kilobytes", "chosen", "codec"),
    [
        (32, None, None),
        (32, "zstd", None),
        (128, None, "lz4"),
        (128, "zstd", "zstd"),
        (128, "none", None),
        (1024, None, "zstd"),
        (1024, "gzip", "zstd"),
        (1024, "lz4", "lz4"),
        (1024, "none", None),
    ],
)
def test_a_batch_is_compressed_as_its_size_suggests_or_somebody_chose(kilobytes, chosen, codec):
    batch = Batch.of([Event(b"%9d of a thousand" % number * 50) for number in range(kilobytes)])
    assert records.encode(batch, chosen) == batch.to_ipc(codec).to_pybytes()


@given(EVENTS, st.data())
def test_an_event_that_is_cut_off_or_followed_by_bytes_is_damaged(event: Event, data: st.DataObject) -> None:
    value = flumeevent.encode_event(event)
    cut = data.draw(st.integers(0, len(value) - 1))
    for damaged in (value[:cut], value + b"\0"):
        with pytest.raises(ValueError, match=r"ends within|follow the event"):
            flumeevent.decode_event(damaged)
        assert flumeevent.decode([value, damaged]) is None


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
def test_any_bytes_are_decoded_by_columns_as_one_by_one_or_not_at_all(values: list[bytes]) -> None:
    decoded = flumeevent.decode(values)
    if decoded is not None:
        assert list(decoded) == [flumeevent.decode_event(value) for value in values]


def test_numbers_of_every_size() -> None:
    sizes = [0, 63, 64, 8191, 8192, 1 << 20]
    events = [Event(b"x" * size, {"h": "y" * size}) for size in sizes]
    values = flumeevent.encode(Batch.of(events)).to_pylist()
    assert values == [flumeevent.encode_event(event) for event in events]
    batch = flumeevent.decode(values)
    assert batch is not None
    assert list(batch) == events


@given(st.lists(EVENTS, max_size=10), st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=3))
def test_headers_with_one_value_are_encoded_like_any_others(events: list[Event], alike: dict[str, str]) -> None:
    batch = Batch.of([Event(event.body, {**event.headers, **alike}) for event in events])
    assert flumeevent.encode(batch).to_pylist() == [flumeevent.encode_event(event) for event in batch]


def test_records_that_columns_cannot_hold_are_decoded_one_by_one() -> None:
    """A block with its size in bytes, two blocks, a repeated name, bytes that are no text: Flume accepts them all."""
    odd = {
        bytes.fromhex("0108026b0276000a68656c6c6f"): Event(b"hello", {"k": "v"}),
        bytes.fromhex("02026b0276020261026200026f"): Event(b"o", {"k": "v", "a": "b"}),
        bytes.fromhex("04026b0276026b0277000268"): Event(b"h", {"k": "w"}),
        bytes.fromhex("02026b02ff000268"): Event(b"h", {"k": "\ufffd"}),
    }
    plain = [Event(b"%d" % n, {"n": str(n)}) for n in range(100)]
    stored = [*(of_flume(n, event) for n, event in enumerate(plain)), *(Record(9, 7, None, v, ()) for v in odd)]
    (polled,) = read(stored)
    assert list(polled.batch) == [*plain, *odd.values()]
    assert not polled.undecodable


@given(st.lists(st.tuples(st.sampled_from(["arrow", "flume", "raw"]), EVENTS), min_size=1, max_size=60))
def test_formats_lie_mixed_in_one_topic(written: list[tuple[str, Event]]) -> None:
    make = {"arrow": of_arrow, "flume": of_flume, "raw": of_raw}
    batches = read([make[form](5 + n, event) for n, (form, event) in enumerate(written)])
    assert [event for polled in batches for event in polled.batch] == [event for _, event in written]
    ids = [id for polled in batches for id in polled.batch.ids()]
    assert [(id.topic, id.partition, id.offset, id.index) for id in ids] == [
        (PREFIX, 2, 5 + n, 0) for n in range(len(written))
    ]
    assert [polled.offsets for polled in batches] == [OffsetRange(5, 5 + len(written))]


@given(st.sampled_from(["arrow", "flume", "raw"]), EVENTS)
def test_a_replayed_event_is_unchanged_for_its_group_and_skipped_by_others(form: str, event: Event) -> None:
    config, _ = KafkaChannelConfig.parse({"format": form})
    assert config is not None
    replayed = (
        KafkaChannel(config).redelivery(event, EventId(PREFIX, 2, 3, 4), 5, "mine")._replace(offset=31, timestamp=32)
    )
    stored = [of_flume(30, Event(b"before")), replayed, of_flume(32, Event(b"after"))]
    (polled,) = read(stored, group="mine")
    assert polled.offsets == OffsetRange(30, 33)
    assert list(polled.batch) == [Event(b"before"), event, Event(b"after")]
    assert polled.batch.ids() == [EventId(PREFIX, 2, offset, i) for offset, i in ((30, 0), (3, 4), (32, 0))]
    assert polled.batch.origin is not None
    assert polled.batch.origin.timestamps.tolist() == [7, 5, 7]
    assert polled.without_replayed().ids() == [EventId(PREFIX, 2, 30, 0), EventId(PREFIX, 2, 32, 0)]
    (polled,) = read(stored, group="other")
    assert polled.offsets == OffsetRange(30, 33)
    assert list(polled.batch) == [Event(b"before"), Event(b"after")]


def test_a_replayed_record_is_decoded_as_it_was() -> None:
    """Written by a newer agent, and decoded by an agent of that version."""
    record = of_arrow(3, Event(b"a"), Event(b"b"))
    newer = Record(3, 7, b"k", record.value, [("trace", b"1"), (records.FORMAT, b"arrow/9")])
    replayed = records.address_to_group(newer, EventId(PREFIX, 2, 3, 0), 5, "mine")
    (polled,) = read([replayed._replace(offset=31)], group="mine")
    (unread,) = polled.undecodable
    assert unread.id == (PREFIX, 2, 3, 0)
    assert (unread.record.value, unread.record.key) == (newer.value, newer.key)
    assert sorted(unread.record.headers) == sorted(newer.headers)
    replayed = records.address_to_group(record, EventId(PREFIX, 2, 3, 0), 5, "mine")
    (polled,) = read([replayed._replace(offset=31)], group="mine")
    assert polled.batch.ids() == [(PREFIX, 2, 3, 0), (PREFIX, 2, 3, 1)]
    (polled,) = read([replayed._replace(offset=31, headers=replayed.headers[:2])], group="mine")
    assert "marked as replayed, but without" in polled.undecodable[0].reason


@pytest.mark.parametrize("form", ["arrow/2", "raw/2"])
def test_a_record_of_another_version_is_rejected_with_advice(form: str) -> None:
    (polled,) = read([Record(3, 7, None, b"", [("flafka.format", form.encode())])])
    (unread,) = polled.undecodable
    assert unread.reason == (
        f"the record's format (flafka.format header) is {form}, and this agent reads arrow/1, rows/1 and raw/1: "
        "deliver it with the agent that wrote it, or replay it with a later one"
    )


def test_many_records_become_batches_of_a_good_size_without_a_gap() -> None:
    plain = [of_flume(n, Event(b"%d" % n)) for n in range(25_000)]
    batches = read([*plain, of_arrow(25_000, *[Event(b"a")] * 30_000), of_raw(25_001, Event(b"last"))])
    assert [(polled.offsets, len(polled.batch)) for polled in batches] == [
        (OffsetRange(0, 10_000), 10_000),
        (OffsetRange(10_000, 20_000), 10_000),
        (OffsetRange(20_000, 25_001), 35_000),
        (OffsetRange(25_001, 25_002), 1),
    ]
    assert batches[2].batch.id(4_999).offset == 24_999
    assert batches[2].batch.id(34_999) == (PREFIX, 2, 25_000, 29_999)


def test_unreadable_records_are_returned_beside_their_neighbours() -> None:
    good = [Event(b"%d" % n, {"n": str(n)}) for n in range(50)]
    bad = [
        Record(50, 7, None, b"plain text", ()),
        Record(51, 7, None, None, ()),
        Record(52, 7, None, b"x", [(records.FORMAT, b"arrow/9")]),
        Record(53, 7, None, b"x", [(records.FORMAT, records.ARROW)]),
        # The first bytes of another Avro format, which Flume would decode as an empty event.
        Record(54, 7, None, b"\0\0\0\0\1payload", ()),
    ]
    (polled,) = read([*(of_flume(n, event) for n, event in enumerate(good)), *bad, of_flume(55, good[0])])
    assert list(polled.batch) == [*good, good[0]]
    assert [(u.id.offset, u.record.value or b"") for u in polled.undecodable] == [
        (r.offset, r.value or b"") for r in bad
    ]
    reasons = [u.reason for u in polled.undecodable]
    assert "no AvroFlumeEvent either" in reasons[0]
    assert "parseAsFlumeEvent = false" in reasons[0]
    assert "is arrow/9, and this agent reads arrow/1, rows/1 and raw/1" in reasons[2]
    (polled,) = read(bad[:1])
    assert (len(polled.batch), polled.offsets, polled.last_record) == (0, OffsetRange(50, 51), LastRecord(7))


def test_without_parse_as_flume_event_any_record_is_a_body() -> None:
    stored = [
        Record(0, 7, b"k\xff", b"\xff any \0", [("trace", b"1"), ("none", None)]),
        Record(1, 7, None, None, ()),
        of_arrow(2, Event(b"ours", {"h": "x"})),
    ]
    (polled,) = read(stored, parse=False)
    assert list(polled.batch) == [
        Event(b"\xff any \0", {"trace": "1", "key": "k\ufffd"}),
        Event(b""),
        Event(b"ours", {"h": "x"}),
    ]


def test_the_key_of_a_record_is_the_header_key() -> None:
    event = Event(b"b", {"key": "within", "h": "x"})
    (polled,) = read([of_flume(0, event)._replace(key=b"outside"), of_flume(1, event), of_raw(2, event)])
    assert [e.headers["key"] for e in polled.batch] == ["outside", "within", "within"]


def test_more_headers_than_columns() -> None:
    events = [Event(b"b", {f"h{n}": "v" for n in range(start, start + 100)}) for start in range(0, 5000, 50)]
    for make in (of_flume, of_raw):
        (polled,) = read([make(n, event) for n, event in enumerate(events)])
        assert list(polled.batch) == events
    overflowing = Batch.of(events)
    assert flumeevent.encode(overflowing).to_pylist() == [flumeevent.encode_event(event) for event in overflowing]


# --- options

BROKERS = {"kafka.bootstrap.servers": "h:1"}
FLUME = "org.apache.flume.channel.kafka.KafkaChannel"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("kafka", {}, ("arrow", "flafka", "flafka")),
        (FLUME, {}, ("flume", "flume-channel", "flume")),
        (FLUME, {"parseAsFlumeEvent": "false"}, ("raw", "flume-channel", "flume")),
        (FLUME, {"parseAsFlumeEvent": "False", "format": "arrow"}, ("arrow", "flume-channel", "flume")),
        ("kafka", {"format": "raw", "kafka.topic": "t"}, ("raw", "t", "flafka")),
    ],
)
def test_defaults_are_flumes_under_flumes_name(name: str, given: dict[str, str], expected: tuple[str, ...]) -> None:
    config, problems = KafkaChannelConfig.for_type(name).parse({**BROKERS, **given})
    assert not problems
    assert isinstance(config, KafkaChannelConfig)
    assert (config.format, config.topic, config.group_id) == expected


def test_the_options_of_flumes_oldest_versions() -> None:
    options = {
        "topic": "old",
        "brokerList": "h:1",
        "groupId": "g",
        "readSmallestOffset": "false",
        "pollTimeout": "100",
    }
    config, problems = KafkaChannelConfig.for_type(FLUME).parse(options)
    assert not problems
    assert isinstance(config, KafkaChannelConfig)
    assert (config.topic, config.bootstrap_servers, config.group_id) == ("old", "h:1", "g")
    newer, _ = KafkaChannelConfig.for_type(FLUME).parse({**options, "kafka.topic": "new"})
    assert isinstance(newer, KafkaChannelConfig)
    assert newer.topic == "new"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "flume", "parseAsFlumeEvent": "false"}, "remove one of them"),
        ({"partitionIdHeader": "p"}, "requires one event in each record"),
        ({"format": "json"}, "must be 'arrow', 'flume' or 'raw', not 'json'"),
        ({"format": "flume", "defaultPartitionId": "-1"}, "must be at least 0"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, str], message: str) -> None:
    config, problems = KafkaChannelConfig.parse({**BROKERS, **given})
    assert config is None
    assert [message in problem.message for problem in problems] == [True], problems

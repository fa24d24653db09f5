"""Path escapes: a batch resolves as its single events do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.plugins import Batch, Event
from flafka.sinks.bucketpath import BucketPath, find_zone, parse_zone, round_down
from tests.fixtures.examples import examples

ZONES = ["UTC", "Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe", "PST", "GMT+5:30", "Africa/Monrovia"]
PIECES = ["/", "x", "%%", "%{host}", "%{a.b-c}", "%{timestamp}"] + [
    f"%{letter}" for letter in "aAbBcdeDHIjklmMnpsStyYz"
]
TIMESTAMPS = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1).map(str),
    st.integers(0, 1 << 41).map(str),
    st.integers(1_700_000_000_000, 1_700_000_200_000).map(str),
    st.sampled_from(["", "soon", " 5", "+5", "0x10", "1_0", "٣", "1" * 19, "9" * 19, "-1"]),
)
HEADERS = st.fixed_dictionaries(
    {}, optional={"host": st.sampled_from(["h1", "h2", "$1\\x", "a/b", ".."]), "a.b-c": st.text(max_size=3)}
)
ROUNDINGS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["second", "minute"]), st.integers(0, 60)),
    st.tuples(st.sampled_from(["hour"]), st.integers(0, 24)),
)


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.lists(st.tuples(TIMESTAMPS, HEADERS), min_size=1, max_size=12),
    st.sampled_from(ZONES),
    ROUNDINGS,
    st.booleans(),
    st.integers(0, 5),
)
@settings(max_examples=examples(200))
def test_a_batch_resolves_as_its_events_do(
    pattern: str,
    rows: list[tuple[str | None, dict[str, str]]],
    time_zone: str,
    rounding: tuple[str, int] | None,
    as_path: bool,
    skip: int,
) -> None:
    path = BucketPath(pattern, time_zone=time_zone, rounding=rounding, as_path=as_path)
    events = [Event(b"", headers | ({"timestamp": t} if t is not None else {})) for t, headers in rows]
    skip = min(skip, len(events) - 1)
    paths, codes = path.resolve_batch(Batch.of(events).slice(skip))

    def resolve_alone(event: Event) -> str | None:
        try:
            return path.resolve(event.headers)
        except ValueError:
            return None

    together = [None if isinstance(paths[code], ValueError) else paths[code] for code in codes]
    assert together == [resolve_alone(event) for event in events[skip:]]


@pytest.mark.parametrize("time_zone", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe"])
def test_every_minute_around_a_change_of_clocks(time_zone: str) -> None:
    """In 2024: a batch of all minutes agrees with Python's own calendar."""
    zone_ = ZoneInfo(time_zone)
    hours = (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(366 * 24))
    changes = [
        hour
        for hour in hours
        if (hour + timedelta(hours=1)).astimezone(zone_).utcoffset() != hour.astimezone(zone_).utcoffset()
    ]
    assert len(changes) == 2
    times = [change + timedelta(minutes=n) for change in changes for n in range(-90, 150)]
    batch = Batch.of(Event(b"", {"timestamp": str(int(time.timestamp() * 1000))}) for time in times)
    paths, codes = BucketPath("%Y-%m-%d %H:%M %z", time_zone=time_zone).resolve_batch(batch)
    assert [paths[code] for code in codes] == [f"{time.astimezone(zone_):%Y-%m-%d %H:%M %z}" for time in times]


def test_paths_are_made_once_for_all_the_events_of_a_minute() -> None:
    events = [Event(b"", {"timestamp": str(1_700_000_000_000 + n), "host": f"h{n % 3}"}) for n in range(9000)]
    paths, codes = BucketPath("/%Y/%H%M/%{host}", time_zone="UTC").resolve_batch(Batch.of(events))
    assert paths == ["/2023/2213/h0", "/2023/2213/h1", "/2023/2213/h2"]
    assert codes.tolist() == [0, 1, 2] * 3000


def test_no_events_have_no_paths() -> None:
    paths, codes = BucketPath("/%Y/%{host}").resolve_batch(Batch.of([]))
    assert len(paths) == len(codes) == 0


def test_local_time_is_asked_once_a_batch() -> None:
    ticks = iter([0.5, 60.0])
    path = BucketPath("%s-%t", local_time=True, now=lambda: next(ticks))
    batch = Batch.of([Event(b""), Event(b"", {"timestamp": "nonsense"})])
    assert [path.resolve_batch(batch).paths for _ in range(2)] == [["0-500"], ["60-60000"]]


def test_the_machines_own_zone_is_used_where_none_is_given() -> None:
    millis = 1_700_000_000_000
    expected = datetime.fromtimestamp(millis / 1000).astimezone()
    assert BucketPath("%Y%m%d%H%M%z").resolve({"timestamp": str(millis)}) == f"{expected:%Y%m%d%H%M%z}"


@pytest.mark.parametrize("name", ["localhost", "LocalHost", "IP", "fqdn"])
def test_the_host_names_itself(name: str) -> None:
    assert BucketPath(f"/%[{name}]/x", as_path=True).resolve({}) not in ("//x", f"/%[{name}]/x")


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "no header 'timestamp'"),
        ({"timestamp": "soon"}, "'soon', not a number of milliseconds"),
        ({"timestamp": str(-(10**15))}, "before the Gregorian calendar"),
        ({"timestamp": "1700000000000", "host": "a/../b"}, "'a/../b': a path may contain neither"),
        ({"timestamp": "1700000000000", "host": "x" * 256}, "more than 255 bytes"),
    ],
)
def test_an_event_without_a_path_has_the_reason(headers: dict[str, str], message: str) -> None:
    path = BucketPath("/%Y/%{host}", as_path=True)
    with pytest.raises(ValueError, match=message):
        path.resolve(headers)
    assert message in str(path.resolve_batch(Batch.of([Event(b"", headers)])).paths[0])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("/h/%{host/%Y", r"'%\{host/%Y' has no closing brace: a header is written %\{name\}"),
        ("/h/%{a b}/x", r"%\{a b\} is no escape: names there have letters, digits, '\.', '_' and '-'"),
        ("/h/%{}", r"%\{\} is no escape"),
        ("/h/%Q/x", r"'%Q' is no escape: .* a percent sign %%, of the time: %A %a %B "),
        ("/h/%_", "'%_' is no escape"),
        ("/h/%-d", "'%-' is no escape"),
        ("/h/100%", "'%' is no escape"),
        ("/h/%%%", "'%' is no escape"),
        ("/h/%[host]", r"%\[host\] is none of %\[localhost\]"),
        ("/h/%[IP", r"%\[IP\] is none of"),
        ("/h/%[]", r"%\[\] is none of"),
    ],
)
def test_an_incomplete_escape_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BucketPath(pattern)


def test_a_percent_sign_needs_no_time() -> None:
    assert BucketPath("/100%%/%{a}%%Y").resolve({"a": "x"}) == "/100%/x%Y"
    assert BucketPath("/100%%").resolve_batch(Batch.of([Event(b"")])).paths == ["/100%"]


def test_a_path_names_the_headers_it_depends_on() -> None:
    assert BucketPath("/a/100%%/%[IP]").headers == set()
    assert BucketPath("/%{host}/%Y/%{a.b-c}").headers == {"host", "a.b-c", "timestamp"}
    assert BucketPath("/%{host}/%Y/%t", local_time=True).headers == {"host"}


def test_zones_are_javas() -> None:
    moment = datetime(2024, 7, 1, tzinfo=UTC)
    offsets = {
        "GMT+1": 60,
        "GMT-08:30": -510,
        "GMT+0530": 330,
        "IST": 330,
        "Nowhere/Zone": 0,
        "GMT+24": 0,
        "EST": -300,
    }
    for name, minutes in offsets.items():
        assert moment.astimezone(parse_zone(name)).utcoffset() == timedelta(minutes=minutes), name
    assert find_zone("Nowhere/Zone") is None
    assert find_zone("../etc/passwd") is None


def test_years_past_9999_and_hours_shown_twice() -> None:
    assert BucketPath("%Y-%a", time_zone="UTC").resolve({"timestamp": "1700000000000000"}) == "55840-Sun"
    twice = int(datetime(2024, 10, 27, 0, 34, tzinfo=UTC).timestamp() * 1000)  # 02:34 in Paris, an hour before 02:34
    assert round_down(twice, "minute", 30, parse_zone("Europe/Paris")) - twice == 56 * 60_000  # as Java does

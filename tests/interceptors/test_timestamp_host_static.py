"""The interceptors that set one header: whose value, and when an event keeps what it has."""

import socket

import pytest

from flafka.interceptors.host import HostInterceptor
from flafka.interceptors.static import StaticInterceptor
from flafka.interceptors.timestamp import TimestampInterceptor
from flafka.plugins import Batch, Event, Interceptor, Origin

EVENTS = [Event(b"a", {}), Event(b"\xff", {"timestamp": "1", "host": "there", "key": "old"}), Event(b"", {"x": "y"})]


def make(cls: type[Interceptor], **properties: str) -> Interceptor:
    config, problems = cls.config_class.parse(properties)
    assert problems == []
    interceptor = cls(config)
    if isinstance(interceptor, TimestampInterceptor):
        interceptor.clock = lambda: 1_700_000_000.1239
    if isinstance(interceptor, HostInterceptor):
        interceptor.host = "10.0.0.1"
    interceptor.open()
    return interceptor


@pytest.mark.parametrize(
    ("cls", "header", "value", "kept", "keeps_by_default"),
    [
        (TimestampInterceptor, "timestamp", "1700000000123", "1", False),
        (HostInterceptor, "host", "10.0.0.1", "there", False),
        (StaticInterceptor, "key", "value", "old", True),
    ],
)
@pytest.mark.parametrize("preserve", [None, "true", "false"])
def test_the_header_is_set_and_an_existing_one_kept_as_in_flume(
    cls: type[Interceptor], header: str, value: str, kept: str, keeps_by_default: bool, preserve: str | None
) -> None:
    interceptor = make(cls, **({} if preserve is None else {"preserveExisting": preserve}))
    keeps = keeps_by_default if preserve is None else preserve == "true"
    origin = Origin.of_record("t", 0, 7, 0, 3)
    batch = interceptor.intercept(Batch.of(EVENTS, origin))
    assert batch.header(header).to_pylist() == [value, kept if keeps else value, value]
    assert list(batch.without_header(header)) == list(Batch.of(EVENTS).without_header(header))
    assert batch.origin is origin


@pytest.mark.parametrize("others", [64, 200])
@pytest.mark.parametrize("present", [False, True])
def test_beyond_the_columns_too(others: int, present: bool) -> None:
    many = {f"h{i}": str(i) for i in range(others)}
    events = [Event(b"a", dict(many)), Event(b"b", {**many, "key": "old"} if present else dict(many))]
    batch = make(StaticInterceptor, value="new").intercept(Batch.of(events))
    assert [event.headers["key"] for event in batch] == ["new", "old" if present else "new"]
    batch = make(StaticInterceptor, value="new", preserveExisting="false").intercept(Batch.of(events))
    assert [event.headers for event in batch] == [{**many, "key": "new"}] * 2


def test_other_header_names() -> None:
    assert make(TimestampInterceptor, headerName="ts").intercept(Batch.of(EVENTS)).header("ts").null_count == 0
    assert make(HostInterceptor, hostHeader="h").intercept(Batch.of(EVENTS)).header("h").null_count == 0
    batch = make(StaticInterceptor, key="body", value="").intercept(Batch.of(EVENTS))
    assert [event.headers["body"] for event in batch] == ["", "", ""]
    assert [event.body for event in batch] == [b"a", b"\xff", b""]


def test_the_time_is_now() -> None:
    import time

    before = int(time.time() * 1000)
    interceptor = TimestampInterceptor(TimestampInterceptor.config_class())
    (stamp,) = interceptor.intercept(Batch.of(EVENTS[:1])).header("timestamp").to_pylist()
    assert before <= int(stamp) <= int(time.time() * 1000)


def test_host_looks_up_the_address_or_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    by_address = HostInterceptor(HostInterceptor.config_class())
    by_address.open()
    assert by_address.host == "127.0.0.1"
    monkeypatch.setattr(socket, "getfqdn", lambda: "web-1.example.com")
    by_name = HostInterceptor(HostInterceptor.config_class(use_ip=False))
    by_name.open()
    assert by_name.intercept(Batch.of(EVENTS[:1])).header("host").to_pylist() == ["web-1.example.com"]


def test_a_host_without_an_address_says_so_and_lets_events_pass(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    interceptor = HostInterceptor(HostInterceptor.config_class())
    interceptor.open()
    batch = Batch.of(EVENTS)
    assert interceptor.intercept(batch) is batch
    assert "no-such-host.invalid" in caplog.text
    assert "useIP = false" in caplog.text
    assert "no-such-host.invalid" in interceptor.metrics.last_error

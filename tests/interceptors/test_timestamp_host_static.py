"""Interceptors that set one header: its value, and the events that keep theirs."""

import socket

import pytest

from flafka.interceptors.host import HostInterceptor
from flafka.interceptors.static import StaticInterceptor
from flafka.interceptors.timestamp import TimestampInterceptor
from flafka.plugins import Batch, Event, Interceptor

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


@pytest.mark.parametrize("count", [64, 200])
@pytest.mark.parametrize("present", [False, True])
def test_beyond_the_columns_too(count: int, present: bool) -> None:
    headers = {f"h{i}": str(i) for i in range(count)}
    events = [Event(b"a", dict(headers)), Event(b"b", {**headers, "key": "old"} if present else dict(headers))]
    batch = make(StaticInterceptor, value="new").intercept(Batch.of(events))
    assert [event.headers["key"] for event in batch] == ["new", "old" if present else "new"]
    batch = make(StaticInterceptor, value="new", preserveExisting="false").intercept(Batch.of(events))
    assert [event.headers for event in batch] == [{**headers, "key": "new"}] * 2


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


def test_a_host_without_an_address_is_reported_and_events_pass(
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

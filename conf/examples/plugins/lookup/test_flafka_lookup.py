"""The interceptor `lookup`: by columns as event by event, and with a file that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import flafka_lookup
from flafka import Batch, Event
from flafka.plugins import conformance
from flafka_lookup import LookupInterceptor

SITES = (
    "network,site,team\n10.0.0.0/8,elsewhere,\n10.1.0.0/16,oslo,web\n10.1.2.3/32,oslo,db\n2001:db8::/32,lima,web\n"
)


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    file = tmp_path / "sites.csv"
    file.write_text(SITES)
    return file


def make(file: Path, **options: str) -> LookupInterceptor:
    properties = {"header": "client", "file": str(file), "keys": "networks", **options}
    interceptor = conformance.make(LookupInterceptor, properties)
    interceptor.open()
    return interceptor


def test_it_keeps_the_promises_of_an_interceptor(sites: Path) -> None:
    events = [Event(b"", {"client": "10.1.2.3", "site": "old"}), Event(b"", {"client": "10.9.9.9"})]
    properties = {"header": "client", "file": str(sites), "keys": "networks"}
    conformance.check_interceptor(LookupInterceptor, properties, events=events)


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("10.1.2.3", {"site": "oslo", "team": "db"}),
        ("10.1.9.9", {"site": "oslo", "team": "web"}),
        ("10.2.0.1", {"site": "elsewhere", "team": "old"}),
        ("2001:db8::7", {"site": "lima", "team": "web"}),
        ("192.168.0.1", {"team": "old"}),
        ("no address", {"team": "old"}),
    ],
)
def test_the_smallest_network_counts(sites: Path, client: str, headers: dict[str, str]) -> None:
    before = {"client": client, "team": "old"}
    (event,) = make(sites).intercept(Batch.of([Event(b"", before)]))
    assert event.headers == {**before, **headers}


def test_what_is_not_in_the_table_is_counted(sites: Path) -> None:
    interceptor = make(sites)
    interceptor.intercept(
        Batch.of([Event(b"", {"client": client}) for client in ("10.1.1.1", "x", "x", "y")] + [Event(b"")])
    )
    assert interceptor.metrics.get("UnknownKeyCount") == 3


def test_a_file_that_changes_is_read_again(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flafka_lookup, "CHECK_SECONDS", 0.0)
    sites.write_text("user,mail\namy,amy@example.com\n")
    interceptor = make(sites, header="user", keys="texts")
    events = Batch.of([Event(b"", {"user": "amy"}), Event(b"", {"user": "bob"})])
    assert interceptor.intercept(events).header("mail").to_pylist() == ["amy@example.com", None]
    sites.write_text("user,mail\nbob,bob@example.com\n")
    assert interceptor.intercept(events).header("mail").to_pylist() == [None, "bob@example.com"]
    sites.write_text("nonsense")
    assert interceptor.intercept(events).header("mail").to_pylist() == [None, "bob@example.com"]
    sites.unlink()
    assert interceptor.intercept(events).header("mail").to_pylist() == [None, "bob@example.com"]


@pytest.mark.parametrize("text", ["", "one\nx\n", "network,site\nnowhere,x\n"])
def test_a_table_that_cannot_be_one_is_told(sites: Path, text: str) -> None:
    sites.write_text(text)
    properties = {"header": "client", "file": str(sites), "keys": "networks"}
    (trouble,) = conformance.make(LookupInterceptor, properties).check_connectivity()
    assert trouble.startswith("the table cannot be read: ")

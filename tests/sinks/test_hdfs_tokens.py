"""Delegation tokens and tickets of the HDFS sink, with a KDC and NameNodes in memory."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flafka.plugins import Retry
from flafka.plugins.net.gssapi import KerberosError
from flafka.sinks.hdfs import delegation
from flafka.sinks.hdfs.delegation import DelegationTokens, Login

Make = Callable[..., DelegationTokens]
LOGIN = Login("flume@R", "/keytab")


class FakeKdc:
    """KDC that gives tickets for hosts, and counts logins; all its methods may be replaced."""

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        """Hosts without a key."""
        self.frozen = threading.Event()
        """Set while the KDC answers nobody: not even a request for a further host."""
        self.answers = threading.Event()
        """Set once the KDC answers again."""
        self.is_away = False
        self.logins = 0

    def credential(self, principal: str | None, keytab: str | None) -> Any:
        """Return a credential; raise KerberosError if the KDC is away."""
        self.wait()
        if self.is_away:
            raise KerberosError("Cannot contact any KDC")
        self.logins += 1
        tickets: set[str] = set()

        def negotiate(host: str) -> str:
            if host not in tickets:
                self.wait()
                if self.is_away or host in self.unknown:
                    raise KerberosError(f"HTTP/{host} not found in Kerberos database")
                tickets.add(host)
            return f"Negotiate {host}"

        return SimpleNamespace(principal=principal, negotiate=negotiate, close=tickets.clear)

    def wait(self) -> None:
        """Block while the KDC is frozen."""
        if self.frozen.is_set():
            self.answers.wait(60)


@pytest.fixture
def kdc(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKdc]:
    kdc = FakeKdc()
    monkeypatch.setattr(delegation, "Credential", kdc.credential)
    monkeypatch.setattr(delegation, "TOKEN_RETRY_SECONDS", (0.02, 0.05))
    for name in ("_latest_tokens", "_failures", "_young_refusals", "_tickets_until"):
        monkeypatch.setattr(delegation, name, {})
    monkeypatch.setattr(delegation.Login, "keytab_fault", lambda login: None)
    yield kdc
    kdc.answers.set()


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tokens that the NameNode has issued, each for 1000 seconds."""
    issued: list[str] = []
    numbers = itertools.count(1)

    def ask(tokens: DelegationTokens, credential: Any) -> tuple[str, float]:
        issued.append(f"token{next(numbers)}")
        return issued[-1], 1000.0

    monkeypatch.setattr(DelegationTokens, "_ask", ask)
    return issued


@pytest.fixture
def make(kdc: FakeKdc, issued: list[str]) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def make(*servers: str) -> DelegationTokens:
            session = SimpleNamespace(close=lambda: None)
            tokens = DelegationTokens(
                session, servers or ("nn1:9870", "nn2:9870"), "http", LOGIN, stopping=threading.Event()
            )
            stack.callback(tokens._thread.join, 30)
            stack.callback(tokens.close)
            return tokens

        yield make


def authorize(tokens: DelegationTokens, host: str = "nn1") -> str:
    """Return the token, or the header, of a request."""
    request = SimpleNamespace(url=f"http://{host}:9870/webhdfs/v1/?op=X", headers={})
    tokens(request)
    return str(request.headers.get("Authorization") or request.url.rpartition("=")[2])


def test_one_restart_of_a_server_ends_the_tokens_of_several_sinks_and_none_uses_tickets(make: Make) -> None:
    sinks = [make() for _ in range(4)]
    assert {authorize(sink) for sink in sinks} == {"token1"}
    for sink in sinks:
        assert sink.refused()
    assert {authorize(sink) for sink in sinks} == {"token2"}


@pytest.mark.parametrize("why", ["", "server requires a login"])
def test_tickets_are_used_after_repeated_refusals_and_tokens_are_tried_again_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    sink = make()
    for number in range(1, 4):
        assert authorize(sink) == f"token{number}"
        assert sink.refused(why)
    assert authorize(sink) == authorize(make()) == "Negotiate nn1"
    assert sink.is_spnego
    assert not sink.refused(why)
    [(key, until)] = delegation._tickets_until.items()
    delegation._tickets_until[key] = until - delegation.TICKETS_SECONDS
    later = make()
    assert authorize(later) == "token4"
    assert not later.is_spnego
    assert later.refused(why)  # one is enough now
    assert authorize(later) == "Negotiate nn1"


def test_a_ticket_is_used_while_the_kdc_is_away(make: Make, kdc: FakeKdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "CREDENTIAL_SECONDS", 0.02)
    sink = make()
    sink.use_tickets("test")
    assert authorize(sink) == "Negotiate nn1"
    kdc.is_away = True
    until(lambda: "Cannot contact any KDC" in sink._failure and time.monotonic() > sink._obtained_at + 0.1)
    assert authorize(sink) == "Negotiate nn1"
    with pytest.raises(Retry, match="Cannot contact any KDC"):
        authorize(sink, "another")
    assert authorize(sink) == "Negotiate nn1"
    kdc.is_away = False
    until(lambda: not sink._failure)
    assert authorize(sink, "another") == "Negotiate another"


def test_a_namenode_that_the_kdc_does_not_know_keeps_no_other_from_being_used(make: Make, kdc: FakeKdc) -> None:
    kdc.unknown = {"nn1"}
    sink = make()
    sink.use_tickets("test")
    assert authorize(sink, "nn2") == "Negotiate nn2"
    with pytest.raises(Retry, match=r"no Kerberos ticket for HTTP/nn1, a web server of HDFS: .* not found"):
        authorize(sink, "nn1")
    kdc.unknown = {"nn1", "nn2"}
    other = make()
    with pytest.raises(Retry, match="no Kerberos ticket for the web servers of HDFS: HTTP/nn1 not found"):
        authorize(other)


def test_a_frozen_kdc_keeps_only_calls_to_new_hosts(make: Make, kdc: FakeKdc) -> None:
    sink = make()
    sink.use_tickets("test")
    assert authorize(sink) == "Negotiate nn1"
    kdc.frozen.set()
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(authorize(sink, "datanode")), daemon=True)
    thread.start()
    until(lambda: "datanode" in sink._hosts)
    assert authorize(sink) == "Negotiate nn1"
    assert not answers
    kdc.answers.set()
    thread.join(30)
    assert answers == ["Negotiate datanode"]


def test_sinks_that_renew_at_once_share_a_token_and_a_failure(make: Make, kdc: FakeKdc, issued: list[str]) -> None:
    kdc.frozen.set()
    sinks = [make() for _ in range(5)]
    threads = [threading.Thread(target=authorize, args=(sink,), daemon=True) for sink in sinks]
    for thread in threads:
        thread.start()
    kdc.answers.set()
    for thread in threads:
        thread.join(30)
    assert (issued, kdc.logins) == (["token1"], 1)


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is met, at most a minute."""
    event = threading.Event()
    for _ in range(6000):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError("the condition is not met")

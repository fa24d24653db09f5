"""Exceptions of HDFS as errors of the sink: decided by their names, as every IOException has status 403."""

from __future__ import annotations

import json
import threading
import traceback
from typing import Any

import pytest
import requests

from flafka.plugins import Retry
from flafka.sinks.hdfs.delegation import Login
from flafka.sinks.hdfs.filesystem import Refused
from flafka.sinks.hdfs.namenodes import DataNodeAway, NameNodes, NotFound, RemoteError, TokenRefused, UploadBroken

INVALID = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
GROUP = "Failed to obtain user group information: "


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("StandbyException", "Operation category READ is not supported in state standby", "StandbyException"),
        ("InvalidToken", "Token  has expired, current time: 2026-11-29", "InvalidToken"),
        ("SecurityException", f"{GROUP}{INVALID}: Token for real user: , can't be found in cache", "InvalidToken"),
        # A NameNode that becomes active does not know young tokens for a moment: the outermost exception counts.
        (
            "SecurityException",
            f"{GROUP}org.apache.hadoop.ipc.RetriableException: {INVALID}: Token can't be found in cache",
            "RetriableException",
        ),
        (
            "SecurityException",
            f"{GROUP}org.apache.hadoop.ipc.StandbyException: Operation category READ is not supported",
            "StandbyException",
        ),
        ("AuthenticationException", f"{INVALID}: Token has expired", "InvalidToken"),  # of HttpFS
        ("IOException", "java.net.ConnectException: Connection refused", "ConnectException"),
        ("IOException", "Failed to find datanode, suggest to check cluster health.", "IOException"),
        ("AccessControlException", "Permission denied: user=a.b, access=WRITE", "AccessControlException"),
        ("IOException", "File /a/java.io.FileNotFoundException/b could only be written to 0 nodes", "IOException"),
    ],
)
def test_the_outermost_exception_counts(exception: str, message: str, kind: str) -> None:
    assert RemoteError(exception, message).kind == kind


@pytest.mark.parametrize(
    ("exception", "message", "error", "tries"),
    [
        ("StandbyException", "standby", Retry, 4),
        ("SecurityException", f"{GROUP}org.apache.hadoop.ipc.RetriableException: {INVALID}: none", Retry, 4),
        ("IOException", "Failed to find datanode, suggest to check cluster health. op=CREATE", Retry, 4),
        ("IOException", "java.net.ConnectException: Connection refused", Retry, 1),
        ("FileNotFoundException", "File does not exist: /a", NotFound, 1),
        ("AccessControlException", "Permission denied", Refused, 1),
        ("NSQuotaExceededException", "The NameSpace quota is exceeded", Refused, 1),
        ("SafeModeException", "Name node is in safe mode", Retry, 1),
        ("InvalidToken", "Token has expired", TokenRefused, 4),
    ],
)
def test_a_refusal_is_an_error_after_the_tries_that_may_help(
    exception: str, message: str, error: type[Retry], tries: int
) -> None:
    namenodes = pair()
    calls: list[str] = []

    def call(client: Any) -> None:
        calls.append(client.hosts[0])
        raise RemoteError(exception, message)

    with pytest.raises(Retry) as raised:
        namenodes.write("do it", call)
    assert type(raised.value) is error
    assert len(calls) == tries


def test_a_token_that_a_standby_does_not_know_yet_is_used_at_the_active_namenode() -> None:
    namenodes = pair()

    def call(client: Any) -> str:
        if client.hosts == ["nn1:9870"]:
            raise RemoteError("SecurityException", f"{GROUP}{INVALID}: Token can't be found in cache")
        return client.hosts[0]

    assert namenodes.write("do it", call) == "nn2:9870"
    assert not namenodes._tokens.count


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("StandbyException", "Operation category WRITE is not supported in state standby"),
        ("InvalidToken", "Token has expired"),
        ("IOException", "Failed to find datanode, suggest to check cluster health."),
    ],
)
def test_an_upload_that_a_datanode_refuses_is_not_repeated_under_its_name(
    monkeypatch: pytest.MonkeyPatch, exception: str, message: str
) -> None:
    sent: list[str] = []

    def send(adapter: Any, request: Any, **options: Any) -> requests.Response:
        sent.append(request.url.partition("?")[0])
        answer = requests.Response()
        answer.request, answer.url = request, request.url
        if "nn1" in request.url:
            answer.status_code = 307
            answer.headers["location"] = "http://dn:9864/webhdfs/v1/a"
            answer._content = b""
        else:
            answer.status_code = 403
            answer._content = json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode()
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    namenodes = pair()
    with pytest.raises(UploadBroken, match="HDFS cannot write /a: "):
        namenodes.upload("write /a", lambda client: namenodes.create(client, "/a", b"data"))
    assert sent == ["http://nn1:9870/webhdfs/v1/a", "http://dn:9864/webhdfs/v1/a"]
    assert namenodes._tokens.count == (exception == "InvalidToken")


def test_an_error_with_its_traceback_has_no_delegation_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_: Any, **options: Any) -> None:
        raise requests.ConnectionError(
            "HTTPConnectionPool(host='dn'): Max retries exceeded with url: /webhdfs/v1/a?delegation=HgAF-s_1&b=1"
        )

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    namenodes = pair()
    with pytest.raises(DataNodeAway) as raised:
        namenodes.upload("write a", lambda client: namenodes.session.put("http://dn:9864/webhdfs/v1/a"))
    text = "".join(traceback.format_exception(raised.value))
    assert "delegation=…&b=1" in text
    assert "HgAF" not in text


def pair() -> NameNodes:
    """Return two NameNodes with tokens that are never replaced."""
    namenodes = NameNodes(
        ["nn1:9870", "nn2:9870"],
        scheme="http",
        user="u",
        login=Login(),
        timeout=30,
        threads=1,
        stopping=threading.Event(),
    )
    namenodes.failover_pause_seconds = 0
    namenodes._tokens = _Tokens()
    return namenodes


class _Tokens:
    """Delegation tokens that are never replaced."""

    count = 0
    """Number of refusals."""

    def refused(self) -> None:
        """Count a refusal."""
        self.count += 1

    def close(self) -> None:
        """Do nothing."""

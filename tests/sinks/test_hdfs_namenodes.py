"""Exceptions of HDFS as errors of the sink: decided by their names, as every IOException has status 403."""

from __future__ import annotations

import json
import re
import threading
import traceback
from typing import Any
from urllib.parse import urlsplit

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
        ("InvalidToken", "Token has expired", TokenRefused, 8),
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


def test_nothing_is_added_to_the_address_of_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Knox encrypts the query; and an address that cannot be reached is named."""
    knox = "http://knox:8443/gateway/d/webhdfs/data/v1/webhdfs/v1/a%2fb?_=AAAACAAAABAA~b%7e+c%2f%3D==&x"
    sent: list[str] = []

    def send(adapter: Any, request: Any, **options: Any) -> requests.Response:
        sent.append(request.url)
        answer = requests.Response()
        answer.request, answer.url, answer._content = request, request.url, b""
        answer.status_code = 307 if "nn1" in request.url else 201
        answer.headers["location"] = knox
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    namenodes = pair()
    namenodes.session.auth = _add_token
    namenodes.upload("write /a", lambda client: namenodes.create(client, "/a", b"data"))
    assert "delegation=secret" in sent[0]
    assert sent[1:] == [knox]

    def refuse(adapter: Any, request: Any, **options: Any) -> requests.Response:
        if "nn1" in request.url:
            return send(adapter, request)
        raise requests.ConnectionError("refused", request=request)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", refuse)
    with pytest.raises(DataNodeAway, match="DataNode knox:8443, to which it redirects, does not answer") as away:
        namenodes.upload("write /a", lambda client: namenodes.create(client, "/a", b"data"))
    assert away.value.host == "knox"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_page_of_a_proxy_whose_server_is_away_leads_to_the_next_namenode(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """At the address of a redirect, it leads to another name: the server may have begun the file."""
    sent: list[str] = []

    def send(adapter: Any, request: Any, **options: Any) -> requests.Response:
        server = urlsplit(request.url).netloc
        sent.append(server)
        answer = requests.Response()
        answer.request, answer.url, answer._content = request, request.url, b""
        answer.status_code = 307 if server == "nn2:9870" else status
        answer.headers["location"] = "http://dn:9864/webhdfs/v1/a"
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    namenodes = pair()
    with pytest.raises(DataNodeAway, match=f"DataNode dn:9864, to which it redirects, fails: .* status {status}"):
        namenodes.upload("write /a", lambda client: namenodes.create(client, "/a", b"data"))
    assert sent == ["nn1:9870", "nn2:9870", "dn:9864"]


def test_a_login_that_a_datanode_requires_leads_to_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def send(adapter: Any, request: Any, **options: Any) -> requests.Response:
        sent.append(urlsplit(request.url).netloc)
        answer = requests.Response()
        answer.request, answer.url, answer._content = request, request.url, b""
        answer.status_code = 307 if "nn1" in request.url else 401
        answer.headers["location"] = "http://dn:9864/webhdfs/v1/a"
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    namenodes = pair()
    with pytest.raises(TokenRefused, match="write /a: dn:9864 requires a login, although the request has a token"):
        namenodes.upload("write /a", lambda client: namenodes.create(client, "/a", b"data"))
    assert sent == ["nn1:9870", "dn:9864"]
    assert namenodes._tokens.count == 1


def _add_token(request: Any) -> Any:
    request.url += "&delegation=secret"
    return request


@pytest.mark.parametrize(
    ("status", "page", "message"),
    [
        (
            403,
            "<html><TITLE>Error 403\n GSSException: no</TITLE>",
            "cannot write /a: nn1:9870 answers with status 403: ",
        ),
        (502, "", "cannot write /a: nn2:9870 answers with status 502$"),
        (
            404,
            "<title>Not Found</title>",
            "does not speak WebHDFS: is it .* nn1:9870 answers with status 404: Not Found",
        ),
    ],
)
def test_a_page_of_a_web_server_is_shown(
    monkeypatch: pytest.MonkeyPatch, status: int, page: str, message: str
) -> None:
    def send(adapter: Any, request: Any, **options: Any) -> requests.Response:
        answer = requests.Response()
        answer.request, answer.url, answer.status_code, answer._content = request, request.url, status, page.encode()
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    with pytest.raises(Retry, match=message):
        pair().write("write /a", lambda client: client.mkdirs("/a"))


@pytest.mark.parametrize(
    ("action", "access", "inode", "command"),
    [
        (
            "write /a/b",
            "WRITE",
            '"/a":hdfs:hr:drwxr-xr-x',
            "hdfs dfs -setfacl -m user:ann:rwx /a, or hdfs dfs -chown",
        ),
        ("write /a/b", "EXECUTE", '"/a":hdfs:hr:drwx------', "hdfs dfs -setfacl -m user:ann:rwx /a, "),
        ("list /a/b/c", "EXECUTE", '"/a":hdfs:hr:drwx------', "hdfs dfs -setfacl -m user:ann:r-x /a, "),
        ("list /a", "READ_EXECUTE", '"/a b":ann:hr:d---------', "hdfs dfs -chmod u+rx '/a b'"),
    ],
)
def test_a_denial_has_the_command_that_grants_the_right(action: str, access: str, inode: str, command: str) -> None:
    def call(client: Any) -> None:
        raise RemoteError("AccessControlException", f"Permission denied: user=ann, access={access}, inode={inode}")

    with pytest.raises(Refused, match=re.escape(f"HDFS does not let user 'u' {action}")) as refused:
        pair().write(action, call)
    assert f"; to allow it: {command}" in str(refused.value)


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

    is_spnego = False
    count = 0
    """Number of refusals."""

    def refused(self, why: str = "") -> bool:
        """Count a refusal."""
        self.count += 1
        return True

    def close(self) -> None:
        """Do nothing."""

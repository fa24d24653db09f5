"""Calls of WebHDFS at the active NameNode: failover, errors, and delegation tokens where Kerberos is required."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import posixpath
import re
import select
import shlex
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from threading import Event, Lock
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from flafka.plugins import Retry, require
from flafka.sinks.hdfs.delegation import YOUNG_REFUSALS, DelegationTokens, Login
from flafka.sinks.hdfs.filesystem import Refused
from flafka.sinks.hdfs.trust import CA_VARIABLE, DEFAULT_TLS, TlsFailure, TlsSettings, Trust

R = TypeVar("R")

HTTP_CONNECT_SECONDS = 5.0
"""Longest time in which a NameNode or DataNode accepts a connection."""
SOCKET_POLL_SECONDS = 0.2
"""Interval at which a call that waits for an answer checks whether the agent stops."""
SERVER_SILENCE_SECONDS = 5.0
"""Time without an answer after which a call fails while the agent stops. No other call follows."""
FAILOVER_ROUNDS = 2
"""Tries of a call at each NameNode."""
FAILOVER_PAUSE_SECONDS = 0.5
"""Pause between two rounds: a failover takes about a second."""
NOT_ACTIVE = ("StandbyException", "RetriableException", "ObserverRetryOnActiveException")
"""Exceptions of a NameNode that is not active, or starts: another one may answer."""
NO_DATANODE = "Failed to find datanode"
"""Message of a NameNode that has just started, whose DataNodes have not registered yet."""
TRANSIENT = ("RemoteException", "ConnectException", "EOFException", "SocketTimeoutException", "UnknownHostException")
"""Exceptions that pass without a change; HttpFS reports some if it cannot reach a NameNode."""
TOKEN_REQUEST_SECONDS = 10.0
"""Longest silence of a NameNode that is asked for a token; then the next one is asked."""
GATEWAY_STATUSES = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""Statuses of a proxy, or of HttpFS while it starts, whose server is away."""
WRAPPERS = ("SecurityException", "AuthenticationException", "IOException", "RemoteException")
"""Exceptions whose message may begin with the name of the real one."""

_CLASS_NAME = re.compile(
    r"(?:Failed to obtain user group information: )?(?:[a-z]\w*\.)+(?:\w+\$)?(\w+Exception|InvalidToken)\b"
)
"""Name of an exception at the begin of a message. Further on, a path may look like one."""
_TOKEN = re.compile(r"(?<=delegation=)[\w-]+")
"""Delegation token in a URL, which is a password."""
_DENIAL = re.compile(r'Permission denied: user=([^,\s]+), access=(\w+), inode="([^"]*)":([^:]*):')
"""Refusal of a NameNode: user, missing right, and path with its owner."""
_UNIQUE = re.compile(r"(?:(?<=/\.flafka/tmp/)|(?<=/\.flafka-check-))\S+")
"""Part of a path that is unique. Errors have `…` instead, so that repeated ones are equal and logged once."""


class NotFound(Retry):
    """Failure of a call for a path that does not exist."""


class LoginRequired(Exception):
    """Answer 401 of a server: the request has no credentials that it accepts."""


class UnexpectedAnswer(Exception):
    """Refusal that is no exception of HDFS, such as a page of a web server or of a proxy."""

    def __init__(self, server: str, status: int, title: str) -> None:
        super().__init__(f"{server} answers with status {status}{title and ': '}{title}")
        self.status = status


class RemoteError(Exception):
    """Exception that HDFS reports: `kind` is the name of its class, the outermost one inside a wrapper."""

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(f"{exception}: {message}")
        # Every IOException has status 403, and 500 from HttpFS, so that only the names tell them apart.
        match = _CLASS_NAME.match(message) if exception in WRAPPERS else None
        self.kind, self.message = match[1] if match else exception, message


class TokenRefused(Retry):
    """Failure of a call whose delegation token was refused; the next call uses another one."""


class UploadBroken(Retry):
    """Failure of an upload that may have left a file of its name."""


class DataNodeAway(Retry):
    """Failure of a transfer, as a DataNode does not answer, broke the connection, or fails at TLS."""

    def __init__(self, host: str, action: str, why: str = "does not answer") -> None:
        """`host` is the server as `host:port`; empty if unknown. `why` is a predicate."""
        super().__init__(f"HDFS cannot {action}: DataNode {host or '(unknown)'}, to which it redirects, {why}")
        self.host = host.rpartition(":")[0] or host


class _TransferFailure(Exception):
    """Failure at the address of a redirect, of TLS or of a proxy: another NameNode must not repeat the call.

    An upload may have begun a file of its name there.
    """

    def __init__(self, host: str, error: Exception) -> None:
        super().__init__(f"fails: {error}")
        self.host = host


class NameNodes:
    """NameNodes of one nameservice over WebHDFS, or servers of HttpFS. Any thread may call.

    Calls use delegation tokens from the first answer on that requires Kerberos.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        scheme: str,
        user: str,
        login: Login,
        timeout: float | None,
        threads: int,
        stopping: Event,
        tls: TlsSettings = DEFAULT_TLS,
        member: str = "",
    ) -> None:
        """Create clients; no request is sent. `hosts` are `host:port`; the others are parameters of `WebHdfs`."""
        self._pyhdfs, self._requests = require("pyhdfs", "hdfs"), require("requests", "hdfs")
        logging.getLogger("pyhdfs").setLevel(logging.ERROR)  # it logs a traceback for each failed NameNode
        self.user, self.scheme, self._login, self._member = user, scheme, login, member
        self._timeout, self._stopping = timeout, stopping
        self._silence, self._trust = SilenceLimit(stopping), Trust(tls, member)
        self.session = self._new_session(threads, timeout)  # one for all calls, as it reuses connections
        self.session.request = _raising_refusals(self.session.request, self._requests.RequestException)
        self._tokens: DelegationTokens | None = None
        self._tokens_lock = Lock()
        self.failover_rounds, self.failover_pause_seconds = FAILOVER_ROUNDS, FAILOVER_PAUSE_SECONDS
        self.set_hosts(hosts)

    def set_hosts(self, hosts: Sequence[str]) -> None:
        """Set the NameNodes as `host:port`."""
        settings = {
            "randomize_hosts": False,
            "max_tries": 1,
            "user_name": self.user,
            "timeout": self._timeout,
            "scheme": self.scheme,
            "requests_session": self.session,
        }
        self.hosts = ", ".join(hosts)
        self.clients = [self._pyhdfs.HdfsClient([host], **settings) for host in hosts]
        """Client of pyhdfs for each NameNode, that of the last active one first."""

    def end_login(self) -> None:
        """End the thread of the tokens, and the calls that wait for one. A valid token is still used."""
        if self._tokens is not None:
            self._tokens.close()

    def close(self) -> None:
        """Close the connections, and end the thread of the tokens."""
        self.end_login()
        self.session.close()

    def _new_session(self, connections: int, timeout: float | None) -> Any:
        """Return a session of requests with at most so many connections to a server.

        `timeout` is the longest silence of a server, in seconds; None is no limit.
        """
        session = self._requests.Session()
        session.trust_env = False  # requests to HDFS must not go through a proxy for the internet
        session.verify = os.environ.get(CA_VARIABLE) or True
        session.request = _with_timeout(
            session.request, (min(HTTP_CONNECT_SECONDS, timeout or HTTP_CONNECT_SECONDS), timeout)
        )
        adapter = self._requests.adapters.HTTPAdapter(pool_maxsize=connections)
        self._silence.apply_to(adapter)
        self._trust.apply_to(adapter)
        session.mount(f"{self.scheme}://", adapter)
        session.request = self._trust.checked(session.request, self._requests.RequestException)
        return session

    def log_in(self) -> None:
        """Use delegation tokens from now on. Idempotent."""
        with self._tokens_lock:
            if self._tokens is None:
                hosts = [client.hosts[0] for client in self.clients]
                timeout = min(self._timeout or TOKEN_REQUEST_SECONDS, TOKEN_REQUEST_SECONDS)
                tokens = DelegationTokens(
                    self._new_session(1, timeout),
                    hosts,
                    self.scheme,
                    self._login,
                    stopping=self._stopping,
                    member=self._member,
                )
                self.session.auth = tokens  # before other threads see the tokens
                self._tokens = tokens

    # --- calls

    def write(self, action: str, call: Callable[[Any], R]) -> R:
        """Return the result of `call` for the client of the active NameNode.

        `action` completes "HDFS cannot …" in errors. Raises NotFound for a missing path, DataNodeAway for a broken
        transfer, Refused for a refusal that lasts, and Retry for any other failure.
        """
        return self._with_token(action, functools.partial(self._try_all, call))

    def read(self, action: str, call: Callable[[Any], R]) -> R:
        """Return the result of `call` for the client of the active NameNode, never a standby's. Raises as `write`.

        If dfs.ha.allow.stale.reads is set, a standby answers reads with a state that is seconds old. A standby also
        redirects uploads, but refuses all other changes. So each NameNode gets a `mkdirs` that changes nothing before
        its answer is used.
        """
        if len(self.clients) == 1:
            return self.write(action, call)

        def checked(client: Any) -> R:
            try:
                client.mkdirs("/")
            except RemoteError as e:
                if _is_standby(e):  # an active one may refuse the change, too
                    raise
            return call(client)

        return self._with_token(action, functools.partial(self._try_all, checked))

    def upload(self, action: str, call: Callable[[Any], R]) -> R:
        """Return the result of `call` as `write` does, without a second try after a refused token.

        Raises TokenRefused in that case: a DataNode may have begun a file of that name.
        """
        return self._as_errors(action, functools.partial(self._try_all, call))

    def _with_token(self, action: str, call: Callable[[], R]) -> R:
        """Return the result of `call`, repeated while delegation tokens are refused, until tickets are used."""
        for _ in range(YOUNG_REFUSALS):
            with contextlib.suppress(TokenRefused):
                return self._as_errors(action, call)
        return self._as_errors(action, call)

    def _try_all(self, call: Callable[[Any], R]) -> R:
        """Return the result of `call` for the first active NameNode. Raises the error of the last one, or of TLS.

        A token is refused once every NameNode has been tried: a standby does not know a young one yet. The server
        whose TLS fails may be the active one, so that the answer of a standby says less.
        """
        error: Exception = self._pyhdfs.HdfsNoServerException()
        for attempt in range(self.failover_rounds):
            if attempt:
                time.sleep(self.failover_pause_seconds)
            refusal: RemoteError | None = None
            tls_failure: TlsFailure | None = None
            for client in self.clients:
                try:
                    result = call(client)
                except self._pyhdfs.HdfsNoServerException as e:
                    error = e
                except TlsFailure as e:
                    error = tls_failure = e
                except UnexpectedAnswer as e:
                    if e.status not in GATEWAY_STATUSES:
                        raise
                    error = e
                except RemoteError as e:
                    if self._is_token_refusal(e):
                        refusal = e
                    elif not _is_standby(e):
                        raise
                    error = e
                else:
                    if client is not self.clients[0]:
                        self.clients = [client, *(other for other in self.clients if other is not client)]
                    return result
            if refusal is not None:
                raise refusal
        raise tls_failure or error

    def _is_token_refusal(self, error: RemoteError) -> bool:
        """Return True if HDFS refuses the delegation token of a call: it has ended, or was cancelled."""
        return self._tokens is not None and error.kind == "InvalidToken"

    def create(self, client: Any, path: str, data: Any, **options: str) -> None:
        """Write a new file, at HttpFS as well: pyhdfs sends no type, and HttpFS answers with a body.

        Raises UploadBroken if the data was refused after the file may have been created: the caller tries again with
        another name.
        """
        answer = client._put(path, "CREATE", expected_status=HTTPStatus.TEMPORARY_REDIRECT, **options)
        headers = {"Content-Type": "application/octet-stream"}
        try:
            stored = self._follow("PUT", answer, client, data=data, headers=headers)
        except RemoteError as e:
            if self._tokens is not None and self._is_token_refusal(e):
                self._tokens.refused()
            elif not _is_standby(e):
                raise
            raise UploadBroken(f"HDFS cannot write {_UNIQUE.sub('…', path)}: {e.message}") from e
        except LoginRequired as e:
            if self._tokens is not None:
                raise
            self.log_in()
            raise UploadBroken(f"HDFS cannot write {_UNIQUE.sub('…', path)}: {e}") from e
        if stored.status_code != HTTPStatus.CREATED:
            raise ValueError(f"status {stored.status_code}")

    def content(self, client: Any, path: str) -> bytes:
        """Return the content of a file, from a DataNode or from HttpFS, which does not redirect."""
        url, parameters = f"{self.scheme}://{client.hosts[0]}/webhdfs/v1{quote(path)}", {"op": "OPEN"}
        try:
            answer = self.session.get(url, params=parameters | {"user.name": self.user}, allow_redirects=False)
        except (self._requests.ConnectionError, self._requests.Timeout) as e:
            raise self._pyhdfs.HdfsNoServerException from e
        if answer.status_code == HTTPStatus.TEMPORARY_REDIRECT:
            answer = self._follow("GET", answer, client)
        if answer.status_code != HTTPStatus.OK:
            raise ValueError(f"status {answer.status_code}")
        return bytes(answer.content)

    def _follow(self, method: str, redirect: Any, client: Any, **options: Any) -> Any:
        """Send a request to the address of a redirect, and return the answer.

        Nothing is added to the address: it has a token of the NameNode, or is encrypted, as by Knox. If no token is
        used, HttpFS, which redirects to itself, and servers that require a login get a ticket.
        """
        location, tokens = redirect.headers["location"], self._tokens

        def unchanged(request: Any) -> Any:
            request.url = location
            return request

        def with_ticket(request: Any) -> Any:
            assert tokens is not None
            tokens.add_ticket(unchanged(request))
            return request

        def send(auth: Callable[[Any], Any]) -> Any:
            try:
                return self.session.request(method, location, auth=auth, **options)
            except TlsFailure as e:
                raise _TransferFailure(urlsplit(location).netloc, e) from e
            except UnexpectedAnswer as e:
                if e.status not in GATEWAY_STATUSES:
                    raise
                raise _TransferFailure(urlsplit(location).netloc, e) from e

        with_tickets = tokens is not None and tokens.is_spnego
        if with_tickets and urlsplit(location).netloc == client.hosts[0] and "delegation=" not in location:
            return send(with_ticket)
        try:
            return send(unchanged)
        except LoginRequired:
            if not with_tickets:
                raise
        if hasattr(options.get("data"), "seek"):
            options["data"].seek(0)
        return send(with_ticket)

    # --- errors

    def _as_errors(self, action: str, call: Callable[[], R]) -> R:
        """Return the result of a call of pyhdfs; log in if that is required. Raises as `write`, and TokenRefused."""
        if self._silence.exceeded:
            raise Retry(f"HDFS is away: {self.hosts} is silent, and the agent stops")
        http = self._requests.packages.urllib3.exceptions.HTTPError
        action = _UNIQUE.sub("…", action)
        try:
            return call()
        except self._pyhdfs.HdfsNoServerException as e:
            raise Retry(f"HDFS is away: no NameNode answers, or none is active, at {self.hosts}") from e
        except RemoteError as e:
            raise self._refusal(e, action) from e
        except (self._requests.RequestException, http) as e:
            host = urlsplit(str(getattr(getattr(e, "request", None), "url", None) or "")).netloc
            raise DataNodeAway(host, action) from e
        except _TransferFailure as e:
            raise DataNodeAway(e.host, action, str(e)) from e
        except UnexpectedAnswer as e:
            if e.status == HTTPStatus.NOT_FOUND:
                raise Retry(f"{self.hosts} does not speak WebHDFS: is it the NameNode's HTTP address? {e}") from e
            raise Retry(f"HDFS cannot {action}: {e}") from e
        except (self._pyhdfs.HdfsException, AssertionError, KeyError, ValueError) as e:
            raise Retry(f"{self.hosts} does not speak WebHDFS: is it the NameNode's HTTP address?") from e
        except LoginRequired as e:
            if self._tokens is not None:
                why = f"{e}, although the request has a token"
                if self._tokens.refused(why):
                    raise TokenRefused(f"HDFS cannot {action}: {why}") from e
                raise Retry(f"HDFS cannot {action}: {e}, and takes neither a delegation token nor a ticket") from e
        self.log_in()
        return self._as_errors(action, call)

    def _refusal(self, error: RemoteError, action: str) -> Retry:
        """Return the error for an exception of HDFS: Retry if it may pass without a change, else Refused."""
        kind, why = error.kind, _UNIQUE.sub("…", error.message.partition("\n")[0])
        if kind == "FileNotFoundException":
            return NotFound(f"HDFS cannot {action}: it does not exist")
        if self._tokens is not None and self._is_token_refusal(error):
            self._tokens.refused()
            return TokenRefused(f"HDFS cannot {action}: it refuses the delegation token: {why}")
        if "SafeMode" in kind or "safe mode" in why:
            return Retry(f"HDFS is in safe mode and cannot {action} until the NameNode leaves it")
        if kind in NOT_ACTIVE:
            return Retry(f"HDFS is away: no NameNode answers, or none is active, at {self.hosts}")
        if kind == "AccessControlException":
            return Refused(f"HDFS does not let user {self._principal()} {action}: {why}{_grant(why, action)}", kind)
        text = f"HDFS cannot {action}: {why}"
        return Retry(text) if kind in TRANSIENT or NO_DATANODE in why else Refused(text, kind)

    def _principal(self) -> str:
        """Return the user of the calls, in quotes."""
        login = self._login
        if self._tokens is None:
            return repr(self.user)
        return repr(login.proxy_user or login.resolved_principal() or self.user)


def _grant(denial: str, action: str) -> str:
    """Return `; ` and the command that grants what HDFS has denied with this text; empty for another denial.

    `action` is the failed action with its paths: names in a directory are changed with all rights on it only.
    """
    match = _DENIAL.search(denial)
    if match is None:
        return ""
    user, access, path, owner = match.groups()
    is_changed = "WRITE" in access or access == "ALL" or path in map(posixpath.dirname, action.split())
    path = shlex.quote(path)
    if owner == user:
        return f"; to allow it: hdfs dfs -chmod u+{'rwx' if is_changed else 'rx'} {path}"
    entry = f"user:{user}:{'rwx' if is_changed else 'r-x'}"
    return f"; to allow it: hdfs dfs -setfacl -m {entry} {path}, or hdfs dfs -chown {user} {path}"


def _is_standby(error: RemoteError) -> bool:
    """Return True if another NameNode, or the same one a little later, may execute the refused call."""
    return error.kind in NOT_ACTIVE or NO_DATANODE in error.message


class SilenceLimit:
    """Limit of a server's silence: the timeout of a call, or `SERVER_SILENCE_SECONDS` once the agent stops."""

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        self.exceeded = False
        """True once a server was silent while the agent stops."""

    def apply_to(self, adapter: Any) -> None:
        """Have all connections of an adapter of requests wait for answers with this limit."""
        manager = getattr(adapter, "poolmanager", None)
        if manager is None:
            return

        def limited(pool: Any) -> Any:
            def getresponse(connection: Any) -> Any:
                if hasattr(connection.sock, "pending"):
                    self._limit_reads(connection.sock)
                elif connection.sock is not None:
                    self._wait(connection.sock)
                return pool.ConnectionCls.getresponse(connection)

            connection_class = type("Connection", (pool.ConnectionCls,), {"getresponse": getresponse})
            return type(pool.__name__, (pool,), {"ConnectionCls": connection_class})

        manager.pool_classes_by_scheme = {
            scheme: limited(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
        }

    def _wait(self, socket: Any) -> None:
        """Wait until an answer begins. Raises TimeoutError as `_checked_limit`."""
        check = self._checked_limit(socket.gettimeout())
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        while not poll.poll(SOCKET_POLL_SECONDS * 1000):
            check()

    def _limit_reads(self, socket: Any) -> None:
        """Have each read of a TLS socket raise TimeoutError as `_checked_limit`.

        A readable socket is no answer: with TLS 1.3, it may have session tickets only.
        """
        receive = type(socket).recv_into

        def recv_into(*arguments: Any) -> int:
            limit = socket.gettimeout()
            check = self._checked_limit(limit)
            try:
                socket.settimeout(SOCKET_POLL_SECONDS)
                while True:
                    try:
                        return int(receive(socket, *arguments))
                    except TimeoutError:
                        check()
            finally:
                socket.settimeout(limit)

        socket.recv_into = recv_into

    def _checked_limit(self, limit: float | None) -> Callable[[], None]:
        """Return a function that raises TimeoutError once a server has been silent for `limit` seconds.

        Once the agent stops, it raises TimeoutError after `SERVER_SILENCE_SECONDS` more, and sets `exceeded`.
        """
        began, stopped = time.monotonic(), None

        def check() -> None:
            nonlocal stopped
            now = time.monotonic()
            if self._stopping.is_set():
                stopped = now if stopped is None else stopped
                if now - stopped >= SERVER_SILENCE_SECONDS:
                    self.exceeded = True
                    raise TimeoutError("the agent stops, and the server is silent")
            if limit is not None and now - began >= limit:
                raise TimeoutError("the server is silent")

        return check


def _raising_refusals(request: Callable[..., Any], failure: type[Exception]) -> Callable[..., Any]:
    """Return `request` that raises LoginRequired for status 401, and RemoteError for an exception of HDFS.

    Any other status of an error raises UnexpectedAnswer. pyhdfs knows neither the pages of a server that requires
    Kerberos, nor some exceptions under the status they have. A `failure`, the base class of requests' errors, is
    raised without the delegation token that its URL has.
    """

    def checked(method: str, url: str, **options: Any) -> Any:
        try:
            answer = request(method, url, **options)
        except failure as e:
            error: Any = type(e)
            raise error(_TOKEN.sub("…", str(e)), request=getattr(e, "request", None)) from None
        server = urlsplit(url).netloc
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise LoginRequired(f"{server} requires a login")
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            try:
                remote = answer.json()["RemoteException"]
                error = RemoteError(str(remote["exception"]), str(remote.get("message") or remote["exception"]))
            except (ValueError, KeyError, TypeError):  # a page of a web server, or another program
                raise UnexpectedAnswer(server, answer.status_code, _title(answer)) from None
            raise error
        return answer

    return checked


def _title(answer: Any) -> str:
    """Return the title of a web page, the cause of a refusal; empty without one."""
    title = re.search(r"<title>(.*?)</title>", answer.text, re.DOTALL | re.IGNORECASE)
    return re.sub(r"\s+", " ", title[1]).strip()[:300] if title else ""


def _with_timeout(request: Callable[..., Any], timeout: tuple[float, float | None]) -> Callable[..., Any]:
    """Return `request` with these timeouts to connect and to read, in seconds, whatever timeout the caller gives.

    pyhdfs sets none for transfers, and one for all else.
    """
    return lambda method, url, **options: request(method, url, **{**options, "timeout": timeout})

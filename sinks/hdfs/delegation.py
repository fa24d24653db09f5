"""Kerberos for WebHDFS: delegation tokens, obtained by SPNEGO and replaced before they end.

A request with a delegation token needs no ticket: without a KDC, the sink works on while its token is valid. Hadoop's
"WebHDFS REST API" specifies both.
"""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import os
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from flafka.plugins import Retry
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.net.gssapi import Credential, KerberosError
from flafka.plugins.net.keytab import read_principals
from flafka.plugins.threads import start_thread
from flafka.sinks.hdfs.trust import TlsFailure

FILE_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
"""Environment variable with the path of a file of tokens, as of `hdfs fetchdt`."""
FIRST_TOKEN_SECONDS = 35.0
"""Time to wait for a token. A KDC without an answer makes the Kerberos library wait for half a minute."""
TOKEN_RETRY_SECONDS = (1.0, 10.0)
"""Shortest and longest pause after a failure to get a token."""
RENEWAL_FRACTION = 0.5
"""Part of its life after which a token is replaced. The rest is for uploads that use it."""
DEFAULT_LIFE_SECONDS = 24 * 3600.0
"""Hadoop's default of dfs.namenode.delegation.token.renew-interval."""
WRONG_KEY_PAUSE_SECONDS = 300.0
"""Pause after a refused key. KDCs commonly lock a principal after a few wrong keys within some minutes."""
TOKEN_POLL_SECONDS = 0.2
"""Interval at which a call that waits for a token checks whether the agent stops."""
WARNING_INTERVAL_SECONDS = 300.0
"""Least time between two warnings of the same failure while a token is valid."""
YOUNG_REFUSALS = 3
"""Refusals of young tokens within `REFUSAL_WINDOW_SECONDS` after which tickets are used instead of tokens."""
REFUSAL_WINDOW_SECONDS = 60.0
"""Time within which refusals of young tokens are counted. A server that knows its tokens refuses one at most."""
TICKETS_SECONDS = 600.0
"""Time for which tickets are used instead of tokens. Within as much time after it, one refusal is enough."""
CREDENTIAL_SECONDS = 300.0
"""Age at which a ticket is replaced by a new one, which is used once there is one."""
SPNEGO = "SPNEGO"
"""Stands for a token while each request is authenticated by a ticket."""
KDC_HINTS = {
    "have been revoked": "it is disabled or locked: run kadmin's modprinc +allow_tix, or modprinc -unlock",
    "entry in database has expired": "kadmin's modprinc -expire extends it",
    "Password has expired": "kadmin's modprinc -pwexpire extends it; or give it a new key in a new keytab",
    "not found in Kerberos database": "correct hdfs.kerberosPrincipal, or add it with kadmin's addprinc",
    "Cannot contact any KDC": "no KDC of krb5.conf or KRB5_CONFIG answers",
    "Clock skew too great": "set the clocks of this host and of the KDC",
}
"""Way out, by a part of MIT's text for the failure of a principal."""
SERVER_HINTS = {
    "Clock skew too great": "set the clocks of the KDC and of that host",
    "Checksum failed": "its keytab lacks the newest key of its principal HTTP/…: replace it",
    "No rules applied to": "add a rule for the principal to hadoop.security.auth_to_local in its core-site.xml",
}
"""Way out, by a part of the page with which a web server of Hadoop refuses a ticket."""


class Login(NamedTuple):
    """Kerberos login of a sink."""

    principal: str | None = None
    """Principal as configured, perhaps with `_HOST`; None for the user's ticket cache or token file."""
    keytab: str | None = None
    proxy_user: str | None = None
    """User to impersonate; None for the principal itself."""

    def resolved_principal(self) -> str | None:
        """Return the principal with `_HOST` replaced by the lower-case name of this host, as by Hadoop."""
        if self.principal is None:
            return None
        return self.principal.replace("/_HOST@", f"/{socket.getfqdn().lower()}@")

    def short_name(self) -> str | None:
        """Return the first part of the principal, which is the user on HDFS unless its rules say otherwise."""
        return None if self.principal is None else re.split("[/@]", self.principal)[0]

    def keytab_fault(self) -> str | None:
        """Return the reason why the keytab cannot be used, as a sentence; None if it can, or there is none."""
        if self.keytab is None:
            return None
        try:
            versions = read_principals(self.keytab)
        except OSError as e:
            return f"the keytab {self.keytab} cannot be read: {e.strerror}"
        except ValueError as e:
            return str(e)
        if (principal := self.resolved_principal()) in versions:
            return None
        return (
            f"the keytab {self.keytab} has no key of {principal}, only of {', '.join(sorted(versions)) or 'nobody'}"
        )

    def ticket_failure(self, why: str) -> str:
        """Return the sentence for a ticket that cannot be had, with the way out; `why` is the library's text."""
        if self.keytab is None:
            hint = "run kinit, or set hdfs.kerberosPrincipal and hdfs.kerberosKeytab"
            cache = os.environ.get("KRB5CCNAME") or f"this user's, as KRB5CCNAME is unset (uid {os.geteuid()})"
            return f"HDFS requires Kerberos, and there is no ticket: {why}; ticket cache: {cache}; {hint}"
        if fault := self.keytab_fault():
            return fault
        principal = self.resolved_principal()
        if "reauthentication failed" in why:
            version = read_principals(self.keytab)[str(principal)]
            why = f"{why}; the KDC has another key than version {version} in {self.keytab}; {_WrongKey.PAUSE}"
        why += _hint(why, KDC_HINTS)
        return f"no Kerberos ticket for {principal}: {why}; test it with: kinit -kt {self.keytab} {principal}"


class _WrongKey:
    """Keytab whose key the KDC has refused, which is not tried again soon: several tries may lock the principal."""

    PAUSE: ClassVar = f"the next try is in {WRONG_KEY_PAUSE_SECONDS:.0f} s, or when the keytab changes"
    """Length of the pause, for errors."""
    _refusals: ClassVar[dict[tuple[str | None, str | None], tuple[float, float, str]]] = {}
    """Time of the file, end of the pause, and failure, by principal and keytab; kept over reopened sinks."""

    def __init__(self, principal: str | None, keytab: str | None) -> None:
        self._key = principal, keytab

    def check(self) -> None:
        """Raise Retry if the same file was refused within `WRONG_KEY_PAUSE_SECONDS`."""
        changed, until, failure = self._refusals.get(self._key, (0.0, 0.0, ""))
        if time.monotonic() < until and self._changed() == changed:
            raise Retry(failure)

    def remember(self, failure: str) -> None:
        """Begin the pause."""
        self._refusals[self._key] = self._changed(), time.monotonic() + WRONG_KEY_PAUSE_SECONDS, failure

    def _changed(self) -> float:
        """Return the time of the keytab's last change, in seconds since the epoch; 0 without a file."""
        try:
            return Path(self._key[1]).stat().st_mtime if self._key[1] is not None else 0.0
        except OSError:
            return 0.0


_Key = tuple[frozenset[str], Login]
"""NameNodes and login."""
_latest_tokens: dict[_Key, tuple[str, float, float]] = {}
"""Token, its begin and its end by `time.monotonic`, by NameNodes and login: a reopened sink needs no KDC.

On Spark, each task opens its sink. A token for each would fill the NameNode's memory.
"""
_failures: dict[_Key, tuple[float, str]] = {}
"""Time and text of the latest failure to get a token."""
_obtaining: defaultdict[_Key, threading.Lock] = defaultdict(threading.Lock)
"""Locks of sinks with one login, which get a token one after the other: the next one uses the token of the first."""
_young_refusals: dict[_Key, list[float]] = {}
"""Times of the latest refusals of young tokens.

A token counts only if it was obtained after the last refusal, as a restart of a server ends the tokens of several
sinks.
"""
_tickets_until: dict[_Key, float] = {}
"""End of the time for which tickets are used instead of tokens."""


class DelegationTokens:
    """Source of valid delegation tokens for the requests of one sink, with a thread that replaces them.

    It is the `auth` of a requests session: it puts the token into each URL in place of the user's name. Thread-safe.
    """

    def __init__(
        self,
        session: Any,
        servers: Sequence[str],
        scheme: str,
        login: Login,
        *,
        stopping: threading.Event,
        member: str = "",
    ) -> None:
        """`session` is a requests session of this object's own, and `servers` are the NameNodes as `host:port`.

        Calls without a token end soon once `stopping` is set. `member` is the path of the sink, under which warnings
        and the end of the thread are reported. A valid token of an earlier object for the same login is used.
        """
        self._session, self._servers, self._scheme, self._login = session, list(servers), scheme, login
        self._log = logging.getLogger(member or __name__)
        self._stopping = stopping
        self._changed = threading.Condition()
        self._key = (frozenset(servers), login)
        latest = None if self._uses_tickets() else _latest_tokens.get(self._key)
        self._token, self._obtained_at, self._valid_until = latest or ("", 0.0, 0.0)
        self._failure, self._failed_at = "", 0.0
        self._is_closed = self._is_due = False  # due: replaced at once, although there is a token or ticket
        self._used = threading.local()
        self._credential: Credential | None = None
        self._credential_lock = threading.Lock()  # a credential must not be closed while it is used
        self._hosts = {server.rpartition(":")[0] or server for server in servers}  # hosts that need tickets
        self._host_failures: dict[str, str | None] = {}  # by host: None if the credential has a ticket for it
        self._last_warning = ("", float("-inf"))
        self._thread = threading.Thread(target=self._run, name=f"{member or 'webhdfs'}-tokens", daemon=True)
        start_thread(self._thread)

    def close(self) -> None:
        """End the thread, without waiting for a KDC that does not answer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __call__(self, request: Any) -> Any:
        """Put the token into the URL of a request, or a ticket into its header once no token is used any more.

        Raises Retry, with the reason, if there is neither within `FIRST_TOKEN_SECONDS`.
        """
        parts = urlsplit(request.url)
        query = [
            (name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "user.name"
        ]
        token = self._used.token = self._current()
        if token == SPNEGO:
            self.add_ticket(request)
            query += [("doas", self._login.proxy_user)] if self._login.proxy_user else []
        else:
            query.append(("delegation", token))
        request.url = urlunsplit(parts._replace(query=urlencode(query)))
        return request

    @property
    def is_spnego(self) -> bool:
        """True if the last request of this thread was authenticated by a ticket, not by a token."""
        return getattr(self._used, "token", "") == SPNEGO

    def add_ticket(self, request: Any) -> None:
        """Put a ticket for the server of a request into its header. Raises Retry if there is none.

        For a new host, the thread gets it, along with a new credential: a call to a KDC that does not answer keeps
        the credential from all other requests.
        """
        host = urlsplit(request.url).hostname or ""
        self._await_ticket(host)
        with self._credential_lock:
            try:
                if self._credential is None:
                    raise Retry("the sink is closed")
                request.headers["Authorization"] = self._credential.negotiate(host)
                return
            except KerberosError as e:
                failure = f"no Kerberos ticket for HTTP/{host}, a web server of HDFS: {e}"
        with self._changed:
            self._host_failures.pop(host, None)
            raise Retry(self._failure or failure)

    def _await_ticket(self, host: str) -> None:
        """Block until the thread has a ticket for the host, or has failed to get one. Raises Retry."""
        deadline = time.monotonic() + FIRST_TOKEN_SECONDS
        with self._changed:
            if self._host_failures.get(host, "") is None:
                return
            self._hosts.add(host)
            if time.monotonic() - self._failed_at > TOKEN_RETRY_SECONDS[0]:
                self._failure = ""
                self._host_failures.pop(host, None)
                self._is_due = True
                self._changed.notify_all()
            while (failure := self._host_failures.get(host, "")) is not None:
                remaining = deadline - time.monotonic()
                is_over = self._is_closed or self._stopping.is_set() or remaining <= 0 or self._token != SPNEGO
                if is_over or self._failure or failure:
                    why = failure or "the KDC does not answer"
                    raise Retry(self._failure or f"no Kerberos ticket for HTTP/{host}, a web server of HDFS: {why}")
                self._changed.wait(min(remaining, TOKEN_POLL_SECONDS))

    def use_tickets(self, why: str) -> None:
        """Authenticate each request without tokens for `TICKETS_SECONDS`. The reason `why` is logged."""
        with self._changed:
            if not self._uses_tickets():
                self._log.warning(
                    "%s: for %.0f s, each request is authenticated by a ticket, without a delegation token",
                    why,
                    TICKETS_SECONDS,
                )
                _tickets_until[self._key] = time.monotonic() + TICKETS_SECONDS
            self._discard()

    def _uses_tickets(self) -> bool:
        """Return True if requests are authenticated without tokens at present."""
        return time.monotonic() < _tickets_until.get(self._key, 0.0)

    def refused(self, why: str = "") -> bool:
        """Discard the token that this thread has used last, since HDFS has refused it.

        Return False if the request was authenticated by a ticket, or if HDFS requires a login although the token is
        that of a token file. After `YOUNG_REFUSALS`, tickets are used instead of tokens. `why` is the reason if a
        login is required.
        """
        token, has_file = getattr(self._used, "token", ""), self._login.keytab is None and FILE_VARIABLE in os.environ
        if token == SPNEGO or (why and has_file):
            return False
        with self._changed:
            if not token or token != self._token:
                return True
            now, refusals = time.monotonic(), _young_refusals.setdefault(self._key, [])
            is_young = now < _renewal_time(self._obtained_at, self._valid_until)
            if is_young and (not refusals or self._obtained_at > refusals[-1]):
                refusals[:] = [*(time for time in refusals if now - time < REFUSAL_WINDOW_SECONDS), now]
            is_tried_again = now - _tickets_until.get(self._key, float("-inf")) < TICKETS_SECONDS
            has_enough = len(refusals) >= YOUNG_REFUSALS or (is_young and is_tried_again)
            self._discard()
        if has_enough and not has_file:
            servers = ", ".join(self._servers)
            self.use_tickets(why or f"{servers} refuses its newest tokens, as several HttpFS behind one address do")
        return True

    def _discard(self) -> None:
        """Discard the token, so that the thread gets another one. The caller holds `_changed`."""
        if _latest_tokens.get(self._key, ("",))[0] == self._token:
            _latest_tokens.pop(self._key, None)
        self._token = self._failure = ""
        self._changed.notify_all()

    def _current(self) -> str:
        """Return the token; block until there is one, or until the first failure to get one. Raises Retry.

        After an earlier failure, the thread tries again at once: the KDC may be back.
        """
        deadline = time.monotonic() + FIRST_TOKEN_SECONDS
        with self._changed:
            if not self._has_token() and time.monotonic() - self._failed_at > TOKEN_RETRY_SECONDS[0]:
                self._failure = ""
                self._changed.notify_all()
            while not self._has_token():
                remaining = deadline - time.monotonic()
                if self._is_closed or self._stopping.is_set() or remaining <= 0 or self._failure:
                    raise Retry(self._failure or "no delegation token yet: the KDC or the NameNode does not answer")
                self._changed.wait(min(remaining, TOKEN_POLL_SECONDS))
            return self._token

    def _has_token(self) -> bool:
        """Return True if there is a token that has not ended. The caller holds `_changed`."""
        return bool(self._token) and time.monotonic() < self._valid_until

    # --- the thread

    def _run(self) -> None:
        """Obtain tokens until `close`: a new one when half of the life of the last one is over, or it is refused."""
        pause = TOKEN_RETRY_SECONDS[0]
        try:
            self._wait(self._seconds_until_renewal())
            while not self._is_closed:
                self._is_due = False
                try:
                    token, obtained_at, valid_until = self._obtain()
                except ANY_FAILURE as e:
                    self._report(str(e) if isinstance(e, Retry) else f"{type(e).__name__}: {e}")
                    self._wait(pause)
                    pause = min(2 * pause, TOKEN_RETRY_SECONDS[1])
                    continue
                with self._changed:
                    if (token == SPNEGO) != self._uses_tickets():
                        continue  # tokens were given up, or are tried again
                    self._token, self._obtained_at, self._valid_until = token, obtained_at, valid_until
                    self._failure = ""
                    self._changed.notify_all()
                pause = TOKEN_RETRY_SECONDS[0]
                self._wait(max(self._seconds_until_renewal(), pause))
        finally:
            self._session.close()
            self._keep(None, {})

    def _seconds_until_renewal(self) -> float:
        """Return the time until the token, or the ticket, is to be replaced."""
        if self._token == SPNEGO:
            return self._obtained_at + CREDENTIAL_SECONDS - time.monotonic()
        return _renewal_time(self._obtained_at, self._valid_until) - time.monotonic()

    def _wait(self, seconds: float) -> None:
        """Wait until `close`, for `seconds`, or until the next try is due at once."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._is_due or not (self._has_token() or self._failure), seconds
            )

    def _report(self, failure: str) -> None:
        """Store a failure for calls without a token; log a warning if a token is still valid."""
        now = time.monotonic()
        with self._changed:
            self._failure, self._failed_at = failure, now
            left = self._valid_until - now if self._token else 0.0
            self._changed.notify_all()
        text, last = self._last_warning
        if left > 0 and (failure != text or now - last > WARNING_INTERVAL_SECONDS):
            self._last_warning = failure, now
            used = f"token is valid for another {left:.0f} s" if left < float("inf") else "earlier ticket is used"
            self._log.warning("the %s, but: %s", used, failure)

    def _obtain(self) -> tuple[str, float, float]:
        """Return a token with its begin and its end, by `time.monotonic`. Raises Retry with the way out.

        A token, or a failure, that another sink with this login has got meanwhile is used.
        """
        if self._uses_tickets():
            self._obtain_tickets()
            return SPNEGO, time.monotonic(), float("inf")
        began = time.monotonic()
        with _obtaining[self._key]:
            token, obtained_at, valid_until = _latest_tokens.get(self._key, ("", 0.0, 0.0))
            if obtained_at > self._obtained_at and time.monotonic() < _renewal_time(obtained_at, valid_until):
                return token, obtained_at, valid_until
            failed_at, failure = _failures.get(self._key, (0.0, ""))
            if failed_at > began:
                raise Retry(failure)
            if self._is_closed:
                raise Retry("the sink is closed")
            try:
                token, seconds = self._obtain_token()
            except Retry as e:
                _failures[self._key] = time.monotonic(), str(e)
                raise
            obtained_at = time.monotonic()
            _latest_tokens[self._key] = latest = token, obtained_at, obtained_at + seconds
            return latest

    def _obtain_token(self) -> tuple[str, float]:
        """Return a token and its remaining life in seconds. Raises Retry with the reason and the way out."""
        path = os.environ.get(FILE_VARIABLE)
        if self._login.keytab is None and path:
            if self._login.proxy_user:
                raise Retry(f"hdfs.proxyUser needs a ticket: a token, as in {path} of {FILE_VARIABLE}, is one user's")
            token = _token_of_file(Path(path), self._servers)
            return token, 60.0  # the file may be replaced at any time
        with contextlib.closing(self._log_in()) as credential:
            return self._ask(credential)

    def _log_in(self) -> Credential:
        """Return a new credential of the login. Raises Retry with the reason and the way out."""
        principal, keytab = self._login.resolved_principal(), self._login.keytab
        wrong_key = _WrongKey(principal, keytab)
        wrong_key.check()
        try:
            return Credential(principal, keytab)
        except KerberosError as e:
            failure = self._login.ticket_failure(str(e))
            if "reauthentication failed" in str(e):
                wrong_key.remember(failure)
            raise Retry(failure) from e

    def _obtain_tickets(self) -> None:
        """Replace the credential by a new one with tickets for all known hosts. Raises Retry if it has none.

        The earlier credential is used until then: its tickets may be valid for hours.
        """
        credential = self._log_in()
        failures: dict[str, str | None] = {}
        for host in sorted(self._hosts):
            try:
                credential.negotiate(host)
                failures[host] = None
            except KerberosError as e:
                failures[host] = str(e)
        if None not in failures.values():
            credential.close()
            raise Retry(f"no Kerberos ticket for the web servers of HDFS: {next(iter(failures.values()))}")
        self._keep(credential, failures)

    def _keep(self, credential: Credential | None, failures: dict[str, str | None]) -> None:
        """Use this credential for all requests, and release the last one; `failures` has its hosts."""
        with self._credential_lock:
            last, self._credential = self._credential, credential
            if last is not None:
                last.close()
        with self._changed:
            self._host_failures = failures
            self._changed.notify_all()

    def _ask(self, credential: Credential) -> tuple[str, float]:
        """Return a token of the active NameNode and its remaining life in seconds. Raises Retry."""
        renewer = re.split("[/@]", credential.principal)[0]
        parameters = {"op": "GETDELEGATIONTOKEN", "renewer": renewer}
        if self._login.proxy_user:
            parameters["doas"] = self._login.proxy_user
        failures = []
        for server in list(self._servers):
            began = time.monotonic()
            answer, error = self._request("get", server, credential, parameters)
            if answer is None:
                failures.append(error)
                continue
            if answer["Token"] is None:
                raise Retry(f"NameNode {server} requires no Kerberos: remove hdfs.kerberosPrincipal")
            self._servers = [server, *(other for other in self._servers if other != server)]  # the active one first
            token = str(answer["Token"]["urlString"])
            issued, latest = token_times(token)
            life = min(DEFAULT_LIFE_SECONDS, (latest - issued) / 1000)
            # The interval is known only from the answer to a renewal.
            renewed, _ = self._request(
                "put", server, credential, {"op": "RENEWDELEGATIONTOKEN", "token": token, "renewer": renewer}
            )
            if renewed is not None:
                life = (int(renewed["long"]) - issued) / 1000
            return token, life - (time.monotonic() - began)
        # Of a pair, the standby's refusal and the silence of a dead one say less than the other's.
        causes = [text for text in failures if "state standby" not in text and "does not answer" not in text]
        raise Retry((causes or failures)[0])

    def _request(
        self, method: str, server: str, credential: Credential, parameters: dict[str, str]
    ) -> tuple[dict[str, Any] | None, str]:
        """Send a request with SPNEGO; return the answer and no text, or None and the failure as a sentence."""
        host = server.rpartition(":")[0] or server
        self._session.cookies.clear()
        try:
            headers = {"Authorization": credential.negotiate(host)}
        except KerberosError as e:
            return None, f"no Kerberos ticket for HTTP/{host}, the NameNode's web server: {e}"
        url = f"{self._scheme}://{server}/webhdfs/v1/"
        try:
            answer = self._session.request(method, url, params=parameters, headers=headers, allow_redirects=False)
        except OSError as e:  # requests.RequestException is one; its text may have the token
            return None, f"NameNode {server} does not answer ({type(e).__name__})"
        except TlsFailure as e:
            return None, str(e)
        try:
            content = answer.json()
        except ValueError:
            content = {}
        if answer.status_code == 200 and isinstance(content, dict):
            return content, ""
        return None, self._refusal(server, credential, answer, content)

    def _refusal(self, server: str, credential: Credential, answer: Any, content: Any) -> str:
        """Return the sentence for a refused request, with the way out."""
        remote = content.get("RemoteException") if isinstance(content, dict) else None
        if remote is None:
            title = re.search(r"<title>(.*?)</title>", answer.text, re.DOTALL)
            why = re.sub(r"\s+", " ", title[1]).strip() if title else f"status {answer.status_code}"
            return f"NameNode {server} does not admit {credential.principal}: {why}{_hint(why, SERVER_HINTS)}"
        why = str(remote.get("message", "")).partition("\n")[0]
        if "is not allowed to impersonate" in why:
            short, user = re.split("[/@]", credential.principal)[0], self._login.proxy_user
            hint = f"add hadoop.proxyuser.{short}.users = {user} and hadoop.proxyuser.{short}.hosts to core-site.xml"
            return f"NameNode {server} does not let {credential.principal} act as {user}: {hint}"
        return f"NameNode {server} gives {credential.principal} no delegation token: {why}"


def _renewal_time(obtained_at: float, valid_until: float) -> float:
    """Return the time at which a token of this life is to be replaced."""
    return obtained_at + (valid_until - obtained_at) * RENEWAL_FRACTION


def _hint(why: str, hints: Mapping[str, str]) -> str:
    """Return `; ` and the way out of a failure with this text; empty if none is known."""
    return next((f"; {hint}" for part, hint in hints.items() if part in why), "")


# --- Hadoop's formats of tokens


def token_times(token: str) -> tuple[int, int]:
    """Return the time of issue and the latest end of a token in URL form, in milliseconds of the NameNode's clock."""
    outer = io.BytesIO(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    identifier = io.BytesIO(outer.read(_read_vint(outer)))
    identifier.read(1)  # version
    for _ in ("owner", "renewer", "real user"):
        identifier.read(_read_vint(identifier))
    return _read_vint(identifier), _read_vint(identifier)


def _token_of_file(path: Path, servers: Sequence[str]) -> str:
    """Return the token for these NameNodes in a token file, in URL form. Raises Retry.

    A token's service is the address of a NameNode, or a nameservice; the only HDFS token of a file fits any.
    """
    try:
        tokens = [entry for entry in read_token_file(path.read_bytes()) if entry.kind in HDFS_KINDS]
    except OSError as e:
        raise Retry(f"the token file {path}, of {FILE_VARIABLE}, cannot be read: {e.strerror}") from e
    except (ValueError, IndexError) as e:
        raise Retry(f"{path}, of {FILE_VARIABLE}, is not a token file of Hadoop") from e
    hosts = {server.rpartition(":")[0] for server in servers}
    fitting = [entry for entry in tokens if entry.service.rpartition(":")[0] in hosts] or tokens
    if len(fitting) != 1:
        services = ", ".join(entry.service for entry in tokens) or "none"
        raise Retry(f"{path}, of {FILE_VARIABLE}, has no token for {', '.join(servers)}, only for: {services}")
    return fitting[0].url_form


HDFS_KINDS = ("HDFS_DELEGATION_TOKEN", "WEBHDFS delegation", "SWEBHDFS delegation")


class StoredToken(NamedTuple):
    """Token in a token file."""

    kind: str
    service: str
    url_form: str


def read_token_file(data: bytes) -> list[StoredToken]:
    """Return the tokens of a token file in Hadoop's Writable format. Raises ValueError for another format."""
    file = io.BytesIO(data)
    if file.read(5) != b"HDTS\0":
        raise ValueError("no token file in the format java")
    tokens = []
    for _ in range(_read_vint(file)):
        file.read(_read_vint(file))  # alias
        parts = [file.read(_read_vint(file)) for _ in range(4)]
        url_form = base64.urlsafe_b64encode(b"".join(map(_with_length, parts))).decode().rstrip("=")
        tokens.append(StoredToken(parts[2].decode(), parts[3].decode(), url_form))
    return tokens


def _read_vint(file: io.BytesIO) -> int:
    """Return the next integer in the format of Hadoop's WritableUtils. Raises IndexError at the end."""
    first = file.read(1)[0]
    first -= 256 if first > 127 else 0
    if first >= -112:
        return first
    negative = first < -120
    value = int.from_bytes(file.read(-(first + 120) if negative else -(first + 112)), "big")
    return ~value if negative else value


def _with_length(data: bytes) -> bytes:
    """Return data with its length in the format of Hadoop's WritableUtils before it."""
    if len(data) <= 127:
        return bytes([len(data)]) + data
    size = (len(data).bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + len(data).to_bytes(size, "big") + data

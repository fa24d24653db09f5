"""HDFS over WebHDFS: what the sink needs of it, with every failure in words."""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from flafka.plugins import FlafkaError, Retry, require
from flafka.sinks.hdfs.filesystem import FileSystem, NoDirectory, R, Refused, Status, loosely, private
from flafka.sinks.hdfs.silence import Patience, impatient

HTTP_PORTS = {"http": (9870, 50070), "https": (9871, 50470)}
"""Hadoop's default ports of a NameNode's HTTP server, the newest version's first."""
HTTP_CONNECT_SECONDS = 5.0
"""Longest time in which a NameNode or DataNode accepts a connection."""
UPLOADS = 3
"""Tries of one upload, each through another DataNode where there is one."""
INHERITANCE_SECONDS = 300.0
"""Age at which group and default ACL of a directory are read again."""
KNOWN_DIRECTORIES = 10_000
PASSING = ("RetriableException", "StandbyException", "ObserverRetryOnActiveException", "RemoteException")
"""Exceptions of a NameNode that go by themselves."""
NO_DIRECTORY = (
    "ParentNotDirectoryException",
    "FileAlreadyExistsException",
    "PathComponentTooLongException",
    "InvalidPathException",
)
"""Exceptions of a NameNode that are about a path, whoever asks for it to be a directory."""

_UNIQUE = re.compile(r"(?<=/\.flafka/tmp/)\S+")
"""The part of a path that is never the same twice; a message that is, is logged once."""


class WebHdfs(FileSystem):
    """HDFS. `status`, `list` and `read` return no older state than at the call, whichever NameNode is active."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        scheme: str,
        user: str | None,
        timeout: float | None,
        threads: int,
        stopping: Event,
        creation: Mapping[str, str] | None = None,
    ) -> None:
        """`hosts` are the NameNodes' `host:port`; one without a port is looked for at Hadoop's default ones.

        `timeout` is the longest silence in a call, in seconds. `creation` says how files are made, as
        `Hadoop.creation` does. Retry where no server is found.
        """
        self._pyhdfs, self._requests = require("pyhdfs", "hdfs"), require("requests", "hdfs")
        logging.getLogger("pyhdfs").setLevel(logging.ERROR)  # it logs a traceback for each NameNode that is away
        self.user = user_name(user)
        self._session = self._requests.Session()  # one for all calls: it keeps connections open
        self._session.trust_env = False  # a proxy out of this network is no way to HDFS
        self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        self._session.request = _limited(
            self._session.request, (min(HTTP_CONNECT_SECONDS, timeout or HTTP_CONNECT_SECONDS), timeout)
        )
        adapter = self._requests.adapters.HTTPAdapter(pool_maxsize=threads)
        self._patience = Patience(stopping)
        impatient(adapter, self._patience)
        self._session.mount(f"{scheme}://", adapter)
        settings = {
            "randomize_hosts": False,
            "user_name": self.user,
            "timeout": timeout,
            "scheme": scheme,
            "requests_session": self._session,
        }
        made = dict(creation or {})
        umask = made.pop("umask", "")
        self._new_directory = {"permission": f"{0o777 & ~int(umask, 8):o}"} if umask else {}
        self._new_file = {"permission": f"{0o666 & ~int(umask, 8):o}", **made} if umask else made
        self._private: set[str] = set()  # directories `.flafka` that are known to be this user's alone
        self._warned: set[str] = set()  # directories whose group or ACL files could not be given
        self._inherited: dict[str, tuple[float, str, str]] = {}
        """By directory: when it was asked about, the group and the ACL that files made in it get."""
        self._log = logging.getLogger(__name__)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="webhdfs")
        try:
            hosts = self._located(hosts, scheme)
        except BaseException:
            self.close()
            raise
        self.hosts = ", ".join(hosts)
        self._client = self._pyhdfs.HdfsClient(hosts, max_tries=2, retry_delay=0.5, **settings)
        self._single = {host: self._pyhdfs.HdfsClient([host], max_tries=1, **settings) for host in self._client.hosts}
        self._stopping = stopping

    def close(self) -> None:
        """Close its connections."""
        super().close()
        self._session.close()

    def upload(self, path: str, data: bytes | Path) -> str:
        """Write a new file, `path` with a number behind it, and return its name.

        No name is used twice: a DataNode that was given up may come back and write its part after all.
        """
        self._keep_private(path)
        excluded: dict[str, str] = {}
        for attempt in range(UPLOADS):
            name = f"{path}-{attempt}"
            try:
                if isinstance(data, Path) and data.stat().st_size:
                    with data.open("rb") as file:
                        self._call(f"write {name}", self._client.create, name, file, **self._new_file, **excluded)
                else:
                    small = b"" if isinstance(data, Path) else data
                    self._call(f"write {name}", self._client.create, name, small, **self._new_file, **excluded)
                return name
            except DataNodeAway as e:
                if attempt == UPLOADS - 1 or self._stopping.is_set():
                    raise
                excluded = {"excludedatanodes": e.host} if e.host and not excluded else {}
        raise AssertionError("the last try returns or raises")

    def status(self, path: str) -> Status | None:
        """Return the status of that path; None where nothing is."""
        found = self._status(path)
        return None if found is None else _status(found)

    def _status(self, path: str) -> Any:
        try:
            return self._read(f"look at {path}", lambda client: client.get_file_status(path))
        except _Absent:
            return None

    def list(self, path: str) -> list[Status]:
        """Return the entries of that directory, by name; none where there is no directory."""
        try:
            return [_status(found) for found in self._read(f"list {path}", lambda client: client.list_status(path))]
        except _Absent:
            return []

    def read(self, path: str) -> bytes | None:
        """A small file's content; None where there is no file."""
        try:
            return self._read(f"read {path}", lambda client: bytes(client.open(path).read()))
        except _Absent as e:
            # The DataNode asks a NameNode of its own choice, which may be a standby.
            if (found := self.status(path)) is not None and found.is_file:
                raise Retry(f"HDFS cannot read {path}: its DataNode does not see it yet") from e
            return None

    def rename(self, source: str, target: str) -> bool:
        """Move a file, as `FileSystem.rename` says."""
        return bool(self._call(f"rename {source} to {target}", self._client.rename, source, target))

    def mkdirs(self, path: str) -> None:
        """Make a directory, with all above it. Raises NoDirectory where something else is in its place."""
        self._keep_private(path)
        try:
            self._call(f"create the directory {path}", self._client.mkdirs, path, **self._new_directory)
        except Refused as e:
            if e.kind in NO_DIRECTORY:
                raise NoDirectory(str(e), path) from e
            raise

    def _keep_private(self, path: str) -> None:
        """Let nobody else look into the private directory of this path, also where an earlier version has made it."""
        own = private(path)
        if not own or own in self._private:
            return
        doing = f"create the directory {own}"
        if (found := self._status(own)) is None:
            self._call(doing, self._client.mkdirs, own.rpartition("/")[0] or "/", **self._new_directory)
            self._call(doing, self._client.mkdirs, own, permission="700")
        elif loosely(int(getattr(found, "permission", "700"), 8)):
            with contextlib.suppress(Refused):  # another user's
                self._call(doing, self._client.set_permission, own, permission="700")
        self._private.add(own)

    def adopt(self, file: str, directory: str) -> None:
        """Give a file the group and the ACL that a file gets which is made in that directory."""
        group, acl = self._inheritance(directory)
        own, _ = self._inheritance(private(file))
        try:
            if group != own:
                self._call(f"give {file} the group {group!r}", self._client.set_owner, file, group=group)
            if acl:
                put = functools.partial(self._client._put, file, "SETACL", aclspec=acl)  # pyhdfs has no name for it
                self._call(f"give {file} the ACL of {directory}", put)
        except Refused as e:
            if directory not in self._warned:
                self._warned.add(directory)
                self._log.warning("files in %s keep the group and ACL of %s: %s", directory, private(file), e)

    def _inheritance(self, directory: str) -> tuple[str, str]:
        """Group and ACL of files made in this directory; the ACL is empty where its default is none."""
        now = time.monotonic()
        asked, group, acl = self._inherited.get(directory, (float("-inf"), "", ""))
        if now - asked < INHERITANCE_SECONDS:
            return group, acl
        found = self._status(directory)
        group, acl = getattr(found, "group", ""), ""
        if getattr(found, "aclBit", False):
            read = functools.partial(self._client._get, directory, "GETACLSTATUS")
            status = self._call(f"look at the ACL of {directory}", read).json()["AclStatus"]
            acl = _of_file(status["entries"])
        if len(self._inherited) > KNOWN_DIRECTORIES:
            self._inherited.clear()
        self._inherited[directory] = now, group, acl
        return group, acl

    def delete(self, path: str) -> None:
        """Delete a file or directory, as `FileSystem.delete` says."""
        self._call(f"delete {path}", self._client.delete, path, recursive="true")

    def may_write(self, path: str) -> None:
        """Raise Retry where the user may not create files in that directory."""
        check = functools.partial(self._client._get, path, "CHECKACCESS", fsaction="-wx")  # pyhdfs has no name for it
        self._call(f"write into {path}", check)

    def _located(self, hosts: Sequence[str], scheme: str) -> Sequence[str]:
        """With the ports of those that have none; that of the others for one that is away."""
        ports = HTTP_PORTS[scheme]
        tried = [(host, port) for host in hosts if ":" not in host for port in ports]
        if not tried:
            return hosts
        there = dict(zip(tried, self.each(lambda address: self._speaks(scheme, *address), tried), strict=True))
        found = {host: port for (host, port), answers in reversed(there.items()) if answers}
        if not found and len({host for host, _ in tried}) == len(hosts):
            raise Retry(_nowhere(tried))
        other = next(iter(found.values()), ports[0])
        return [host if ":" in host else f"{host}:{found.get(host, other)}" for host in hosts]

    def _speaks(self, scheme: str, host: str, port: int) -> bool:
        """Return True if a NameNode's HTTP server answers there, a standby's or one that wants Kerberos included."""
        options = {"op": "GETFILESTATUS", "user.name": self.user}
        try:
            answer = self._session.get(f"{scheme}://{host}:{port}/webhdfs/v1/", params=options)
            return answer.status_code == 401 or not {"FileStatus", "RemoteException"}.isdisjoint(answer.json())
        except (self._requests.RequestException, ValueError, TypeError):
            return False

    def _read(self, doing: str, read: Callable[[Any], R]) -> R:
        """Return the answer of the active NameNode.

        Where dfs.ha.allow.stale.reads is set, a standby answers reads with what was some seconds ago. Taking uploads,
        which any standby sends on, it looks like the active one. It refuses all other changes, so each NameNode is
        asked for one that changes nothing before it is believed.
        """
        if len(self._single) == 1:
            return self._call(doing, read, self._client)

        def active() -> R:
            for attempt in range(self._client.max_tries):
                if attempt:
                    time.sleep(self._client.retry_delay)
                for host in self._client.hosts:
                    with contextlib.suppress(self._pyhdfs.HdfsNoServerException):
                        with contextlib.suppress(self._pyhdfs.HdfsHttpException):  # what else it has against it
                            self._single[host].mkdirs("/")
                        answer = read(self._single[host])
                        self._client._record_last_active(host)
                        return answer
            raise self._pyhdfs.HdfsNoServerException

        return self._call(doing, active)

    def _call(self, doing: str, call: Callable[..., R], *args: Any, **options: str) -> R:
        if self._patience.over:
            raise Retry(f"HDFS is away: {self.hosts} is silent, and the agent stops")
        http = self._requests.packages.urllib3.exceptions.HTTPError
        doing = _UNIQUE.sub("…", doing)
        try:
            return call(*args, **options)
        except self._pyhdfs.HdfsFileNotFoundException as e:
            raise _Absent(f"HDFS cannot {doing}: it is not there") from e
        except self._pyhdfs.HdfsNoServerException as e:
            raise Retry(f"HDFS is away: no NameNode answers, or none is active, at {self.hosts}") from e
        except self._pyhdfs.HdfsHttpException as e:
            raise self._refused(e, doing) from e
        except (self._requests.RequestException, http) as e:
            host = urlsplit(str(getattr(getattr(e, "request", None), "url", None) or "")).hostname or ""
            raise DataNodeAway(host, doing) from e
        except (self._pyhdfs.HdfsException, AssertionError, KeyError, ValueError) as e:
            if "401" in str(e):
                raise Retry(f"{self.hosts} requires Kerberos, which is not built yet") from e
            raise Retry(f"{self.hosts} does not speak WebHDFS: is it the NameNode's HTTP address?") from e

    def _refused(self, error: Any, doing: str) -> Retry:
        kind, why = str(error.exception), _UNIQUE.sub("…", str(error.message).partition("\n")[0])
        if "SafeMode" in kind or "safe mode" in why:
            return Retry(f"HDFS is in safe mode and cannot {doing} until the NameNode leaves it")
        if kind == "AccessControlException":
            return Refused(f"HDFS does not let user {self.user!r} {doing}: {why}", kind)
        text = f"HDFS cannot {doing}: {why}"
        return Retry(text) if kind in PASSING else Refused(text, kind)


class _Absent(Retry):
    """There is nothing at that path."""


class DataNodeAway(Retry):
    """A transfer broke off."""

    def __init__(self, host: str, doing: str) -> None:
        super().__init__(f"HDFS cannot {doing}: DataNode {host or '(unknown)'} does not answer")
        self.host = host


def _limited(request: Callable[..., Any], timeout: tuple[float, float | None]) -> Callable[..., Any]:
    """Requests with these timeouts: pyhdfs gives transfers none, and others one that is long for connecting."""
    return lambda method, url, **options: request(method, url, **{**options, "timeout": timeout})


def _of_file(defaults: Sequence[str]) -> str:
    """The ACL of a file made with mode 666 below a directory with these entries; empty where none is a default."""
    entries = [one.removeprefix("default:").rpartition(":") for one in defaults if one.startswith("default:")]
    masked = {"user:", "other:", "mask:" if any(who == "mask:" for who, _, _ in entries) else "group:"}
    return ",".join(f"{who}:{bits[:2] + '-' if who in masked else bits}" for who, _, bits in entries)


def _status(found: Any) -> Status:
    return Status(found.pathSuffix, found.type == "FILE", found.length, found.modificationTime)


def _nowhere(tried: list[tuple[str, int]]) -> str:
    addresses = " or ".join(f"{host}:{port}" for host, port in tried)
    line = ",".join(f"{host}:port" for host in dict.fromkeys(host for host, _ in tried))
    host = tried[0][0]
    service = "" if "." in host or host == "localhost" else f", or all NameNodes of it where {host} is a nameservice"
    return (
        f"HDFS is away: no NameNode answers over HTTP at {addresses}, Hadoop's default ports; if its "
        f"dfs.namenode.http-address is another, add hdfs.webhdfs = {line}{service}"
    )


def user_name(proxy: str | None) -> str:
    """Return the owner of files: `proxy`, else HADOOP_USER_NAME, else the user of this process."""
    return proxy or os.environ.get("HADOOP_USER_NAME") or _login()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as e:
        raise FlafkaError("this process runs as a user without a name: give one with hdfs.proxyUser") from e

"""HDFS over WebHDFS."""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from flafka.plugins import FlafkaError, Retry, require
from flafka.sinks.hdfs.filesystem import (
    FileSystem,
    NoDirectory,
    R,
    Refused,
    Status,
    is_too_open,
    private_directory,
)

HTTP_PORTS = {"http": (9870, 50070), "https": (9871, 50470)}
"""Hadoop's default ports of a NameNode's HTTP server, the newest version's first."""
HTTP_CONNECT_SECONDS = 5.0
"""Longest time in which a NameNode or DataNode accepts a connection."""
SOCKET_POLL_SECONDS = 0.2
"""Interval at which a call that waits for an answer checks whether the agent stops."""
SERVER_SILENCE_SECONDS = 5.0
"""Time without an answer after which a call fails while the agent stops. No other call follows."""
UPLOAD_TRIES = 3
"""Tries of one upload, each through another DataNode if there is one."""
INHERITANCE_SECONDS = 300.0
"""Age at which group and default ACL of a directory are read again."""
KNOWN_DIRECTORIES = 10_000
"""Number of directories whose group and ACL are remembered."""
TRANSIENT = ("RetriableException", "StandbyException", "ObserverRetryOnActiveException", "RemoteException")
"""Exceptions of a NameNode that pass without a change."""
NO_DIRECTORY = (
    "ParentNotDirectoryException",
    "FileAlreadyExistsException",
    "PathComponentTooLongException",
    "InvalidPathException",
)
"""Exceptions of a NameNode for paths at which no user could create a directory."""

_UNIQUE = re.compile(r"(?<=/\.flafka/tmp/)\S+")
"""Part of a path that is unique. Errors have `…` instead, so that repeated ones are equal and logged once."""


class WebHdfs(FileSystem):
    """HDFS. `status`, `list` and `read` never return a state older than the call, as a standby NameNode might."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        scheme: str,
        user: str | None,
        timeout: float | None,
        threads: int,
        stopping: Event,
        file_settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create a client. Raises Retry if no NameNode answers on the ports that are tried.

        `hosts` are the NameNodes' HTTP servers as `host:port`; without a port, Hadoop's default ports are tried.
        `user` owns the files; None is the default of `user_name`. `timeout` is the longest silence of a server, in
        seconds; None is no limit. `threads` is the number of parallel calls of `each`. Calls fail soon once
        `stopping` is set, if a server is silent. `file_settings` is `HadoopConfiguration.file_settings`.
        """
        self._pyhdfs, self._requests = require("pyhdfs", "hdfs"), require("requests", "hdfs")
        logging.getLogger("pyhdfs").setLevel(logging.ERROR)  # it logs a traceback for each failed NameNode
        self.user = user_name(user)
        self._session = self._requests.Session()  # one for all calls, as it reuses connections
        self._session.trust_env = False  # requests to HDFS must not go through a proxy for the internet
        self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        self._session.request = _with_timeout(
            self._session.request, (min(HTTP_CONNECT_SECONDS, timeout or HTTP_CONNECT_SECONDS), timeout)
        )
        adapter = self._requests.adapters.HTTPAdapter(pool_maxsize=threads)
        self._silence = SilenceLimit(stopping)
        self._silence.apply_to(adapter)
        self._session.mount(f"{scheme}://", adapter)
        settings = {
            "randomize_hosts": False,
            "user_name": self.user,
            "timeout": timeout,
            "scheme": scheme,
            "requests_session": self._session,
        }
        new_file = dict(file_settings or {})
        umask = new_file.pop("umask", "")
        self._new_directory = {"permission": f"{0o777 & ~int(umask, 8):o}"} if umask else {}
        self._new_file = {"permission": f"{0o666 & ~int(umask, 8):o}"} if umask else {}
        self._new_file |= new_file
        self._private: set[str] = set()  # directories `.flafka` that are known to be restricted to this user
        self._warned: set[str] = set()  # directories whose group or ACL could not be given to files
        self._inherited: dict[str, tuple[float, str, str]] = {}
        """Time of the lookup, group and ACL of new files, by directory."""
        self._log = logging.getLogger(__name__)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="webhdfs")
        try:
            hosts = self._find_ports(hosts, scheme)
        except BaseException:
            self.close()
            raise
        self.hosts = ", ".join(hosts)
        self._client = self._pyhdfs.HdfsClient(hosts, max_tries=2, retry_delay=0.5, **settings)
        self._single = {host: self._pyhdfs.HdfsClient([host], max_tries=1, **settings) for host in self._client.hosts}
        self._stopping = stopping

    def close(self) -> None:
        """Wait for the running calls, and close the connections."""
        super().close()
        self._session.close()

    def upload(self, path: str, data: bytes | Path) -> str:
        """Write a new file, and return its path: `path` with `-` and the number of the try.

        A try that fails at a DataNode is repeated through another one, up to `UPLOAD_TRIES` in total. No name is used
        twice, as a DataNode whose transfer timed out may still write to it. Raises DataNodeAway after the last try,
        and Retry at once for any other failure.
        """
        self._restrict_private_directory(path)
        excluded: dict[str, str] = {}
        for attempt in range(UPLOAD_TRIES):
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
                if attempt == UPLOAD_TRIES - 1 or self._stopping.is_set():
                    raise
                excluded = {"excludedatanodes": e.host} if e.host and not excluded else {}
        raise AssertionError("the last try returns or raises")

    def status(self, path: str) -> Status | None:
        """Return the status of a file or directory; None if it does not exist."""
        status = self._file_status(path)
        return None if status is None else _status(status)

    def _file_status(self, path: str) -> Any:
        """Return the status in pyhdfs's form; None if the path does not exist. Raises Retry."""
        try:
            return self._read(f"read the status of {path}", lambda client: client.get_file_status(path))
        except _NotFound:
            return None

    def list(self, path: str) -> list[Status]:
        """Return the entries of a directory, sorted by name; an empty list if it does not exist."""
        try:
            return [_status(entry) for entry in self._read(f"list {path}", lambda client: client.list_status(path))]
        except _NotFound:
            return []

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist.

        Raises Retry if the file exists, and the DataNode asks a standby NameNode that does not have it yet.
        """
        try:
            return self._read(f"read {path}", lambda client: bytes(client.open(path).read()))
        except _NotFound as e:
            # The DataNode reads from any NameNode, which may be a standby without the file.
            if (status := self.status(path)) is not None and status.is_file:
                raise Retry(f"HDFS cannot read {path}: its DataNode does not see it yet") from e
            return None

    def rename(self, source: str, target: str) -> bool:
        """Move a file, as specified by `FileSystem.rename`; return False if the NameNode did not."""
        return bool(self._call(f"rename {source} to {target}", self._client.rename, source, target))

    def mkdirs(self, path: str) -> None:
        """Create a directory and its parents. Idempotent. Raises NoDirectory if there can be no directory at that
        path."""
        self._restrict_private_directory(path)
        try:
            self._call(f"create the directory {path}", self._client.mkdirs, path, **self._new_directory)
        except Refused as e:
            if e.kind in NO_DIRECTORY:
                raise NoDirectory(str(e), path) from e
            raise

    def _restrict_private_directory(self, path: str) -> None:
        """Create the directory `.flafka` in a path, for this user only, once; nothing if the path has none.

        The directory of an earlier version, which others may read, is restricted. Raises Retry.
        """
        private = private_directory(path)
        if not private or private in self._private:
            return
        action = f"create the directory {private}"
        if (status := self._file_status(private)) is None:
            self._call(action, self._client.mkdirs, private.rpartition("/")[0] or "/", **self._new_directory)
            self._call(action, self._client.mkdirs, private, permission="700")
        elif is_too_open(int(getattr(status, "permission", "700"), 8)):
            with contextlib.suppress(Refused):  # another user's directory
                self._call(action, self._client.set_permission, private, permission="700")
        self._private.add(private)

    def adopt(self, file: str, directory: str) -> None:
        """Give a file the group and ACL of files that are created in that directory.

        Best-effort: if HDFS refuses it, a warning is logged once for the directory. Raises Retry for other failures.
        """
        group, acl = self._inheritance(directory)
        current_group, _ = self._inheritance(private_directory(file))
        try:
            if group != current_group:
                self._call(f"give {file} the group {group!r}", self._client.set_owner, file, group=group)
            if acl:
                # pyhdfs has no method for it.
                set_acl = functools.partial(self._client._put, file, "SETACL", aclspec=acl)
                self._call(f"give {file} the ACL of {directory}", set_acl)
        except Refused as e:
            if directory not in self._warned:
                self._warned.add(directory)
                self._log.warning(
                    "files in %s keep the group and ACL of %s: %s", directory, private_directory(file), e
                )

    def _inheritance(self, directory: str) -> tuple[str, str]:
        """Return group and ACL of files created in this directory; the ACL is empty without a default ACL.

        The result is cached for `INHERITANCE_SECONDS`. Raises Retry.
        """
        now = time.monotonic()
        lookup_time, group, acl = self._inherited.get(directory, (float("-inf"), "", ""))
        if now - lookup_time < INHERITANCE_SECONDS:
            return group, acl
        status = self._file_status(directory)
        group, acl = getattr(status, "group", ""), ""
        if getattr(status, "aclBit", False):
            get_acl = functools.partial(self._client._get, directory, "GETACLSTATUS")
            entries = self._call(f"read the ACL of {directory}", get_acl).json()["AclStatus"]["entries"]
            acl = _acl_of_new_file(entries)
        if len(self._inherited) > KNOWN_DIRECTORIES:
            self._inherited.clear()
        self._inherited[directory] = now, group, acl
        return group, acl

    def delete(self, path: str) -> None:
        """Delete a file, or a directory and its content. Idempotent: a path that does not exist is no error."""
        self._call(f"delete {path}", self._client.delete, path, recursive="true")

    def check_writable(self, path: str) -> None:
        """Raise Refused if this user may not create files in the directory, and Retry for any other failure."""
        # pyhdfs has no method for it.
        check = functools.partial(self._client._get, path, "CHECKACCESS", fsaction="-wx")
        self._call(f"write into {path}", check)

    def _find_ports(self, hosts: Sequence[str], scheme: str) -> Sequence[str]:
        """Return the hosts with ports, in the same order. A host that does not answer gets the port of another one.

        Only hosts without a port are asked. Raises Retry if none of them answers, and no host has a port.
        """
        ports = HTTP_PORTS[scheme]
        tried = [(host, port) for host in hosts if ":" not in host for port in ports]
        if not tried:
            return hosts
        answers = self.each(lambda address: self._is_namenode(scheme, *address), tried)
        by_host = {host: port for (host, port), answer in reversed([*zip(tried, answers, strict=True)]) if answer}
        if not by_host and len({host for host, _ in tried}) == len(hosts):
            raise Retry(_no_namenode(tried))
        default = next(iter(by_host.values()), ports[0])
        return [host if ":" in host else f"{host}:{by_host.get(host, default)}" for host in hosts]

    def _is_namenode(self, scheme: str, host: str, port: int) -> bool:
        """Return True if a NameNode's HTTP server answers, also a standby's or one that requires Kerberos."""
        options = {"op": "GETFILESTATUS", "user.name": self.user}
        try:
            answer = self._session.get(f"{scheme}://{host}:{port}/webhdfs/v1/", params=options)
            return answer.status_code == 401 or not {"FileStatus", "RemoteException"}.isdisjoint(answer.json())
        except (self._requests.RequestException, ValueError, TypeError):
            return False

    def _read(self, action: str, read: Callable[[Any], R]) -> R:
        """Return what `read` returns for a client of the active NameNode. Raises as `_call`.

        If dfs.ha.allow.stale.reads is set, a standby answers reads with a state that is seconds old. A standby also
        redirects uploads, but refuses all other changes. So each NameNode gets a `mkdirs` that changes nothing before
        its answer is used.
        """
        if len(self._single) == 1:
            return self._call(action, read, self._client)

        def active() -> R:
            for attempt in range(self._client.max_tries):
                if attempt:
                    time.sleep(self._client.retry_delay)
                for host in self._client.hosts:
                    with contextlib.suppress(self._pyhdfs.HdfsNoServerException):
                        with contextlib.suppress(
                            self._pyhdfs.HdfsHttpException
                        ):  # an active one may refuse the change, too
                            self._single[host].mkdirs("/")
                        answer = read(self._single[host])
                        self._client._record_last_active(host)
                        return answer
            raise self._pyhdfs.HdfsNoServerException

        return self._call(action, active)

    def _call(self, action: str, call: Callable[..., R], *args: Any, **options: str) -> R:
        """Return the result of a call of pyhdfs. Each error becomes one whose text has the action.

        Raises `_NotFound` for a missing path, DataNodeAway for a broken transfer, Refused for a refusal that lasts,
        and Retry for any other failure.
        """
        if self._silence.exceeded:
            raise Retry(f"HDFS is away: {self.hosts} is silent, and the agent stops")
        http = self._requests.packages.urllib3.exceptions.HTTPError
        action = _UNIQUE.sub("…", action)
        try:
            return call(*args, **options)
        except self._pyhdfs.HdfsFileNotFoundException as e:
            raise _NotFound(f"HDFS cannot {action}: it does not exist") from e
        except self._pyhdfs.HdfsNoServerException as e:
            raise Retry(f"HDFS is away: no NameNode answers, or none is active, at {self.hosts}") from e
        except self._pyhdfs.HdfsHttpException as e:
            raise self._refusal(e, action) from e
        except (self._requests.RequestException, http) as e:
            host = urlsplit(str(getattr(getattr(e, "request", None), "url", None) or "")).hostname or ""
            raise DataNodeAway(host, action) from e
        except (self._pyhdfs.HdfsException, AssertionError, KeyError, ValueError) as e:
            if "401" in str(e):
                raise Retry(f"{self.hosts} requires Kerberos, which is not built yet") from e
            raise Retry(f"{self.hosts} does not speak WebHDFS: is it the NameNode's HTTP address?") from e

    def _refusal(self, error: Any, action: str) -> Retry:
        """Return the error for an exception of the NameNode: Retry if it may pass without a change, else Refused."""
        kind, why = str(error.exception), _UNIQUE.sub("…", str(error.message).partition("\n")[0])
        if "SafeMode" in kind or "safe mode" in why:
            return Retry(f"HDFS is in safe mode and cannot {action} until the NameNode leaves it")
        if kind == "AccessControlException":
            return Refused(f"HDFS does not let user {self.user!r} {action}: {why}", kind)
        text = f"HDFS cannot {action}: {why}"
        return Retry(text) if kind in TRANSIENT else Refused(text, kind)


class _NotFound(Retry):
    """Failure of a call for a path that does not exist."""


class DataNodeAway(Retry):
    """Failure of a transfer, as a DataNode does not answer or broke the connection."""

    def __init__(self, host: str, action: str) -> None:
        super().__init__(f"HDFS cannot {action}: DataNode {host or '(unknown)'} does not answer")
        self.host = host


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
                if connection.sock is not None:
                    self._wait(connection.sock)
                return pool.ConnectionCls.getresponse(connection)

            connection_class = type("Connection", (pool.ConnectionCls,), {"getresponse": getresponse})
            return type(pool.__name__, (pool,), {"ConnectionCls": connection_class})

        manager.pool_classes_by_scheme = {
            scheme: limited(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
        }

    def _wait(self, socket: Any) -> None:
        """Wait until an answer begins. Raises TimeoutError after the socket's timeout.

        Once the agent stops, raises it after `SERVER_SILENCE_SECONDS` more, and sets `exceeded`.
        """
        began, limit, stopped = time.monotonic(), socket.gettimeout(), None
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        while not (hasattr(socket, "pending") and socket.pending()) and not poll.poll(SOCKET_POLL_SECONDS * 1000):
            now = time.monotonic()
            if self._stopping.is_set():
                stopped = now if stopped is None else stopped
                if now - stopped >= SERVER_SILENCE_SECONDS:
                    self.exceeded = True
                    raise TimeoutError("the agent stops, and the server is silent")
            if limit is not None and now - began >= limit:
                raise TimeoutError("the server is silent")


def _with_timeout(request: Callable[..., Any], timeout: tuple[float, float | None]) -> Callable[..., Any]:
    """Return `request` with these timeouts to connect and to read, in seconds, whatever timeout the caller gives.

    pyhdfs sets none for transfers, and one for all else.
    """
    return lambda method, url, **options: request(method, url, **{**options, "timeout": timeout})


def _acl_of_new_file(entries: Sequence[str]) -> str:
    """Return the ACL of a file created with mode 666 in a directory with these entries; empty without defaults."""
    defaults = [entry.removeprefix("default:").rpartition(":") for entry in entries if entry.startswith("default:")]
    masked = {"user:", "other:", "mask:" if any(who == "mask:" for who, _, _ in defaults) else "group:"}
    return ",".join(f"{who}:{bits[:2] + '-' if who in masked else bits}" for who, _, bits in defaults)


def _status(status: Any) -> Status:
    return Status(status.pathSuffix, status.type == "FILE", status.length, status.modificationTime)


def _no_namenode(tried: list[tuple[str, int]]) -> str:
    """Return the text of an error: no NameNode answers at these addresses."""
    addresses = " or ".join(f"{host}:{port}" for host, port in tried)
    line = ",".join(f"{host}:port" for host in dict.fromkeys(host for host, _ in tried))
    host = tried[0][0]
    service = "" if "." in host or host == "localhost" else f", or all NameNodes of it where {host} is a nameservice"
    return (
        f"HDFS is away: no NameNode answers over HTTP at {addresses}, Hadoop's default ports; if its "
        f"dfs.namenode.http-address is another, add hdfs.webhdfs = {line}{service}"
    )


def user_name(proxy: str | None) -> str:
    """Return the owner of files: `proxy`, else HADOOP_USER_NAME, else the user of this process.

    Raises FlafkaError for a user without a name.
    """
    return proxy or os.environ.get("HADOOP_USER_NAME") or _login()


def _login() -> str:
    """Return the name of the user of this process. Raises FlafkaError if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as e:
        raise FlafkaError("this process runs as a user without a name: give one with hdfs.proxyUser") from e

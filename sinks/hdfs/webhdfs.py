"""HDFS over WebHDFS."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from flafka.plugins import FlafkaError, Retry
from flafka.sinks.hdfs.delegation import Login
from flafka.sinks.hdfs.filesystem import (
    FileSystem,
    NoDirectory,
    Refused,
    Status,
    is_too_open,
    private_directory,
)
from flafka.sinks.hdfs.namenodes import (
    DataNodeAway,
    LoginRequired,
    NameNodes,
    NotFound,
    RemoteError,
    TokenRefused,
    UnexpectedAnswer,
    UploadBroken,
)
from flafka.sinks.hdfs.trust import DEFAULT_TLS, TlsFailure, TlsSettings

HTTP_PORTS = {"http": (9870, 50070), "https": (9871, 50470)}
"""Hadoop's default ports of a NameNode's HTTP server, the newest version's first."""
UPLOAD_TRIES = 3
"""Tries of one upload, each through another DataNode if there is one."""
INHERITANCE_SECONDS = 300.0
"""Age at which group and default ACL of a directory are read again."""
KNOWN_DIRECTORIES = 10_000
"""Number of directories whose group and ACL are remembered."""
NO_DIRECTORY = (
    "ParentNotDirectoryException",
    "FileAlreadyExistsException",
    "PathComponentTooLongException",
    "InvalidPathException",
)
"""Exceptions of a NameNode for paths at which no user could create a directory."""


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
        login: Login | None = None,
        is_secure: bool = False,
        tls: TlsSettings = DEFAULT_TLS,
        member: str = "",
        is_trial: bool = False,
    ) -> None:
        """Create a client. Raises Retry if no NameNode answers on the ports that are tried.

        `hosts` are the NameNodes' HTTP servers as `host:port`; without a port, Hadoop's default ports are tried.
        `user` owns the files; None is the default of `user_name`. `timeout` is the longest silence of a server, in
        seconds; None is no limit. `threads` is the number of parallel calls of `each`. Calls fail soon once
        `stopping` is set, if a server is silent. `file_settings` is `HadoopConfiguration.file_settings`.

        `login` is used if HDFS requires Kerberos, by default the user's ticket cache. With `is_secure`, it is used
        from the first call on. `tls` is for the scheme `https`. `member` is the path of the sink, for its log.
        With `is_trial`, the rights of an existing directory `.flafka` are not changed.
        """
        self.user = user_name(user)
        login = login or Login(proxy_user=user)
        self._namenodes = NameNodes(
            hosts,
            scheme=scheme,
            user=self.user,
            login=login,
            timeout=timeout,
            threads=threads,
            stopping=stopping,
            tls=tls,
            member=member,
        )
        new_file = dict(file_settings or {})
        umask = new_file.pop("umask", "")
        self._new_directory = {"permission": f"{0o777 & ~int(umask, 8):o}"} if umask else {}
        # Hadoop's default umask. Without a mode, HttpFS creates executable files.
        self._new_file = {"permission": f"{0o666 & ~int(umask or '022', 8):o}"}
        self._new_file |= new_file
        self._is_trial = is_trial
        self._private: set[str] = set()  # directories `.flafka` that are known to be restricted to this user
        self._warned: set[str] = set()  # directories whose group or ACL could not be given to files
        self._inherited: dict[str, tuple[float, str, str]] = {}
        """Time of the lookup, group and ACL of new files, by directory."""
        self._log = logging.getLogger(member or __name__)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="webhdfs")
        self._stopping = stopping
        try:
            self._namenodes.set_hosts(self._find_ports(hosts, scheme))
            if is_secure:
                self._namenodes.log_in()
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> str:
        """HTTP servers of the NameNodes as `host:port`, with commas."""
        return self._namenodes.hosts

    def close(self) -> None:
        """Wait for the running calls, and close the connections."""
        self._namenodes.end_login()  # a call that waits for a token must not keep the threads
        super().close()
        self._namenodes.close()

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
                self._upload_once(name, data, excluded)
                return name
            except (TokenRefused, UploadBroken):
                if attempt == UPLOAD_TRIES - 1 or self._stopping.is_set():
                    raise
            except DataNodeAway as e:
                if attempt == UPLOAD_TRIES - 1 or self._stopping.is_set():
                    raise
                excluded = {"excludedatanodes": e.host} if e.host and not excluded else {}
        raise AssertionError("the last try returns or raises")

    def _upload_once(self, name: str, data: bytes | Path, options: Mapping[str, str]) -> None:
        """Write a new file of this name. Raises as `NameNodes.upload`."""
        options = {**self._new_file, **options}
        # requests sends an empty file in chunks, which HDFS does not end.
        with data.open("rb") if isinstance(data, Path) and data.stat().st_size else contextlib.nullcontext() as file:
            content = file or (b"" if isinstance(data, Path) else data)

            def create(client: Any) -> None:
                if file is not None:
                    file.seek(0)
                self._namenodes.create(client, name, content, **options)

            self._namenodes.upload(f"write {name}", create)

    def status(self, path: str) -> Status | None:
        """Return the status of a file or directory; None if it does not exist."""
        status = self._file_status(path)
        return None if status is None else _status(status)

    def _file_status(self, path: str) -> Any:
        """Return the status in pyhdfs's form; None if the path does not exist. Raises Retry."""
        try:
            return self._namenodes.read(f"read the status of {path}", lambda client: client.get_file_status(path))
        except NotFound:
            return None

    def list(self, path: str) -> list[Status]:
        """Return the entries of a directory, sorted by name; an empty list if it does not exist."""
        try:
            entries = self._namenodes.read(f"list {path}", lambda client: client.list_status(path))
        except NotFound:
            return []
        return [_status(entry) for entry in entries]

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist.

        Raises Retry if the file exists, and the DataNode asks a standby NameNode that does not have it yet.
        """
        try:
            return self._namenodes.read(f"read {path}", lambda client: self._namenodes.content(client, path))
        except NotFound as e:
            # The DataNode reads from any NameNode, which may be a standby without the file.
            if (status := self.status(path)) is not None and status.is_file:
                raise Retry(f"HDFS cannot read {path}: its DataNode does not see it yet") from e
            return None

    def rename(self, source: str, target: str) -> bool:
        """Move a file, as specified by `FileSystem.rename`; return False if the NameNode did not."""
        action = f"rename {source} to {target}"
        return bool(self._namenodes.write(action, lambda client: client.rename(source, target)))

    def mkdirs(self, path: str) -> None:
        """Create a directory and its parents. Idempotent. Raises NoDirectory if there can be no directory at that
        path."""
        self._restrict_private_directory(path)
        try:
            self._mkdirs(path, path, **self._new_directory)
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
        if (status := self._file_status(private)) is None:
            self._mkdirs(private, private.rpartition("/")[0] or "/", **self._new_directory)
            self._mkdirs(private, private, permission="700")
        elif not self._is_trial and is_too_open(int(getattr(status, "permission", "700"), 8)):
            with contextlib.suppress(Refused):  # another user's directory
                self._namenodes.write(
                    f"restrict the directory {private}",
                    lambda client: client.set_permission(private, permission="700"),
                )
        self._private.add(private)

    def _mkdirs(self, wanted: str, path: str, **options: str) -> None:
        """Create a directory as a step to the `wanted` one, which errors name."""
        self._namenodes.write(f"create the directory {wanted}", lambda client: client.mkdirs(path, **options))

    def adopt(self, file: str, directory: str) -> None:
        """Give a file the group and ACL of files that are created in that directory.

        Best-effort: if HDFS refuses it, a warning is logged once for the directory. Raises Retry for other failures.
        """
        group, acl = self._inheritance(directory)
        current_group, _ = self._inheritance(private_directory(file))
        try:
            if group != current_group:
                self._namenodes.write(
                    f"give {file} the group {group!r}", lambda client: client.set_owner(file, group=group)
                )
            if acl:
                # pyhdfs has no method for it.
                action = f"give {file} the ACL of {directory}"
                self._namenodes.write(action, lambda client: client._put(file, "SETACL", aclspec=acl))
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
            action = f"read the ACL of {directory}"
            answer = self._namenodes.write(action, lambda client: client._get(directory, "GETACLSTATUS"))
            entries = answer.json()["AclStatus"]["entries"]
            acl = _acl_of_new_file(entries)
        if len(self._inherited) > KNOWN_DIRECTORIES:
            self._inherited.clear()
        self._inherited[directory] = now, group, acl
        return group, acl

    def delete(self, path: str) -> None:
        """Delete a file, or a directory and its content. Idempotent: a path that does not exist is no error."""
        self._namenodes.write(f"delete {path}", lambda client: client.delete(path, recursive="true"))

    def check_writable(self, path: str) -> None:
        """Raise Refused if this user may not create files in the directory, and Retry for any other failure."""
        # pyhdfs has no method for it.
        self._namenodes.write(f"write into {path}", lambda client: client._get(path, "CHECKACCESS", fsaction="-wx"))

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
            answer = self._namenodes.session.get(f"{scheme}://{host}:{port}/webhdfs/v1/", params=options)
            return "FileStatus" in answer.json()
        except (LoginRequired, RemoteError, TlsFailure):
            return True
        except (OSError, ValueError, TypeError, UnexpectedAnswer):  # requests.RequestException is an OSError
            return False


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

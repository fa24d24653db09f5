"""Directory and servers that `hdfs.path` names."""

from __future__ import annotations

import re
from typing import NamedTuple

from flafka.plugins import FlafkaError
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.hdfs.hadoop import HadoopConfiguration
from flafka.sinks.hdfs.webhdfs import user_name

RESERVED = frozenset({".", "..", ".flafka", ".snapshot", ".reserved"})
"""Names that HDFS or this sink reserves."""

_URL = re.compile(r"(?:([a-zA-Z][a-zA-Z0-9+.-]*):)?(?://([^/]*))?(.*)")
_HOST = re.compile(r"(https://)?[^\s/]+")
_SERVER = re.compile(r"(?:hdfs:?)?/*([^/:]+:[0-9]+)(/.*)?")
"""Path that begins with the probable address of a server."""
_SCHEMES = {None: "http", "hdfs": "http", "webhdfs": "http", "swebhdfs": "https", "file": "file"}


class Location(NamedTuple):
    """Directory and servers of the files."""

    scheme: str
    """`http` or `https`; `file` for the local disk."""
    hosts: list[str]
    """HTTP servers of the NameNodes as `host:port`, or as `host` if the port is unknown."""
    path: str
    """Directory on HDFS, or on the local disk, with escapes."""


def checked_path(value: str) -> str:
    """Return the text of hdfs.path unchanged. Raises ValueError if it can name no directory, on any server."""
    scheme, authority, path = _url(value)
    if scheme not in _SCHEMES:
        hint = f"`hadoop distcp` copies from there to {scheme}:"
        raise ValueError(f"{scheme}: is not built; write hdfs://, webhdfs:// or a path on HDFS; {hint}")
    if scheme == "file" and authority:
        raise ValueError(
            f"file: is the local disk of this host, and has no server {authority!r}: write file:///{authority}{path}"
        )
    if scheme in ("webhdfs", "swebhdfs") and not authority:
        server = _SERVER.fullmatch(path)
        address = f"{server[1]}{server[2] or '/'}" if server else f"namenode:{_port(scheme)}{path}"
        raise ValueError(f"name the NameNode's HTTP server: {scheme}://{address}")
    if scheme and not (authority or path.startswith("/")):
        raise ValueError(f"is no address; write {scheme}:///{path}, or {path} for one in the user's home")
    checked_names(path)
    return value


def checked_names(text: str) -> str:
    """Return the text unchanged. Raises ValueError if it can be no path on HDFS, for any values of its escapes."""
    BucketPath(text)
    sample = BucketPath(re.sub(r"%\[\w+\]", "host", text), local_time=True, now=lambda: 0).resolve({})
    if ":" in sample:
        hint = "" if ":" in text else " (the escape %c contains some)"
        if server := _SERVER.fullmatch(text):
            hint = f": write hdfs://{server[1]}{server[2] or '/'}"
        raise ValueError(f"HDFS allows no ':' in names{hint}")
    names = sample.split("/")
    if reserved := RESERVED.intersection(names):
        raise ValueError(f"the name {min(reserved)!r} is reserved on HDFS")
    if any(c < " " or "\x7f" <= c <= "\x9f" for c in sample):
        raise ValueError("must not contain control characters")
    if long := next((name for name in names if len(name.encode()) > 255), ""):
        raise ValueError(f"a name has at most 255 bytes, and {long[:40]!r}… has {len(long.encode())}")
    return text


def locate(value: str, webhdfs: str | None, proxy_user: str | None) -> tuple[Location, bool]:
    """Return the location of a path that `checked_path` has accepted, and True if the NameNode's host is assumed.

    `webhdfs` is the option hdfs.webhdfs, which replaces the servers of the path; None if unset. `proxy_user`
    determines the home directory of a relative path. Without any configuration, a NameNode on this host is assumed.
    Raises ValueError if the servers are unknown or badly written.
    """
    scheme, authority, path = _url(value)
    if scheme == "file":
        if webhdfs is not None:
            raise ValueError("is for HDFS, and hdfs.path is a directory of this host: remove it")
        return Location(scheme, [], re.sub("/+", "/", path)), False
    assumed = False
    if webhdfs is not None or scheme in ("webhdfs", "swebhdfs"):
        configured = webhdfs
        if configured is None and ":" not in authority:
            configured = HadoopConfiguration().nameservice_servers(authority)
        servers, port = configured or authority, f":{_port(scheme)}"
        if not all(_HOST.fullmatch(host.strip()) for host in servers.split(",")):
            raise ValueError(f"must be host:port, or several with commas between them, not {servers!r}")
        if "https://" in servers:
            scheme, port = "swebhdfs", f":{_port('swebhdfs')}"
    else:
        hadoop, port = HadoopConfiguration(), ""
        http_servers = hadoop.http_servers(authority)
        if http_servers is None and hadoop.other_filesystem:
            raise ValueError(
                "is required, as the path names no server and fs.defaultFS in Hadoop's configuration is "
                f"{hadoop.other_filesystem}, which is not HDFS: add hdfs.webhdfs = namenode:9870"
            )
        assumed = http_servers is None
        servers = http_servers or hadoop.default_server("localhost")
        scheme = "swebhdfs" if "https://" in servers else scheme
    hosts = [host.strip().removeprefix("https://") for host in servers.split(",")]
    hosts = [host if re.search(r":[0-9]+$", host) else f"{host}{port}" for host in hosts]
    if not path.startswith("/"):
        path = f"{_home(proxy_user)}/{path}"
    return Location(_SCHEMES[scheme], hosts, re.sub("/+", "/", path)), assumed


def _url(value: str) -> tuple[str | None, str, str]:
    """Return scheme in lower case (None without one), authority and path, split as by Hadoop.

    The path is `/` if empty, and may be relative if the text has neither of the first two.
    """
    match = _URL.fullmatch(value)
    assert match is not None
    scheme, authority, path = match.groups()
    return scheme and scheme.lower(), authority or "", path or "/"


def _home(proxy_user: str | None) -> str:
    """Return the home directory on HDFS, in which relative paths begin, with `%` doubled as in a pattern.

    Raises ValueError for a user without a name.
    """
    try:
        name = user_name(proxy_user)
    except FlafkaError as e:
        raise ValueError(str(e)) from e
    return f"{HadoopConfiguration().get('dfs.user.home.dir.prefix', '/user')}/{name}".replace("%", "%%")


def _port(scheme: str | None) -> int:
    return 9871 if _SCHEMES[scheme] == "https" else 9870

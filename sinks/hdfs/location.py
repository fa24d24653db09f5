"""The parts of `hdfs.path`: a directory, and the servers that know it."""

from __future__ import annotations

import re
from typing import NamedTuple

from flafka.plugins import FlafkaError
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.hdfs.hadoop import Hadoop
from flafka.sinks.hdfs.webhdfs import user_name

RESERVED = frozenset({".", "..", ".flafka", ".snapshot", ".reserved"})
"""Names that HDFS, or this sink, keeps for itself."""

_URL = re.compile(r"(?:([a-zA-Z][a-zA-Z0-9+.-]*):)?(?://([^/]*))?(.*)")
_HOST = re.compile(r"(https://)?[^\s/]+")
_SERVER = re.compile(r"(?:hdfs:?)?/*([^/:]+:[0-9]+)(/.*)?")
"""A path that begins with what is probably meant as an address."""
_SCHEMES = {None: "http", "hdfs": "http", "webhdfs": "http", "swebhdfs": "https", "file": "file"}


class Location(NamedTuple):
    """Directory and servers of the files."""

    scheme: str
    """`http` or `https`; `file` for the local disk."""
    hosts: list[str]
    """`host:port` of each NameNode's HTTP server; `host` where its port has to be found."""
    path: str
    """The directory on HDFS, or on the local disk, with escapes."""


def checked_path(value: str) -> str:
    """Return the path. ValueError for one that can name no directory, wherever the servers are."""
    scheme, authority, path = _url(value)
    if scheme not in _SCHEMES:
        way = f"`hadoop distcp` copies from there to {scheme}:"
        raise ValueError(f"{scheme}: is not built; write hdfs://, webhdfs:// or a path on HDFS; {way}")
    if scheme == "file" and authority:
        raise ValueError(
            f"file: is this host's own disk, of which {authority!r} is no name: write file:///{authority}{path}"
        )
    if scheme in ("webhdfs", "swebhdfs") and not authority:
        meant = _SERVER.fullmatch(path)
        there = f"{meant[1]}{meant[2] or '/'}" if meant else f"namenode:{_port(scheme)}{path}"
        raise ValueError(f"name the NameNode's HTTP server: {scheme}://{there}")
    if scheme and not (authority or path.startswith("/")):
        raise ValueError(f"is no address; write {scheme}:///{path}, or {path} for one in the user's home")
    checked_names(path)
    return value


def checked_names(text: str) -> str:
    """Return the text. ValueError for what can never be a path on HDFS, whatever the escapes become."""
    BucketPath(text)
    sample = BucketPath(re.sub(r"%\[\w+\]", "host", text), local_time=True, now=lambda: 0).resolve({})
    if ":" in sample:
        hint = "" if ":" in text else " (the escape %c holds some)"
        if meant := _SERVER.fullmatch(text):
            hint = f": write hdfs://{meant[1]}{meant[2] or '/'}"
        raise ValueError(f"HDFS allows no ':' in names{hint}")
    names = sample.split("/")
    if reserved := RESERVED.intersection(names):
        raise ValueError(f"the name {min(reserved)!r} is reserved on HDFS")
    if any(c < " " or "\x7f" <= c <= "\x9f" for c in sample):
        raise ValueError("must not hold control characters")
    if long := next((name for name in names if len(name.encode()) > 255), ""):
        raise ValueError(f"a name has at most 255 bytes, and {long[:40]!r}… has {len(long.encode())}")
    return text


def locate(value: str, webhdfs: str | None, proxy_user: str | None) -> tuple[Location, bool]:
    """Return the location of a path that passed `checked_path`, and True if nothing names a NameNode.

    A NameNode on this host is meant then. Raises ValueError where the servers cannot be known.
    """
    scheme, authority, path = _url(value)
    if scheme == "file":
        if webhdfs is not None:
            raise ValueError("is about HDFS, and hdfs.path is a directory of this host: remove it")
        return Location(scheme, [], re.sub("/+", "/", path)), False
    assumed = False
    if webhdfs is not None or scheme in ("webhdfs", "swebhdfs"):
        written = webhdfs
        if written is None and ":" not in authority:
            written = Hadoop().nameservice(authority)
        servers, port = written or authority, f":{_port(scheme)}"
        if not all(_HOST.fullmatch(host.strip()) for host in servers.split(",")):
            raise ValueError(f"must be host:port, or several with commas between them, not {servers!r}")
        if "https://" in servers:
            scheme, port = "swebhdfs", f":{_port('swebhdfs')}"
    else:
        hadoop, port = Hadoop(), ""
        found = hadoop.webhdfs(authority)
        if found is None and hadoop.elsewhere:
            raise ValueError(
                "is required, as the path names no server and fs.defaultFS in Hadoop's configuration is "
                f"{hadoop.elsewhere}, which is not HDFS: add hdfs.webhdfs = namenode:9870"
            )
        assumed = found is None
        servers = found or hadoop.at("localhost")
        scheme = "swebhdfs" if "https://" in servers else scheme
    hosts = [host.strip().removeprefix("https://") for host in servers.split(",")]
    hosts = [host if re.search(r":[0-9]+$", host) else f"{host}{port}" for host in hosts]
    if not path.startswith("/"):
        path = f"{_home(proxy_user)}/{path}"
    return Location(_SCHEMES[scheme], hosts, re.sub("/+", "/", path)), assumed


def _url(value: str) -> tuple[str | None, str, str]:
    """Scheme, authority and path, as Hadoop takes them apart. A path without either may be a relative one."""
    found = _URL.fullmatch(value)
    assert found is not None
    scheme, authority, path = found.groups()
    return scheme and scheme.lower(), authority or "", path or "/"


def _home(proxy_user: str | None) -> str:
    """The directory on HDFS that relative paths begin in."""
    try:
        name = user_name(proxy_user)
    except FlafkaError as e:
        raise ValueError(str(e)) from e
    return f"{Hadoop().get('dfs.user.home.dir.prefix', '/user')}/{name}".replace("%", "%%")


def _port(scheme: str | None) -> int:
    return 9871 if _SCHEMES[scheme] == "https" else 9870

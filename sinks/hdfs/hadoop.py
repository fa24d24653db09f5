"""Hadoop's own configuration, core-site.xml and hdfs-site.xml: servers of HDFS, and how files are made."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from flafka.plugins.shared.hadoopxml import read_properties, value_of

DIRECTORIES = ("FLUME_CONF_DIR", "HADOOP_CONF_DIR")
"""Variables that name a directory with Hadoop's configuration, the first before the second, as for Flume."""
FILES = ("core-site.xml", "hdfs-site.xml")
_ANY = ("", "0.0.0.0")  # noqa: S104  # which means any address of the NameNode's own host


class Hadoop:
    """The properties of the first core-site.xml and hdfs-site.xml that are found. ValueError where one is not XML.

    `files` are others, and `directories` the variables that name where they lie.
    """

    def __init__(self, files: Sequence[str] = FILES, directories: Sequence[str] = DIRECTORIES) -> None:
        self._values: dict[str, str] = {}
        self.files: list[Path] = []
        for name in files:
            places = (Path(directory, name) for variable in directories if (directory := os.environ.get(variable)))
            if (path := next((place for place in places if place.is_file()), None)) is not None:
                self.files.append(path)
                self._values |= read_properties(path)

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a property with its references resolved."""
        return value_of(self._values, name, default)

    def creation(self) -> dict[str, str]:
        """Return how Hadoop's client makes files here: `umask` in octal, `replication` and `blocksize`, where set.

        Raises ValueError for a value that Hadoop does not take either.
        """
        found = {
            "umask": _umask(self.get("fs.permissions.umask-mode", self.get("dfs.umaskmode"))),
            "replication": self.get("dfs.replication"),
            "blocksize": _bytes(self.get("dfs.blocksize", self.get("dfs.block.size"))),
        }
        if not re.fullmatch("[0-9]*", found["replication"]):
            raise ValueError(f"dfs.replication in hdfs-site.xml must be a number, not {found['replication']!r}")
        return {name: value for name, value in found.items() if value}

    def webhdfs(self, authority: str) -> str | None:
        """The HTTP servers of `hdfs://<authority>` as hdfs.webhdfs wants them, without a port where none is given.

        `authority` is a nameservice, or `host` or `host:port` of a NameNode's RPC server. If empty, it is that of
        fs.defaultFS, and the answer is None where that names no NameNode.
        """
        default = self._default()
        authority = authority or default
        if not authority:
            return None
        if authority in _names(self.get("dfs.nameservices")):
            return self.nameservice(authority)
        host, _, port = authority.partition(":")
        for suffix in ("", *self._suffixes()):
            rpc = self._rpc(suffix)
            if rpc and (rpc == _with_port(authority) or (not port and rpc.partition(":")[0] == host)):
                return self._http(suffix)
        if _with_port(default) == _with_port(authority):
            return self._http("", host)
        return self.at(host)

    def at(self, host: str) -> str:
        """The HTTP server of a NameNode on `host` that these files do not know: its port where it is any host's."""
        kind = "https" if self._secure() else "http"
        found, _, port = self.get(f"dfs.namenode.{kind}-address").partition(":")
        address = f"{host}:{port}" if port and found in _ANY else host
        return f"{'https://' if kind == 'https' else ''}{address}"

    @property
    def elsewhere(self) -> str:
        """fs.defaultFS where that is neither HDFS nor the local disk; else empty."""
        value = self._default_filesystem()
        return "" if value.partition(":")[0] in ("", "file", "hdfs", "webhdfs", "swebhdfs") else value

    def nameservice(self, name: str) -> str | None:
        """The HTTP servers of all NameNodes of a nameservice; None where the files do not know it."""
        if name not in _names(self.get("dfs.nameservices")):
            return None
        members = _names(self.get(f"dfs.ha.namenodes.{name}"))
        found = [self._http(f".{name}.{member}") for member in members] or [self._http(f".{name}")]
        known = [address for address in found if address]
        return ",".join(known) or None

    def _suffixes(self) -> list[str]:
        """Return the ends of the names of each NameNode's properties."""
        services = _names(self.get("dfs.nameservices"))
        members = [f".{s}.{member}" for s in services for member in _names(self.get(f"dfs.ha.namenodes.{s}"))]
        return [*members, *(f".{service}" for service in services)]

    def _rpc(self, suffix: str) -> str:
        address = self.get(f"dfs.namenode.rpc-address{suffix}")
        return address and _with_port(address)

    def _secure(self) -> bool:
        return self.get("dfs.http.policy", "HTTP_ONLY").upper() == "HTTPS_ONLY"

    def _default_filesystem(self) -> str:
        return self.get("fs.defaultFS", self.get("fs.default.name"))

    def _default(self) -> str:
        """Return the authority of fs.defaultFS; empty where that is no HDFS."""
        scheme, _, rest = self._default_filesystem().partition("://")
        return rest.partition("/")[0] if scheme in ("hdfs", "webhdfs", "swebhdfs") else ""

    def _http(self, suffix: str, host: str = "") -> str | None:
        """One NameNode's; without a port where only its RPC address is known."""
        kind = "https" if self._secure() else "http"
        rpc_host = self._rpc(suffix).partition(":")[0] or host
        found, _, port = self.get(f"dfs.namenode.{kind}-address{suffix}").partition(":")
        name = rpc_host if found in _ANY else found
        if not name:
            return None
        return f"{'https://' if kind == 'https' else ''}{name}{':' if port else ''}{port}"


def _with_port(address: str) -> str:
    """The address of an RPC server with its port, by default Hadoop's."""
    return address if ":" in address or not address else f"{address}:8020"


def _umask(text: str) -> str:
    """A umask in octal: of `027`, or of `u=rwx,g=rx,o=`, which says what is left."""
    if re.fullmatch("[0-7]{0,4}", text):
        return text
    mask = 0o777
    for part in text.split(","):
        found = re.fullmatch("([ugoa]+)=([rwx]*)", part.strip())
        if found is None:
            raise ValueError(
                f"fs.permissions.umask-mode in core-site.xml must be like 027 or u=rwx,g=rx,o=: {text!r}"
            )
        bits = sum(4 >> "rwx".index(letter) for letter in set(found[2]))
        for who in found[1].replace("a", "ugo"):
            shift = 3 * "ogu".index(who)
            mask = mask & ~(7 << shift) | (7 & ~bits) << shift
    return f"{mask:03o}"


def _bytes(text: str) -> str:
    """A size of Hadoop's, such as `128m`, in bytes."""
    if not text:
        return ""
    found = re.fullmatch("([0-9]+)([kmgtpe]?)", text.lower())
    if found is None:
        raise ValueError(f"dfs.blocksize in hdfs-site.xml must be like 134217728 or 128m, not {text!r}")
    return str(int(found[1]) << 10 * " kmgtpe".index(found[2] or " "))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]

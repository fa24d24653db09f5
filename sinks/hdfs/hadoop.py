"""Hadoop's configuration, core-site.xml and hdfs-site.xml: servers of HDFS, and settings of new files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from flafka.plugins.java.hadoopxml import read_properties, resolve_property

DIRECTORIES = ("FLUME_CONF_DIR", "HADOOP_CONF_DIR")
"""Environment variables of directories with Hadoop's configuration, in Flume's order."""
FILES = ("core-site.xml", "hdfs-site.xml")
_ANY_ADDRESS = ("", "0.0.0.0")  # noqa: S104  # any address of the NameNode's own host


class HadoopConfiguration:
    """Properties of the first core-site.xml and hdfs-site.xml that exist. Raises ValueError for one that is not XML.

    `files` are names of other files, and `directories` the environment variables of their directories.
    """

    def __init__(self, files: Sequence[str] = FILES, directories: Sequence[str] = DIRECTORIES) -> None:
        self._values: dict[str, str] = {}
        self.files: list[Path] = []
        for name in files:
            paths = (Path(directory, name) for variable in directories if (directory := os.environ.get(variable)))
            if (path := next((path for path in paths if path.is_file()), None)) is not None:
                self.files.append(path)
                self._values |= read_properties(path)

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a property, with its `${…}` references resolved; `default` if it is not set."""
        return resolve_property(self._values, name, default)

    def file_settings(self) -> dict[str, str]:
        """Return settings of new files, as of Hadoop's client: `umask`, `replication` and `blocksize`.

        Values are texts: the umask in octal, the size in bytes. Settings that are not configured are left out. Raises
        ValueError for a value that Hadoop refuses, too.
        """
        settings = {
            "umask": _umask(self.get("fs.permissions.umask-mode", self.get("dfs.umaskmode"))),
            "replication": self.get("dfs.replication"),
            "blocksize": _bytes(self.get("dfs.blocksize", self.get("dfs.block.size"))),
        }
        if not re.fullmatch("[0-9]*", settings["replication"]):
            raise ValueError(f"dfs.replication in hdfs-site.xml must be a number, not {settings['replication']!r}")
        return {name: value for name, value in settings.items() if value}

    def http_servers(self, authority: str) -> str | None:
        """Return the HTTP servers of `hdfs://<authority>`, with commas, as in hdfs.webhdfs.

        `authority` is a nameservice, or `host` or `host:port` of a NameNode's RPC server; if empty, that of
        fs.defaultFS. A server has no port if none is configured. Return None if no NameNode is named.
        """
        default = self._default()
        authority = authority or default
        if not authority:
            return None
        if authority in _names(self.get("dfs.nameservices")):
            return self.nameservice_servers(authority)
        host, _, port = authority.partition(":")
        for suffix in ("", *self._suffixes()):
            rpc = self._rpc(suffix)
            if rpc and (rpc == _with_port(authority) or (not port and rpc.partition(":")[0] == host)):
                return self._http(suffix)
        if _with_port(default) == _with_port(authority):
            return self._http("", host)
        return self.default_server(host)

    def default_server(self, host: str) -> str:
        """Return the HTTP server of a NameNode on a host that is not configured.

        It has the configured port only if that is for any address, and else no port.
        """
        kind = "https" if self._is_https_only() else "http"
        configured, _, port = self.get(f"dfs.namenode.{kind}-address").partition(":")
        address = f"{host}:{port}" if port and configured in _ANY_ADDRESS else host
        return f"{'https://' if kind == 'https' else ''}{address}"

    @property
    def other_filesystem(self) -> str:
        """Value of fs.defaultFS if it is neither HDFS nor the local disk; else empty."""
        value = self._default_filesystem()
        return "" if value.partition(":")[0] in ("", "file", "hdfs", "webhdfs", "swebhdfs") else value

    def nameservice_servers(self, name: str) -> str | None:
        """Return the HTTP servers of all NameNodes of a nameservice, with commas; None if it is not configured."""
        if name not in _names(self.get("dfs.nameservices")):
            return None
        members = _names(self.get(f"dfs.ha.namenodes.{name}"))
        addresses = [self._http(f".{name}.{member}") for member in members] or [self._http(f".{name}")]
        return ",".join(address for address in addresses if address) or None

    def _suffixes(self) -> list[str]:
        """Return the suffixes of property names, one for each NameNode and nameservice, as `.nameservice1.nn1`."""
        services = _names(self.get("dfs.nameservices"))
        members = [f".{s}.{member}" for s in services for member in _names(self.get(f"dfs.ha.namenodes.{s}"))]
        return [*members, *(f".{service}" for service in services)]

    def _rpc(self, suffix: str) -> str:
        """Return the RPC address of the NameNode with this suffix, with its port; empty if it is not configured."""
        address = self.get(f"dfs.namenode.rpc-address{suffix}")
        return address and _with_port(address)

    def _is_https_only(self) -> bool:
        return self.get("dfs.http.policy", "HTTP_ONLY").upper() == "HTTPS_ONLY"

    def _default_filesystem(self) -> str:
        return self.get("fs.defaultFS", self.get("fs.default.name"))

    def _default(self) -> str:
        """Return the authority of fs.defaultFS; empty if that is not HDFS."""
        scheme, _, rest = self._default_filesystem().partition("://")
        return rest.partition("/")[0] if scheme in ("hdfs", "webhdfs", "swebhdfs") else ""

    def _http(self, suffix: str, host: str = "") -> str | None:
        """Return the HTTP address of the NameNode with this suffix; None if neither host nor `host` is known.

        It has no port if only the RPC address is configured, and begins with `https://` if HTTP is off.
        """
        kind = "https" if self._is_https_only() else "http"
        rpc_host = self._rpc(suffix).partition(":")[0] or host
        configured, _, port = self.get(f"dfs.namenode.{kind}-address{suffix}").partition(":")
        name = rpc_host if configured in _ANY_ADDRESS else configured
        if not name:
            return None
        return f"{'https://' if kind == 'https' else ''}{name}{':' if port else ''}{port}"


def _with_port(address: str) -> str:
    """Return the address of an RPC server with its port, by default Hadoop's."""
    return address if ":" in address or not address else f"{address}:8020"


def _umask(text: str) -> str:
    """Return a umask in octal, from octal (`027`) or from the permissions that remain (`u=rwx,g=rx,o=`).

    An empty text stays empty. Raises ValueError for any other text.
    """
    if re.fullmatch("[0-7]{0,4}", text):
        return text
    mask = 0o777
    for part in text.split(","):
        match = re.fullmatch("([ugoa]+)=([rwx]*)", part.strip())
        if match is None:
            raise ValueError(
                f"fs.permissions.umask-mode in core-site.xml must be like 027 or u=rwx,g=rx,o=: {text!r}"
            )
        bits = sum(4 >> "rwx".index(letter) for letter in set(match[2]))
        for who in match[1].replace("a", "ugo"):
            shift = 3 * "ogu".index(who)
            mask = mask & ~(7 << shift) | (7 & ~bits) << shift
    return f"{mask:03o}"


def _bytes(text: str) -> str:
    """Return the number of bytes, as a text, of a size in Hadoop's notation, such as `128m`.

    An empty text stays empty. Raises ValueError for any other text.
    """
    if not text:
        return ""
    match = re.fullmatch("([0-9]+)([kmgtpe]?)", text.lower())
    if match is None:
        raise ValueError(f"dfs.blocksize in hdfs-site.xml must be like 134217728 or 128m, not {text!r}")
    return str(int(match[1]) << 10 * " kmgtpe".index(match[2] or " "))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]

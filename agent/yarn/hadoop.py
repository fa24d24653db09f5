"""The directory of Hadoop's configuration that this process was given, as far as it is read without Java."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flafka.plugins import FlafkaError
from flafka.plugins.shared.hadoopxml import read_properties, value_of

VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
_MANAGER = "yarn.resourcemanager"


@dataclass(frozen=True)
class HadoopConfiguration:
    """The properties of the files in those directories; of a property that several files set the last one counts."""

    directories: tuple[Path, ...]
    properties: Mapping[str, str]

    def get(self, name: str, otherwise: str = "") -> str:
        """Return the value of a property with its references resolved."""
        return value_of(self.properties, name, otherwise)

    def resource_managers(self) -> list[tuple[str, int]]:
        """Where clients speak to the ResourceManager, or to each of several of which one is active."""
        return [_pair(self._of("address", id, 8032), 8032) for id in self._ids()]

    def pages(self) -> list[str]:
        """The ResourceManagers' web pages: `http://host:8088`."""
        https = self.get("yarn.http.policy") == "HTTPS_ONLY"
        name, port = ("webapp.https.address", 8090) if https else ("webapp.address", 8088)
        return [f"{'https' if https else 'http'}://{self._of(name, id, port)}" for id in self._ids()]

    def _ids(self) -> list[str]:
        if self.get(f"{_MANAGER}.ha.enabled") != "true":
            return [""]
        return [f".{id.strip()}" for id in self.get(f"{_MANAGER}.ha.rm-ids").split(",") if id.strip()]

    def _of(self, name: str, id: str, port: int) -> str:
        host = self.get(f"{_MANAGER}.hostname{id}") or "0.0.0.0"  # noqa: S104  # Hadoop's own default
        address = self.get(f"{_MANAGER}.{name}{id}") or host
        return "{}:{}".format(*_pair(address, port))


def hadoop_configuration() -> HadoopConfiguration:
    """That of HADOOP_CONF_DIR and of YARN_CONF_DIR. Raises FlafkaError, which says what is missing."""
    named = {name: Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)}
    if not named:
        raise FlafkaError(
            "spark.master = yarn needs the environment variable HADOOP_CONF_DIR or YARN_CONF_DIR: the directory of "
            "the cluster's core-site.xml, hdfs-site.xml and yarn-site.xml"
        )
    for variable, directory in named.items():
        if not directory.is_dir():
            raise FlafkaError(f"{variable} = {directory} is not a directory")
    directories = tuple(dict.fromkeys(named.values()))
    properties: dict[str, str] = {}
    try:
        for directory in reversed(directories):  # as on a class path, the first one counts
            for file in filter(Path.exists, (directory / name for name in _FILES)):
                properties.update(read_properties(file))
    except ValueError as e:
        raise FlafkaError(str(e)) from None
    if not any((directory / "yarn-site.xml").exists() for directory in directories):
        raise FlafkaError(f"{' and '.join(map(str, directories))} has no yarn-site.xml, which says where YARN is")
    return HadoopConfiguration(directories, properties)


def _pair(address: str, port: int) -> tuple[str, int]:
    host, _, given = address.partition(":")
    return host, int(given) if given.isdecimal() else port

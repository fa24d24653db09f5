"""Hadoop's configuration in the directories of HADOOP_CONF_DIR and YARN_CONF_DIR, read without Java."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flafka.plugins import FlafkaError
from flafka.plugins.java.hadoopxml import read_properties, resolve_property

VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
_RESOURCE_MANAGER = "yarn.resourcemanager"


@dataclass(frozen=True)
class YarnConfiguration:
    """Properties of Hadoop's configuration, and the directories of its files."""

    directories: tuple[Path, ...]
    properties: Mapping[str, str]

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a property with its `${…}` references resolved; `default` if it is not set."""
        return resolve_property(self.properties, name, default)

    def resource_managers(self) -> list[tuple[str, int]]:
        """Return host and port of each ResourceManager for clients.

        One of several is active; which one is not known here.
        """
        return [_host_and_port(self._address("address", id, 8032), 8032) for id in self._ids()]

    def pages(self) -> list[str]:
        """Return the URL of each ResourceManager's web pages, such as `http://host:8088`."""
        https = self.get("yarn.http.policy") == "HTTPS_ONLY"
        name, port = ("webapp.https.address", 8090) if https else ("webapp.address", 8088)
        return [f"{'https' if https else 'http'}://{self._address(name, id, port)}" for id in self._ids()]

    def _ids(self) -> list[str]:
        if self.get(f"{_RESOURCE_MANAGER}.ha.enabled") != "true":
            return [""]
        return [f".{id.strip()}" for id in self.get(f"{_RESOURCE_MANAGER}.ha.rm-ids").split(",") if id.strip()]

    def _address(self, name: str, id: str, port: int) -> str:
        host = self.get(f"{_RESOURCE_MANAGER}.hostname{id}") or "0.0.0.0"  # noqa: S104  # Hadoop's default
        address = self.get(f"{_RESOURCE_MANAGER}.{name}{id}") or host
        return "{}:{}".format(*_host_and_port(address, port))


def hadoop_configuration() -> YarnConfiguration:
    """Return the configuration in HADOOP_CONF_DIR and YARN_CONF_DIR.

    hdfs-site.xml overrides core-site.xml, and yarn-site.xml overrides both. The first directory overrides the second.
    Raises FlafkaError if it is missing or invalid.
    """
    by_variable = {name: Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)}
    if not by_variable:
        raise FlafkaError(
            "spark.master = yarn needs the environment variable HADOOP_CONF_DIR or YARN_CONF_DIR: the directory of "
            "the cluster's core-site.xml, hdfs-site.xml and yarn-site.xml"
        )
    for variable, directory in by_variable.items():
        if not directory.is_dir():
            raise FlafkaError(f"{variable} = {directory} is not a directory")
    directories = tuple(dict.fromkeys(by_variable.values()))
    properties: dict[str, str] = {}
    try:
        for directory in reversed(directories):  # as on a class path, the first directory has precedence
            for file in filter(Path.exists, (directory / name for name in _FILES)):
                properties.update(read_properties(file))
    except ValueError as e:
        raise FlafkaError(str(e)) from None
    if not any((directory / "yarn-site.xml").exists() for directory in directories):
        raise FlafkaError(
            f"{' and '.join(map(str, directories))} has no yarn-site.xml, which has the address of YARN"
        )
    return YarnConfiguration(directories, properties)


def _host_and_port(address: str, port: int) -> tuple[str, int]:
    host, _, explicit = address.partition(":")
    return host, int(explicit) if explicit.isdecimal() else port

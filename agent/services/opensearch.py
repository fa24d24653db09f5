"""OpenSearch on this machine: one server, for tests of the Elasticsearch sink."""

import http.client
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from agent.services.cluster import HOST, Cluster, java_command
from agent.services.java import Java
from agent.services.logs import LOG4J2

OPENSEARCH, TRANSPORT = "opensearch", "opensearch-transport"
HEAP_MB = 256
MODULE = ("netty-", "transport-netty4-")
"""How the jars begin that are no part of the class path: the server loads them as a module."""
SETTINGS = """\
cluster.name: flafka
node.name: opensearch
discovery.type: single-node
network.host: {host}
http.port: {http}
transport.port: {transport}
path.data: {directory}/data
path.logs: {directory}/logs
node.store.allow_mmap: false
cluster.routing.allocation.disk.threshold_enabled: false
"""
DESCRIPTOR = """\
name=transport-netty4
description=HTTP and the protocol between servers
classname=org.opensearch.transport.Netty4Plugin
version={version}
opensearch.version={version}
java.version=11
"""
POLICY = """\
grant {
  permission java.io.FilePermission "/proc/sys/net/core/somaxconn", "read";
  permission java.net.SocketPermission "*", "accept,connect";
  permission java.lang.RuntimePermission "setContextClassLoader";
  permission java.lang.RuntimePermission "getClassLoader";
  permission java.util.PropertyPermission "sun.nio.ch.bugLevel", "write";
};
"""


class OpenSearchCluster(Cluster):
    """One OpenSearch without security; the server is called `opensearch`.

    What was acknowledged survives `kill -9` (and, as its log is synced, a power cut).
    """

    service: ClassVar[str] = "opensearch"

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.ports[OPENSEARCH]}"

    def names(self) -> list[str]:
        """`opensearch`."""
        return [OPENSEARCH]

    def default_ports(self) -> Mapping[str, int]:
        """19200, and 19250 for a protocol between servers."""
        return {OPENSEARCH: 19200, TRANSPORT: 19250}

    def prepare(self, java: Java, lib: Path) -> None:
        """The server's home, with the one module that it needs."""
        module = self.directory / "home" / "modules" / "transport-netty4"
        for folder in ("conf", "data", "logs", "tmp"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        ports = {"http": self.ports[OPENSEARCH], "transport": self.ports[TRANSPORT]}
        settings = SETTINGS.format(host=HOST, directory=self.directory, **ports)
        (self.directory / "conf" / "opensearch.yml").write_text(settings)
        (self.directory / "conf" / "log4j2.properties").write_text(LOG4J2)
        if module.exists():
            return
        draft = self.directory / "module"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        for jar in lib.glob("*.jar"):
            if jar.name.startswith(MODULE):
                shutil.copy(jar, draft)  # it may read real files only, where they are
        (version,) = (jar.stem.rpartition("-")[2] for jar in lib.glob("transport-netty4-client-*.jar"))
        (draft / "plugin-descriptor.properties").write_text(DESCRIPTOR.format(version=version))
        (draft / "plugin-security.policy").write_text(POLICY)
        module.parent.mkdir(parents=True)
        draft.rename(module)

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """The server's own main class."""
        options = [
            f"-Djava.io.tmpdir={self.directory / 'tmp'}",
            "-Djava.security.manager=allow",
            "-Djna.nosys=true",
            "-Djna.nounpack=true",  # no native code: with it, the server refuses to run as root, a container's user
            f"-Dopensearch.path.home={self.directory / 'home'}",
            f"-Dopensearch.path.conf={self.directory / 'conf'}",
            "-Dopensearch.distribution.type=tar",
            "-Dopensearch.bundled_jdk=false",
            "-Dio.netty.noUnsafe=true",
            "-Dlog4j2.disable.jmx=true",
            f"-Dflafka.log={self.server(OPENSEARCH).log}",
        ]
        jars = sorted(jar for jar in lib.glob("*.jar") if not jar.name.startswith(MODULE))
        return java_command(java, jars, "org.opensearch.bootstrap.OpenSearch", heap_mb=HEAP_MB, options=options)

    def waiting_for(self) -> str | None:
        """Ready is: every index is there, with what its log holds."""
        connection = http.client.HTTPConnection(HOST, self.ports[OPENSEARCH], timeout=30)
        try:
            connection.request("GET", "/_cluster/health")
            health: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return "OpenSearch does not answer yet"
        finally:
            connection.close()
        if health.get("status") not in ("green", "yellow"):  # yellow: a copy of an index would need a second server
            return "OpenSearch is opening its indexes"
        return None

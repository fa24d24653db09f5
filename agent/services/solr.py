"""Solr on this host: one server with any number of cores, without ZooKeeper."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, java_command
from flafka.agent.services.logs import LOG4J2, log4j2_options
from flafka.agent.web import fetch_page

SOLR = "solr"
HEAP_MB = 160
ACTIVE = 3
"""State of a transaction log after its replay."""
SOLR_CONF = Path(__file__).parent / "solrconf"
"""Directory with `jetty.xml`, `solr.xml` and `core/`, the configuration of a new core."""


class SolrCluster(Cluster):
    """Apache Solr in Jetty. The server is `solr`, its first core `events`.

    Acknowledged documents survive `kill -9`, committed or not, but not a power failure.
    """

    service: ClassVar[str] = "solr"

    @property
    def address(self) -> str:
        """Base URL `http://host:port/solr` of the cores."""
        return f"http://{HOST}:{self.ports[SOLR]}/solr"

    def names(self) -> list[str]:
        """Return `solr`."""
        return [SOLR]

    def default_ports(self) -> Mapping[str, int]:
        """Return 18983."""
        return {SOLR: 18983}

    def prepare(self, java: Java, lib: Path) -> None:
        """Write the configuration, and create the core `events` before the first start."""
        home = self.directory / "data"
        for folder in (home, self.directory / "conf", self.server(SOLR).log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOLR_CONF / "solr.xml", home)
        shutil.copy(SOLR_CONF / "jetty.xml", self.directory / "conf")
        (self.directory / "conf" / "log4j2.properties").write_text(LOG4J2)
        core = home / "events"
        if not core.exists():
            draft = home / ".events"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(SOLR_CONF / "core", draft / "conf")
            (draft / "core.properties").write_text("name=events\n")
            draft.rename(core)

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command of Jetty with its XML configuration."""
        conf, home = self.directory / "conf", self.directory / "data"
        options = [
            f"-Dsolr.solr.home={home}",
            f"-Dsolr.log.dir={self.server(SOLR).log.parent}",
            *log4j2_options(name, self.server(SOLR).log, conf / "log4j2.properties", self.log_ports),
            "-Dsolr.data.home=",
            f"-Dhost={HOST}",
            f"-Djetty.port={self.ports[SOLR]}",
        ]
        command = java_command(
            java, [lib / "*"], "org.eclipse.jetty.xml.XmlConfiguration", heap_mb=HEAP_MB, options=options
        )
        return [*command, str(conf / "jetty.xml")]

    def unready_reason(self) -> str | None:
        """Return the reason why Solr is not ready; None if it is ready.

        Raises ServiceError if a core cannot be opened. Every core must be open and have replayed its transaction log.
        A core answers during the replay. If it is stopped then, the remaining updates are lost.
        """
        status = self._get("admin/cores?action=STATUS&indexInfo=false")
        if status is None:
            return "Solr does not answer yet"
        if failed := status.get("initFailures"):
            raise ServiceError(f"Solr cannot open its cores: {failed}")
        for properties in sorted((self.directory / "data").glob("*/core.properties")):
            core = properties.parent.name
            if core not in status.get("status", {}):
                return f"core {core} is not open yet"
            metric = f"solr.core.{core}:TLOG.state"
            if ((self._get(f"admin/metrics?key={metric}") or {}).get("metrics") or {}).get(metric) != ACTIVE:
                return f"core {core} is replaying its log"
        return None

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the JSON of a page; None if no JSON comes within 30 s."""
        try:
            result: dict[str, Any] = json.loads(fetch_page(HOST, self.ports[SOLR], f"/solr/{path}", seconds=30)[1])
        except ValueError:
            return None
        return result

"""Solr on this machine: one server, without ZooKeeper, and as many cores as one likes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, java_command
from flafka.agent.services.logs import LOG4J2, log4j2_options
from flafka.agent.web import page

SOLR = "solr"
HEAP_MB = 160
ACTIVE = 3
"""State of a log of updates that was replayed."""
CONF = Path(__file__).parent / "solrconf"
"""`jetty.xml`, `solr.xml`, and `core/`, the configuration of a new core."""


class SolrCluster(Cluster):
    """Apache Solr in Jetty; the server is called `solr`, its first core `events`.

    What was acknowledged survives `kill -9`, committed or not (not a power cut of the machine).
    """

    service: ClassVar[str] = "solr"

    @property
    def address(self) -> str:
        """`http://host:port/solr`; a core's name comes behind it."""
        return f"http://{HOST}:{self.ports[SOLR]}/solr"

    def names(self) -> list[str]:
        """`solr`."""
        return [SOLR]

    def default_ports(self) -> Mapping[str, int]:
        """18983."""
        return {SOLR: 18983}

    def prepare(self, java: Java, lib: Path) -> None:
        """Solr's home, with the core `events`."""
        home = self.directory / "data"
        for folder in (home, self.directory / "conf", self.server(SOLR).log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(CONF / "solr.xml", home)
        shutil.copy(CONF / "jetty.xml", self.directory / "conf")
        (self.directory / "conf" / "log4j2.properties").write_text(LOG4J2)
        core = home / "events"
        if not core.exists():
            draft = home / ".events"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(CONF / "core", draft / "conf")
            (draft / "core.properties").write_text("name=events\n")
            draft.rename(core)

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Jetty, told by its XML what to serve."""
        conf, home = self.directory / "conf", self.directory / "data"
        options = [
            f"-Dsolr.solr.home={home}",
            f"-Dsolr.log.dir={self.server(SOLR).log.parent}",
            *log4j2_options(name, self.server(SOLR).log, conf / "log4j2.properties", self.logs_to),
            "-Dsolr.data.home=",
            f"-Dhost={HOST}",
            f"-Djetty.port={self.ports[SOLR]}",
        ]
        command = java_command(
            java, [lib / "*"], "org.eclipse.jetty.xml.XmlConfiguration", heap_mb=HEAP_MB, options=options
        )
        return [*command, str(conf / "jetty.xml")]

    def waiting_for(self) -> str | None:
        """Ready is: every core answers, with all that its log of updates holds.

        A core answers while it still replays that log, and drops what is left of it when it is stopped then.
        """
        status = self._get("admin/cores?action=STATUS&indexInfo=false")
        if status is None:
            return "Solr does not answer yet"
        if failed := status.get("initFailures"):
            raise ServiceError(f"Solr cannot open its cores: {failed}")
        for found in sorted((self.directory / "data").glob("*/core.properties")):
            core = found.parent.name
            if core not in status.get("status", {}):
                return f"core {core} is not open yet"
            metric = f"solr.core.{core}:TLOG.state"
            if ((self._get(f"admin/metrics?key={metric}") or {}).get("metrics") or {}).get(metric) != ACTIVE:
                return f"core {core} is replaying its log"
        return None

    def _get(self, path: str) -> dict[str, Any] | None:
        """An answer in JSON; None without one."""
        try:
            found: dict[str, Any] = json.loads(page(HOST, self.ports[SOLR], f"/solr/{path}", 30)[1])
        except ValueError:
            return None
        return found

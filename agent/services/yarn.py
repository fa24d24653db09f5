"""YARN on this host: a ResourceManager and a NodeManager, for applications with files on the sandbox's HDFS."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, data_directory, java_command, site_xml
from flafka.agent.services.hdfs import LOGGING, HdfsCluster
from flafka.agent.services.logs import log4j1_options
from flafka.agent.services.process import listeners
from flafka.agent.services.spark import bare_environment, bare_python, make_bare_java, make_bare_python
from flafka.agent.web import fetch_page

RESOURCEMANAGER, NODEMANAGER = "resourcemanager", "nodemanager"
HEAP_MB = 160
MEMORY_MB, CORES = 4096, 8
"""Resources of the NodeManager: enough for an application with two executors of Spark's default size."""


class YarnCluster(Cluster):
    """Apache Hadoop YARN; servers are `resourcemanager` and `nodemanager`, with 4 GB for containers.

    Containers run Python in an empty virtual environment. The ResourceManager keeps its state on the local disk, so
    that applications survive `kill -9` of it, once it runs again. The containers of a killed NodeManager are lost.
    """

    service: ClassVar[str] = "yarn"
    # A NodeManager ends its containers at once, then waits 10 s for logs to delete in three hours.
    grace: ClassVar[float] = 6.0

    def __init__(self, directory: Path | str, hdfs: HdfsCluster, *, fixed_ports: bool = True) -> None:
        """`hdfs` has the files of applications, and must run whenever this cluster runs."""
        super().__init__(directory, fixed_ports=fixed_ports)
        self.hdfs = hdfs

    @classmethod
    def default(cls) -> Self:
        """Return the user's cluster, on the user's HDFS."""
        return cls(data_directory() / cls.service, HdfsCluster.default())

    @property
    def conf(self) -> Path:
        """Directory with the configuration of clients, for HADOOP_CONF_DIR."""
        return self.directory / "conf" / "client"

    @property
    def address(self) -> str:
        """Address `http://host:port` of the ResourceManager's web pages."""
        return f"http://{HOST}:{self.ports['resourcemanager-web']}"

    def variables(self) -> Mapping[str, str]:
        """Return HADOOP_CONF_DIR, which clients of YARN such as Spark need, and FLAFKA_YARN."""
        return {"FLAFKA_YARN": self.address, "HADOOP_CONF_DIR": str(self.conf)}

    def names(self) -> list[str]:
        """Return `resourcemanager`, then `nodemanager`."""
        return [RESOURCEMANAGER, NODEMANAGER]

    def default_ports(self) -> Mapping[str, int]:
        """Return 18030 to 18033 and 18088 (web) for the ResourceManager, 18040 to 18042 for the NodeManager."""
        manager = {RESOURCEMANAGER: 18032, "scheduler": 18030, "tracker": 18031, "admin": 18033}
        return manager | {
            "resourcemanager-web": 18088,
            NODEMANAGER: 18041,
            "localizer": 18040,
            "nodemanager-web": 18042,
        }

    def prepare(self, java: Java, lib: Path) -> None:
        """Write the configuration of servers and clients, and create the containers' Java and Python.

        Raises ServiceError.
        """
        self.configure()
        make_bare_java(self.directory, java)
        make_bare_python(self.directory)

    def configure(self) -> None:
        """Write the configuration of servers and clients.

        Raises ServiceError for a directory with a space in its name.
        """
        if " " in str(self.directory):
            raise ServiceError(
                f"YARN cannot run containers in a directory with a space in its name: {self.directory}"
            )
        if not self.hdfs.state().get("ports"):
            self.hdfs.reserve()
        for name in (*self.names(), "client"):
            conf = self.directory / "conf" / name
            conf.mkdir(parents=True, exist_ok=True)
            files = {
                "core-site": {"fs.defaultFS": self.hdfs.rpc, "hadoop.tmp.dir": str(self.directory / "tmp")},
                "hdfs-site": self.hdfs.client_site(),
                "yarn-site": self._site(),
            }
            if name == RESOURCEMANAGER:
                files["capacity-scheduler"] = _SCHEDULER
            for file, properties in files.items():
                (conf / f"{file}.xml").write_text(site_xml(properties), encoding="utf-8")
            if name != "client":
                (conf / "log4j.properties").write_text(LOGGING)

    @property
    def python(self) -> Path:
        """Virtual environment of the containers, named like its interpreter, such as `python3.11`."""
        return bare_python(self.directory)

    def _site(self) -> dict[str, str]:
        addresses = {name: f"{HOST}:{port}" for name, port in self.ports.items()}
        manager, node = "yarn.resourcemanager", "yarn.nodemanager"
        return {
            f"{manager}.hostname": HOST,
            f"{manager}.address": addresses[RESOURCEMANAGER],
            f"{manager}.scheduler.address": addresses["scheduler"],
            f"{manager}.resource-tracker.address": addresses["tracker"],
            f"{manager}.admin.address": addresses["admin"],
            f"{manager}.webapp.address": addresses["resourcemanager-web"],
            # Applications and their state survive the ResourceManager.
            f"{manager}.recovery.enabled": "true",
            f"{manager}.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore",
            f"{manager}.fs.state-store.uri": (self.directory / "data" / "state").as_uri(),
            f"{manager}.work-preserving-recovery.scheduling-wait-ms": "500",
            # Clients retry each second, not each 30 s.
            f"{manager}.connect.retry-interval.ms": "1000",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "60000",  # by default ten minutes
            f"{manager}.nodemanagers.heartbeat-interval-ms": "200",
            f"{manager}.resource-tracker.client.thread-count": "3",
            f"{manager}.client.thread-count": "3",
            f"{manager}.scheduler.client.thread-count": "3",
            f"{node}.hostname": HOST,
            f"{node}.address": addresses[NODEMANAGER],
            f"{node}.localizer.address": addresses["localizer"],
            f"{node}.webapp.address": addresses["nodemanager-web"],
            f"{node}.local-dirs": str(self.directory / "data" / "local"),
            f"{node}.log-dirs": str(self.directory / "logs" / "containers"),
            f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            f"{node}.vmem-check-enabled": "false",
            f"{node}.pmem-check-enabled": "false",
            f"{node}.resource.memory-mb": str(MEMORY_MB),
            f"{node}.resource.cpu-vcores": str(CORES),
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.maximum-allocation-mb": str(MEMORY_MB),
            f"{node}.container-manager.thread-count": "3",
            f"{node}.localizer.client.thread-count": "2",
            f"{node}.localizer.fetch.thread-count": "2",
            f"{node}.sleep-delay-before-sigkill.ms": "250",
            f"{node}.process-kill-wait.ms": "1000",
        }

    def environment(self) -> Mapping[str, str]:
        """Return the environment of containers: Java and the bare Python, without settings of this process."""
        return bare_environment(self.directory, "HADOOP_", "YARN_")

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command line of a server, with its directory of configuration on the class path."""
        package = "org.apache.hadoop.yarn.server"
        main = f"{package}.resourcemanager.ResourceManager"
        options = [
            *log4j1_options(name, self.server(name).log, self.log_ports),
            f"-Dhadoop.log.dir={self.server(name).log.parent}",
            f"-Dyarn.log.dir={self.server(name).log.parent}",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",  # for classes generated by guice
            # Without Hadoop's native library, a NodeManager runs `chmod` for each file of an archive. VFORK takes a
            # quarter of the time of Java's default, which starts a helper process.
            "-Djdk.lang.Process.launchMechanism=VFORK",
        ]
        if name == NODEMANAGER:
            main = f"{package}.nodemanager.NodeManager"
        appenders = [ensure("appenders") / "*"] if self.log_ports is not None else []
        path = [lib / "*", *appenders, self.directory / "conf" / name]
        return java_command(java, path, main, heap_mb=HEAP_MB, options=options)

    def start_blocker(self, name: str) -> str | None:
        """Return a text for the NodeManager while the ResourceManager does not listen.

        None if a start may proceed. A NodeManager ends without a ResourceManager.
        """
        if name == RESOURCEMANAGER or self.ports["tracker"] in listeners():
            return None
        return "the ResourceManager does not listen yet"

    def unready_reason(self) -> str | None:
        """Return the reason why YARN is not ready; None if it is ready.

        The ResourceManager must answer, and the NodeManager be registered.
        """
        page = self.fetch("nodes")
        if page is None:
            return "the ResourceManager does not answer yet"
        nodes = (page["nodes"] or {}).get("node", [])
        ready = [node for node in nodes if node["state"] == "RUNNING"]
        # A killed NodeManager counts as running for a minute, so the new NodeManager is queried too.
        status, _ = fetch_page(HOST, self.ports["nodemanager-web"], "/ws/v1/node/info")
        return None if ready and status == 200 else "the NodeManager is not registered yet"

    def fetch(self, path: str) -> dict[str, Any] | None:
        """Return the JSON at `path` below `/ws/v1/cluster/` of the ResourceManager; None if no JSON comes."""
        try:
            page: dict[str, Any] = json.loads(
                fetch_page(HOST, self.ports["resourcemanager-web"], f"/ws/v1/cluster/{path}")[1]
            )
        except ValueError:
            return None
        return page


_QUEUE = "yarn.scheduler.capacity.root"
_SCHEDULER = {
    f"{_QUEUE}.queues": "default",
    f"{_QUEUE}.default.capacity": "100",
    f"{_QUEUE}.default.maximum-capacity": "100",
    f"{_QUEUE}.default.state": "RUNNING",
    # By default 10 % of the resources, less than one ApplicationMaster needs on this node.
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}

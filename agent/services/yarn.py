"""YARN on this machine: a ResourceManager and a NodeManager, for applications that have their files on our HDFS."""

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
from flafka.agent.web import page

RESOURCEMANAGER, NODEMANAGER = "resourcemanager", "nodemanager"
HEAP_MB = 160
MEMORY_MB, CORES = 4096, 8
"""What the NodeManager has for containers: for an application with two executors of Spark's default size."""


class YarnCluster(Cluster):
    """Apache Hadoop YARN; servers `resourcemanager` and `nodemanager`, which has 4 GB for containers.

    Containers run Python in an empty virtual environment. The ResourceManager keeps its state on the local disk:
    applications go on after `kill -9` of it, once it is back. What ran in the containers of a NodeManager
    that was killed is given up.
    """

    service: ClassVar[str] = "yarn"
    # A NodeManager ends its containers at once, and then waits 10 s for logs that it is to delete in three hours.
    grace: ClassVar[float] = 6.0

    def __init__(self, directory: Path | str, hdfs: HdfsCluster, *, fixed_ports: bool = True) -> None:
        """Applications have their files on `hdfs`, which has to run with it."""
        super().__init__(directory, fixed_ports=fixed_ports)
        self.hdfs = hdfs

    @classmethod
    def default(cls) -> Self:
        """The user's own, on the user's own HDFS."""
        return cls(data_directory() / cls.service, HdfsCluster.default())

    @property
    def conf(self) -> Path:
        """What HADOOP_CONF_DIR has to name for clients."""
        return self.directory / "conf" / "client"

    @property
    def address(self) -> str:
        """`http://host:port` of the ResourceManager's web pages."""
        return f"http://{HOST}:{self.ports['resourcemanager-web']}"

    def variables(self) -> Mapping[str, str]:
        """HADOOP_CONF_DIR is all that clients of YARN, Spark among them, need."""
        return {"FLAFKA_YARN": self.address, "HADOOP_CONF_DIR": str(self.conf)}

    def names(self) -> list[str]:
        """`resourcemanager`, then `nodemanager`."""
        return [RESOURCEMANAGER, NODEMANAGER]

    def default_ports(self) -> Mapping[str, int]:
        """18030 to 18033 and web pages at 18088 of the ResourceManager; 18040, 18041 and 18042 of the NodeManager."""
        manager = {RESOURCEMANAGER: 18032, "scheduler": 18030, "tracker": 18031, "admin": 18033}
        return manager | {
            "resourcemanager-web": 18088,
            NODEMANAGER: 18041,
            "localizer": 18040,
            "nodemanager-web": 18042,
        }

    def prepare(self, java: Java, lib: Path) -> None:
        """A folder of configuration for each server and for clients, and what containers find on their PATH."""
        self.configure()
        make_bare_java(self.directory, java)
        make_bare_python(self.directory)

    def configure(self) -> None:
        """Write the folders of configuration, before the servers start if need be. Raises `ServiceError`."""
        if " " in str(self.directory):
            raise ServiceError(f"YARN runs no containers in a directory with a space in its name: {self.directory}")
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
        """The containers' virtual environment, named `python3.11` or the like as its interpreter is."""
        return bare_python(self.directory)

    def _site(self) -> dict[str, str]:
        at = {name: f"{HOST}:{port}" for name, port in self.ports.items()}
        manager, node = "yarn.resourcemanager", "yarn.nodemanager"
        return {
            f"{manager}.hostname": HOST,
            f"{manager}.address": at[RESOURCEMANAGER],
            f"{manager}.scheduler.address": at["scheduler"],
            f"{manager}.resource-tracker.address": at["tracker"],
            f"{manager}.admin.address": at["admin"],
            f"{manager}.webapp.address": at["resourcemanager-web"],
            # What is known of applications survives the ResourceManager, and so do they.
            f"{manager}.recovery.enabled": "true",
            f"{manager}.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore",
            f"{manager}.fs.state-store.uri": (self.directory / "data" / "state").as_uri(),
            f"{manager}.work-preserving-recovery.scheduling-wait-ms": "500",
            # Who finds it away asks again each second, and not each half minute.
            f"{manager}.connect.retry-interval.ms": "1000",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "60000",  # ten minutes, unless set here
            f"{manager}.nodemanagers.heartbeat-interval-ms": "200",
            f"{manager}.resource-tracker.client.thread-count": "3",
            f"{manager}.client.thread-count": "3",
            f"{manager}.scheduler.client.thread-count": "3",
            f"{node}.hostname": HOST,
            f"{node}.address": at[NODEMANAGER],
            f"{node}.localizer.address": at["localizer"],
            f"{node}.webapp.address": at["nodemanager-web"],
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
        """What containers inherit: Java and the bare Python; none of this process's own settings."""
        return bare_environment(self.directory, "HADOOP_", "YARN_")

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """The ResourceManager's or NodeManager's main class; its folder of configuration is on the class path."""
        package = "org.apache.hadoop.yarn.server"
        main = f"{package}.resourcemanager.ResourceManager"
        options = [
            *log4j1_options(name, self.server(name).log, self.logs_to),
            f"-Dhadoop.log.dir={self.server(name).log.parent}",
            f"-Dyarn.log.dir={self.server(name).log.parent}",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",  # guice makes classes with it
            # Without Hadoop's native library a NodeManager runs `chmod` for each file of an archive: in a quarter
            # of the time where Java starts it without a helper of its own.
            "-Djdk.lang.Process.launchMechanism=VFORK",
        ]
        if name == NODEMANAGER:
            main = f"{package}.nodemanager.NodeManager"
        appenders = [ensure("appenders") / "*"] if self.logs_to is not None else []
        path = [lib / "*", *appenders, self.directory / "conf" / name]
        return java_command(java, path, main, heap_mb=HEAP_MB, options=options)

    def missing_for(self, name: str) -> str | None:
        """A NodeManager that finds no ResourceManager ends."""
        if name == RESOURCEMANAGER or self.ports["tracker"] in listeners():
            return None
        return "the ResourceManager does not listen yet"

    def waiting_for(self) -> str | None:
        """Ready is: the ResourceManager answers, and has heard of the NodeManager that runs now."""
        told = self.ask("nodes")
        if told is None:
            return "the ResourceManager does not answer yet"
        nodes = (told["nodes"] or {}).get("node", [])
        ready = [node for node in nodes if node["state"] == "RUNNING"]
        # A killed one counts as running for a minute, so the new one is asked as well.
        status, _ = page(HOST, self.ports["nodemanager-web"], "/ws/v1/node/info")
        return None if ready and status == 200 else "the NodeManager is not registered yet"

    def ask(self, path: str) -> dict[str, Any] | None:
        """What the ResourceManager tells at that path of its REST interface; None without an answer."""
        try:
            told: dict[str, Any] = json.loads(
                page(HOST, self.ports["resourcemanager-web"], f"/ws/v1/cluster/{path}")[1]
            )
        except ValueError:
            return None
        return told


_QUEUE = "yarn.scheduler.capacity.root"
_SCHEDULER = {
    f"{_QUEUE}.queues": "default",
    f"{_QUEUE}.default.capacity": "100",
    f"{_QUEUE}.default.maximum-capacity": "100",
    f"{_QUEUE}.default.state": "RUNNING",
    # Each Spark application has a container to look after it, and a tenth of this node is less than that one.
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}

"""HBase on this host: one standalone process, and a Thrift server (version 1)."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, is_listening, java_command, site_xml
from flafka.agent.services.logs import LOG4J2, log4j2_options

MASTER, THRIFT = "master", "thrift"
MASTER_HEAP_MB, THRIFT_HEAP_MB = 192, 128

# Modules of the JDK that HBase accesses, from its own scripts.
JVM_MODULES = [
    *("--add-modules=jdk.unsupported", "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED"),
    *("--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",),
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            *("java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent"),
            *("jdk.internal.ref", "sun.nio.ch"),
        )
    ),
    "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
]


TOOLS = {
    "version": "org.apache.hadoop.hbase.util.VersionInfo",
    "canary": "org.apache.hadoop.hbase.tool.CanaryTool",
    "hfile": "org.apache.hadoop.hbase.io.hfile.HFilePrettyPrinter",
    "wal": "org.apache.hadoop.hbase.wal.WALPrettyPrinter",
    "zkcli": "org.apache.hadoop.hbase.zookeeper.ZKMainServer",
}
"""Main class of each tool, by its name in HBase's own script."""


class HBaseCluster(Cluster):
    """Apache HBase, standalone, with its files on the local disk.

    Servers are `master` (with ZooKeeper and the regions) and `thrift` (binary protocol, buffered transport).
    Acknowledged writes survive `kill -9` of either, but not a power failure.
    """

    service: ClassVar[str] = "hbase"

    @property
    def address(self) -> str:
        """Address `host:port` of the Thrift server, for the option `thrift` of the sink."""
        return f"{HOST}:{self.ports[THRIFT]}"

    def names(self) -> list[str]:
        """Return `master`, then `thrift`."""
        return [MASTER, THRIFT]

    def default_ports(self) -> Mapping[str, int]:
        """Return 19090 for Thrift, 16100 for the master, 16120 for regions, 12181 for ZooKeeper."""
        return {THRIFT: 19090, MASTER: 16100, "regions": 16120, "zookeeper": 12181}

    def prepare(self, java: Java, lib: Path) -> None:
        """Write one directory of configuration for both servers."""
        conf = self.directory / "conf"
        for folder in (conf, self.directory / "data", self.server(MASTER).log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        (conf / "log4j2.properties").write_text(LOG4J2)
        (conf / "hbase-site.xml").write_text(site_xml(self._site()), encoding="utf-8")

    def _site(self) -> dict[str, str]:
        ports = {name: str(port) for name, port in self.ports.items()}
        return {
            "hbase.rootdir": f"file://{self.directory / 'data' / 'hbase'}",  # a space stays unencoded
            "hbase.tmp.dir": str(self.directory / "tmp"),
            "hbase.unsafe.stream.capability.enforce": "false",  # the local file system has no hsync
            "hbase.zookeeper.quorum": HOST,
            "hbase.zookeeper.property.clientPort": ports["zookeeper"],
            "hbase.zookeeper.property.clientPortAddress": HOST,
            "hbase.zookeeper.property.dataDir": str(self.directory / "data" / "zookeeper"),
            # A new master waits until the session of a killed one expires.
            "hbase.zookeeper.property.tickTime": "1000",
            "zookeeper.session.timeout": "4000",
            "zookeeper.recovery.retry": "1",
            "zookeeper.recovery.retry.intervalmill": "200",
            "hbase.master.ipc.address": HOST,
            "hbase.master.hostname": "localhost",
            "hbase.master.port": ports[MASTER],
            "hbase.master.info.port": "-1",  # its web pages are not in the jars
            "hbase.regionserver.ipc.address": HOST,
            "hbase.regionserver.hostname": "localhost",
            "hbase.regionserver.port": ports["regions"],
            "hbase.regionserver.info.port": "-1",
            "hbase.regionserver.handler.count": "6",
            "hbase.regionserver.metahandler.count": "2",
            "hbase.master.handler.count": "4",
            "hbase.regionserver.global.memstore.size": "0.3",
            "hfile.block.cache.size": "0.2",
            "hbase.regionserver.thrift.ipaddress": HOST,
            "hbase.regionserver.thrift.port": ports[THRIFT],
            "hbase.thrift.info.port": "-1",
            "hbase.thrift.minWorkerThreads": "4",
            # The Thrift server reports unreachable regions after seconds, not after many minutes.
            "hbase.client.retries.number": "4",
            "hbase.rpc.timeout": "10000",
            "hbase.client.operation.timeout": "20000",
        }

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command `HMaster start` or `ThriftServer start`."""
        package = "org.apache.hadoop.hbase"
        main = f"{package}.master.HMaster" if name == MASTER else f"{package}.thrift.ThriftServer"
        settings = self.directory / "conf" / "log4j2.properties"
        options = [
            *JVM_MODULES,
            f"-Dhbase.log.dir={self.server(name).log.parent}",
            *log4j2_options(name, self.server(name).log, settings, self.log_ports),
        ]
        heap = MASTER_HEAP_MB if name == MASTER else THRIFT_HEAP_MB
        return [
            *java_command(java, [lib / "*", self.directory / "conf"], main, heap_mb=heap, options=options),
            "start",
        ]

    def shell(self, arguments: Sequence[str], java: Java, lib: Path) -> list[str]:
        """Return the command line of a tool in `TOOLS`, or of a class by its full name.

        Raises ServiceError for others.
        """
        tool, *tool_arguments = arguments or ["shell"]
        if tool not in TOOLS and "." not in tool:
            host, _, port = self.address.partition(":")
            raise ServiceError(
                (
                    "HBase's shell needs JRuby, which is larger than all of HBase's own jars and is not included\n"
                    if tool == "shell"
                    else f"no command {tool!r}\n"
                )
                + f"  use {', '.join(TOOLS)}, or the full name of a class of HBase\n"
                f"  tables, from Python: happybase.Connection({host!r}, {port}).table('name').scan()"
            )
        options = [*JVM_MODULES, f"-Dflafka.log={self.server('shell').log}"]
        command = java_command(
            java, [lib / "*", self.directory / "conf"], TOOLS.get(tool, tool), heap_mb=128, options=options
        )
        return [*command, *tool_arguments]

    def unready_reason(self) -> str | None:
        """Return the reason why HBase is not ready; None if it is ready.

        The master must be initialized, and every region reachable by Thrift. Raises ServiceError without `happybase`.
        """
        try:
            import happybase
            from Hbase_thrift import IOError as HBaseError  # generated by happybase from the Thrift file
            from thriftpy2.thrift import TException
        except ImportError:
            raise ServiceError("connecting to HBase needs happybase: pip install 'flafka[sandbox]'") from None
        if not is_listening(self.ports[THRIFT]):
            return "thrift does not listen yet"
        try:
            with contextlib.closing(happybase.Connection(HOST, self.ports[THRIFT], timeout=10_000)) as connection:
                try:
                    # Without effect; only an initialized master reports a missing table.
                    connection.enable_table("no-such-table")
                except HBaseError as error:
                    if b"TableNotFoundException" not in error.message:
                        return "the master is not initialized yet"
                for name in connection.tables():
                    table = connection.table(name)
                    for region in table.regions() if connection.is_table_enabled(name) else ():
                        next(table.scan(row_start=region["start_key"], limit=1), None)
        except (OSError, TException) as error:
            return f"the regions do not answer yet ({type(error).__name__})"
        return None

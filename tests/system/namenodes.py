"""HDFS with two NameNodes: one is active; the other, the standby, answers reads that are seconds old."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import Java, find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.hdfs import NAMENODE, HdfsCluster
from flafka.agent.services.running import until

SECOND = "namenode-2"
NAMENODES = {NAMENODE: "nn1", SECOND: "nn2"}
SERVICE = "pair"


class PairedHdfs(HdfsCluster):
    """Servers `namenode`, `namenode-2` and `datanode-1`. The NameNodes share their edits by a local directory, and
    none is active until `activate`."""

    stale_seconds = 4
    """Greatest age of the standby's answers."""

    def names(self) -> list[str]:
        """Return the servers, the NameNodes first."""
        return [*NAMENODES, *self._datanodes]

    def default_ports(self) -> Mapping[str, int]:
        """Return the default ports, including the second NameNode's."""
        return {**super().default_ports(), SECOND: 18021, f"{SECOND}-http": 19871}

    @property
    def addresses(self) -> str:
        """Return both addresses as the option `hdfs.webhdfs` takes them."""
        return ",".join(f"{self.name}:{self.ports[f'{name}-http']}" for name in NAMENODES)

    @property
    def webhdfs(self) -> str:
        """Return the address of the active NameNode, or of the first one if none is active."""
        return f"{self.name}:{self.ports[f'{self.active() or NAMENODE}-http']}"

    def _core_site(self) -> dict[str, str]:
        return {**super()._core_site(), "fs.defaultFS": f"hdfs://{SERVICE}"}

    def _hdfs_site(self, name: str) -> dict[str, str]:
        site, ports = super()._hdfs_site(NAMENODE if name in NAMENODES else name), self.ports
        for option in ("rpc-address", "http-address"):
            del site[f"dfs.namenode.{option}"]
        site |= {
            "dfs.nameservices": SERVICE,
            f"dfs.ha.namenodes.{SERVICE}": ",".join(NAMENODES.values()),
            f"dfs.client.failover.proxy.provider.{SERVICE}": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
            "dfs.namenode.shared.edits.dir": (self.directory / "data" / "edits").as_uri(),
            "dfs.namenode.name.dir": str(self.directory / "data" / (name if name in NAMENODES else NAMENODE)),
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.allow.stale.reads": "true",
            "dfs.ha.log-roll.period": f"{self.stale_seconds}s",
            "dfs.ha.tail-edits.period": "500ms",
            # Otherwise clients of the DataNodes wait for minutes for a NameNode that has ended.
            "dfs.client.failover.sleep.base.millis": "200",
            "dfs.client.failover.sleep.max.millis": "1000",
            "ipc.client.connect.max.retries": "1",
            "ipc.client.connect.timeout": "3000",
            "ipc.client.connect.max.retries.on.timeouts": "1",
        }
        for server, node_id in NAMENODES.items():
            site[f"dfs.namenode.rpc-address.{SERVICE}.{node_id}"] = f"{self.name}:{ports[server]}"
            site[f"dfs.namenode.http-address.{SERVICE}.{node_id}"] = f"{self.name}:{ports[f'{server}-http']}"
        if name in NAMENODES:
            site["dfs.ha.namenode.id"] = NAMENODES[name]
        return site

    def prepare(self, java: Java, lib: Path) -> None:
        """Have the second NameNode start with a copy of the formatted directory of the first."""
        super().prepare(java, lib)
        first, second = (self.directory / "data" / name for name in NAMENODES)
        if not (second / "current" / "VERSION").exists():
            shutil.copytree(first, second, dirs_exist_ok=True)

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command; `namenode-2` has that of a NameNode."""
        command = super().command(name, java, lib)
        if name == SECOND:
            command[-1] = command[-1].replace("datanode.DataNode", "namenode.NameNode")
        return command

    def unready_reason(self) -> str | None:
        """Return None once both NameNodes answer, are out of safe mode and know the DataNode."""
        for name in NAMENODES:
            info = self.jmx(name, "NameNode", "FSNamesystemState")
            if info is None or info["FSState"] != "Operational" or not info["NumLiveDataNodes"]:
                return f"{name} is {info['FSState'] if info else 'down'}"
        return None

    def state_of(self, name: str) -> str:
        """Return `active`, `standby`, or `down`."""
        return str((self.jmx(name, "NameNode", "NameNodeStatus") or {}).get("State", "down"))

    def active(self) -> str | None:
        """Return the active NameNode, or None."""
        return next((name for name in NAMENODES if self.state_of(name) == "active"), None)

    def haadmin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Hadoop's own command, with Kerberos as the user of the NameNodes."""
        lib, java = ensure(self.service), find_java()
        options = [*self.kerberos_options(), f"-Dflafka.log={self.server('shell').log}"]
        environment = dict(os.environ)
        if self.kdc is not None:
            cache = self.directory / "tickets"
            self.kdc.kinit("nn/localhost", cache)
            environment["KRB5CCNAME"] = str(cache)
        classpath, main = [lib / "*", self._conf(NAMENODE)], "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
        command = java_command(java, classpath, main, heap_mb=64, options=options)
        return subprocess.Popen(
            [*command, "-ns", SERVICE, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def activate(self, name: str) -> None:
        """Make this NameNode the active one, after the other has become a standby."""
        self._transition("Active", name, "--forceactive")  # needed when the other does not answer

    def stand_by(self, name: str) -> None:
        """Make this NameNode a standby."""
        self._transition("Standby", name)

    def _transition(self, to: str, name: str, *options: str) -> None:
        def done() -> bool:
            return self.haadmin(f"-transitionTo{to}", *options, NAMENODES[name]).wait(120) == 0

        until(done, f"{name} to be {to}")

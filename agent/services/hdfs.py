"""HDFS on this host: a NameNode and one or more DataNodes, perhaps with Kerberos."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, java_command, site_xml
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.logs import log4j1_options
from flafka.agent.web import fetch_page
from flafka.plugins.net.gssapi import Credential, KerberosError

if TYPE_CHECKING:
    import requests

NAMENODE = "namenode"
NAMENODE_HEAP_MB, DATANODE_HEAP_MB = 128, 96

CLOSE_DELAY = "dfs.client.block.write.locateFollowingBlock.initial.delay.ms"
"""Property: milliseconds until a client retries to close a file; by default 400."""

LOGGING = """\
log4j.rootLogger=INFO,file
log4j.appender.file=org.apache.log4j.RollingFileAppender
log4j.appender.file.File=${flafka.log}
log4j.appender.file.MaxFileSize=10MB
log4j.appender.file.MaxBackupIndex=3
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


@dataclass(frozen=True)
class HdfsStatus:
    """Status of the cluster by its NameNode, and the resident memory in MB of each running server."""

    live_datanodes: int
    state: str
    """Operational, Safemode, or down if the NameNode does not answer."""
    rss_mb: dict[str, int]
    webhdfs: str
    directory: str

    @property
    def up(self) -> bool:
        """True if files can be written and read."""
        return self.state == "Operational" and self.live_datanodes > 0


class HdfsCluster(Cluster):
    """Apache Hadoop HDFS; servers are `namenode`, `datanode-1`, …. Without Kerberos, permissions are not checked.

    Closed files survive `kill -9` of any server. With one DataNode, they are unreadable until it runs again.
    """

    service: ClassVar[str] = "hdfs"

    def __init__(
        self,
        directory: Path | str,
        *,
        datanodes: int | None = None,
        kdc: Kdc | None = None,
        token_seconds: tuple[int, int] = (86_400, 604_800),
        fixed_ports: bool = True,
    ) -> None:
        """`datanodes` is the number of DataNodes; None for the previous number, at first 1.

        Files have up to three replicas. With `kdc`, which runs, all servers require Kerberos. `token_seconds` are the
        interval after which a delegation token must be renewed, and its longest life.
        """
        super().__init__(directory, fixed_ports=fixed_ports)
        count = datanodes or self.state().get("datanodes", 1)
        self._datanodes = [f"datanode-{number}" for number in range(1, count + 1)]
        self.kdc, self._token_seconds = kdc, token_seconds
        # Principals have the name of a host, never an address.
        self.name = HOST if kdc is None else "localhost"

    @property
    def webhdfs(self) -> str:
        """Address `host:port` of the NameNode's HTTP server. Raises `ServiceError` before the first start."""
        return f"{self.name}:{self.ports['namenode-http']}"

    @property
    def address(self) -> str:
        """Address `http://host:port` of the NameNode, for its web UI and WebHDFS."""
        return f"http://{self.webhdfs}"

    @property
    def rpc(self) -> str:
        """URI `hdfs://host:port` of the file system for Java clients and Spark."""
        return f"hdfs://{self.name}:{self.ports['namenode']}"

    def variables(self) -> Mapping[str, str]:
        """Return FLAFKA_HDFS, the authority of webhdfs:// paths, and FLAFKA_HDFS_RPC."""
        return {"FLAFKA_HDFS": self.webhdfs, "FLAFKA_HDFS_RPC": self.rpc}

    def names(self) -> list[str]:
        """Return `namenode`, then the DataNodes."""
        return [NAMENODE, *self._datanodes]

    def default_ports(self) -> Mapping[str, int]:
        """Return the ports of the NameNode and the DataNodes.

        NameNode: 18020 (RPC), 19870 (HTTP). First DataNode: 19864 (HTTP), 19866 (data), 19867 (IPC); 10 higher for
        each further one.
        """
        ports = {"namenode": 18020, "namenode-http": 19870}
        for index, name in enumerate(self._datanodes):
            base = 19864 + index * 10
            ports |= {f"{name}-http": base, name: base + 2, f"{name}-ipc": base + 3}
        return ports

    def prepare(self, java: Java, lib: Path) -> None:
        """Write the configuration of each server, and format the NameNode before the first start.

        Raises ServiceError.
        """
        self.save_state(datanodes=len(self._datanodes))
        if self.kdc is not None:
            try:
                self._negotiate(self.kdc)
            except KerberosError as e:
                raise ServiceError(f"the KDC gives no ticket: {e}") from e
        for name in self.names():
            conf = self._conf(name)
            for folder in (conf, self.directory / "data" / name, self.server(name).log.parent):
                folder.mkdir(parents=True, exist_ok=True)
            (conf / "core-site.xml").write_text(site_xml(self._core_site()), encoding="utf-8")
            (conf / "hdfs-site.xml").write_text(site_xml(self._hdfs_site(name)), encoding="utf-8")
            (conf / "log4j.properties").write_text(LOGGING)
        if not (self.directory / "data" / NAMENODE / "current" / "VERSION").exists():
            command = [*self.command(NAMENODE, java, lib), "-format", "-nonInteractive"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise ServiceError(f"cannot format HDFS:\n{self.server(NAMENODE).log_tail()}{result.stderr}")

    def _conf(self, name: str) -> Path:
        return self.directory / "conf" / name

    def _core_site(self) -> dict[str, str]:
        user = getpass.getuser()
        site = {
            "fs.defaultFS": self.rpc,
            "hadoop.tmp.dir": str(self.directory / "tmp"),
            "hadoop.http.staticuser.user": user,
        }
        if self.kdc is None:
            return site | {f"hadoop.proxyuser.{user}.hosts": "*", f"hadoop.proxyuser.{user}.groups": "*"}
        secret = self.directory / "conf" / "http-secret"
        if not secret.exists():  # whoever reads it can sign cookies of any user
            draft = secret.with_suffix(".new")
            draft.touch(mode=0o600)
            draft.write_text(os.urandom(16).hex())
            draft.replace(secret)
        return site | {
            "hadoop.proxyuser.flafka.hosts": "*",
            "hadoop.proxyuser.flafka.users": "alice",
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            # Without these, the web server admits anybody who names a user.
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "hadoop.http.authentication.kerberos.keytab": str(self.kdc.service_keytab),
            "hadoop.http.authentication.simple.anonymous.allowed": "false",
            "hadoop.http.authentication.signature.secret.file": str(secret),
            "hadoop.rpc.protection": "authentication",
            "hadoop.security.auth_to_local": "RULE:[2:$1@$0]([nd]n@.*)s/.*/hdfs/\nDEFAULT",
        }

    def _hdfs_site(self, name: str) -> dict[str, str]:
        ports = self.ports
        site = {
            "dfs.replication": str(min(len(self._datanodes), 3)),
            "dfs.namenode.rpc-address": f"{self.name}:{ports['namenode']}",
            "dfs.namenode.http-address": self.webhdfs,
            # Plain paths: the DataNode would encode a space in a URI twice.
            "dfs.namenode.name.dir": str(self.directory / "data" / NAMENODE),
            "dfs.permissions.enabled": "false",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
            # Leave safe mode when the DataNodes have reported, not 30 s later.
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.safemode.min.datanodes": "1",
            # Detect a dead DataNode within 3 s, and remove it within 12 s. Until then WebHDFS redirects to it.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            "dfs.namenode.stale.datanode.interval": "3000",
            "dfs.namenode.stale.datanode.minimum.interval": "2",
            "dfs.namenode.avoid.read.stale.datanode": "true",
            "dfs.namenode.avoid.write.stale.datanode": "true",
            # A file is closed once its last block is reported to the NameNode, usually within milliseconds.
            CLOSE_DELAY: "10",
            "dfs.namenode.handler.count": "4",
            "dfs.datanode.handler.count": "3",
        }
        if self.kdc is not None:
            site |= self._kerberos_site(self.kdc)
        if name != NAMENODE:
            site |= {
                "dfs.datanode.data.dir": str(self.directory / "data" / name),
                "dfs.datanode.hostname": self.name,
                "dfs.datanode.address": f"{HOST}:{ports[name]}",
                "dfs.datanode.http.address": f"{HOST}:{ports[f'{name}-http']}",
                "dfs.datanode.ipc.address": f"{HOST}:{ports[f'{name}-ipc']}",
                "dfs.datanode.du.reserved": "0",
            }
        return site

    def _kerberos_site(self, kdc: Kdc) -> dict[str, str]:
        """Return the properties of servers that require Kerberos, without root: data ports are not privileged."""
        keytab, (interval, life) = str(kdc.service_keytab), self._token_seconds
        return {
            "dfs.permissions.enabled": "true",
            "dfs.block.access.token.enable": "true",
            "dfs.namenode.kerberos.principal": f"nn/localhost@{REALM}",
            "dfs.namenode.keytab.file": keytab,
            "dfs.datanode.kerberos.principal": f"dn/localhost@{REALM}",
            "dfs.datanode.keytab.file": keytab,
            "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "dfs.web.authentication.kerberos.keytab": keytab,
            "dfs.namenode.kerberos.internal.spnego.principal": f"HTTP/localhost@{REALM}",
            "dfs.data.transfer.protection": "authentication",
            "ignore.secure.ports.for.testing": "true",
            "dfs.namenode.delegation.token.renew-interval": str(interval * 1000),
            "dfs.namenode.delegation.token.max-lifetime": str(life * 1000),
        }

    def client_site(self) -> dict[str, str]:
        """Return the properties of hdfs-site.xml for clients, by name.

        A file has a replica on each DataNode, at most three. Writers do not replace a failed DataNode, and retry to
        close a file after 10 ms.
        """
        site = self._hdfs_site(NAMENODE)
        return {name: value for name, value in site.items() if name.startswith(("dfs.client.", "dfs.replication"))}

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command line of the NameNode or a DataNode, with its configuration on the class path."""
        package = "org.apache.hadoop.hdfs.server"
        main = f"{package}.namenode.NameNode" if name == NAMENODE else f"{package}.datanode.DataNode"
        options = [
            *self.kerberos_options(),
            *log4j1_options(name, self.server(name).log, self.log_ports),
            f"-Dhadoop.log.dir={self.server(name).log.parent}",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",  # otherwise WebHDFS answers 500 on Java 17 and newer
        ]
        heap = NAMENODE_HEAP_MB if name == NAMENODE else DATANODE_HEAP_MB
        # Last, so that Hadoop's version of a library has precedence over that of Flume's appender.
        appenders = [ensure("appenders") / "*"] if self.log_ports is not None else []
        return java_command(java, [lib / "*", *appenders, self._conf(name)], main, heap_mb=heap, options=options)

    def kerberos_options(self) -> list[str]:
        """Return the options of a JVM that uses Kerberos."""
        if self.kdc is None:
            return []
        return [
            f"-Djava.security.krb5.conf={self.kdc.krb5_conf}",
            "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
            # A replay cache would refuse two requests within the same microsecond.
            "-Dsun.security.krb5.rcache=none",
        ]

    def shell(self, arguments: Sequence[str], java: Java, lib: Path) -> list[str]:
        """Return a command line of `hdfs`: `-ls /` or `dfs -ls /`, `dfsadmin …`, `fsck …`.

        Raises ServiceError for another command.
        """
        tools = {
            "dfs": "org.apache.hadoop.fs.FsShell",
            "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
            "fsck": "org.apache.hadoop.hdfs.tools.DFSck",
        }
        tool, *tool_arguments = arguments if arguments and not arguments[0].startswith("-") else ["dfs", *arguments]
        if tool not in tools:
            raise ServiceError(f"no command {tool!r}: use {', '.join(tools)}, or an option of dfs, such as -ls /")
        options = [
            *self.kerberos_options(),
            f"-Dflafka.log={self.server('shell').log}",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
        ]
        command = java_command(java, [lib / "*", self._conf(NAMENODE)], tools[tool], heap_mb=128, options=options)
        return [*command, *tool_arguments]

    def unready_reason(self) -> str | None:
        """Return the reason why HDFS is not ready; None if it is ready.

        Safe mode must be off, and every DataNode live and registered.
        """
        status = self.status()
        if status.state != "Operational":
            return f"the NameNode is {status.state}"
        # A killed DataNode counts as live for 12 s, so each new DataNode is queried too.
        for name in self._datanodes:
            info = self.jmx(name, "DataNode", "DataNodeInfo")
            actors = json.loads((info or {}).get("BPServiceActorInfo") or "[]")
            if not actors or any(actor["ActorState"] != "RUNNING" for actor in actors):
                return f"{name} is not registered yet"
        missing = len(self._datanodes) - status.live_datanodes
        return f"{missing} DataNodes have not reported" if missing > 0 else None

    def status(self) -> HdfsStatus:
        """Return the status of the cluster. Raises `ServiceError` before the first start."""
        info = self.jmx(NAMENODE, "NameNode", "FSNamesystemState")
        rss = {name: rss for name in self.names() if (rss := self.server(name).rss_mb) is not None}
        live, state = (int(info["NumLiveDataNodes"]), str(info["FSState"])) if info else (0, "down")
        return HdfsStatus(live, state, rss, self.webhdfs, str(self.directory))

    def superuser_request(self, method: str, path: str, op: str, **parameters: str) -> requests.Response:
        """Send a request to WebHDFS with a ticket of the NameNode, who is the superuser, and return the answer.

        Redirects are followed. Raises KerberosError, and requests.RequestException.
        """
        import requests

        assert self.kdc is not None
        with requests.Session() as session:
            session.trust_env = False
            headers = {"Authorization": self._negotiate(self.kdc)}
            url = f"{self.address}/webhdfs/v1{path}"
            return session.request(method, url, params={"op": op, **parameters}, headers=headers, timeout=60)

    def _negotiate(self, kdc: Kdc) -> str:
        """Return an `Authorization` header for one request to a web server of this cluster. Raises KerberosError."""
        os.environ.update(kdc.variables())  # read by the library at each call
        credential = Credential(f"nn/localhost@{REALM}", str(kdc.service_keytab))
        try:
            return credential.negotiate("localhost")
        finally:
            credential.close()

    def jmx(self, name: str, service: str, bean: str) -> dict[str, Any] | None:
        """Return one JMX bean of a server; None if it does not answer."""
        path = f"/jmx?qry=Hadoop:service={service},name={bean}"
        try:
            headers = {} if self.kdc is None else {"Authorization": self._negotiate(self.kdc)}
            beans = json.loads(fetch_page(HOST, self.ports[f"{name}-http"], path, headers)[1])["beans"]
        except (ValueError, KeyError, KerberosError):
            return None
        return beans[0] if beans else None

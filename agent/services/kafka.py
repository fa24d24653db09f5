"""The project's own Kafka: three brokers, on one machine or on three, that survive the loss of any one of them."""

import base64
import contextlib
import hashlib
import logging
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import javaproperties

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, PortInUse, data_directory, java_command, listening
from flafka.agent.services.logs import LOG4J2, log4j2_options

NODES = (1, 2, 3)
PORT, CONTROLLER = 19092, 3
"""A broker's port where it has a host to itself, and how much higher its controller's is."""
HEAP_MB = 256

# Every broker is a controller too. Three replicas of which two have to have a record before it is acknowledged:
# any one broker may be killed without losing a record or stopping producers and consumers.
PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
# The first of several hosts waits for the others to be started, a day long.
initial.broker.registration.timeout.ms=86400000
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}

default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
share.coordinator.state.topic.num.partitions=4

# A misspelt topic is an error, not a new topic.
auto.create.topics.enable=false
num.partitions=3
# Room for a full batch of the channel, which is far smaller, and for one large event.
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
log.retention.hours=168
log.segment.bytes=134217728
# A sink that was switched off for a month still finds its place.
offsets.retention.minutes=43200
group.initial.rebalance.delay.ms=0

num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=4194304
"""


@dataclass(frozen=True)
class BrokerStatus:
    """One broker: `up` (in the cluster), `starting` (a process only) or `down`; pid and memory of this machine's."""

    node: int
    state: str
    port: int
    pid: int | None
    rss_mb: int | None
    host: str


@dataclass(frozen=True)
class KafkaStatus:
    """A moment of the cluster; `controller` is the leading controller's node, None when no quorum answers.

    `under_replicated` names partitions, `topic-0`, that have fewer replicas in sync than they should.
    """

    brokers: list[BrokerStatus]
    controller: int | None
    under_replicated: list[str]
    bootstrap_servers: str
    directory: str
    stranger: str | None
    """What answers in place of one of the brokers, in words."""

    @property
    def up(self) -> bool:
        """Whether every broker is in the cluster and it has a controller."""
        return self.controller is not None and all(broker.state == "up" for broker in self.brokers)


class BrokerListeners(NamedTuple):
    """Where one broker and its controller listen."""

    host: str
    port: int
    controller_port: int

    @classmethod
    def parse(cls, text: str) -> "BrokerListeners":
        """`host` or `host:port`. Raises `ServiceError`."""
        host, _, port = text.strip().partition(":")
        if not host or not (port or str(PORT)).isdecimal():
            raise ServiceError(f"{text!r} is not a host, or host:port")
        return cls(host, int(port or PORT), int(port or PORT) + CONTROLLER)


class KafkaCluster(Cluster):
    """Three Apache Kafka brokers, KRaft, replication 3, min ISR 2; servers `broker-1`, `broker-2`, `broker-3`.

    All three on this machine, or one on each of three hosts: then this is one host's broker. An acknowledged record
    survives `kill -9` of any broker, and of all of them; a power cut or the loss of a machine on three hosts only.
    """

    service: ClassVar[str] = "kafka"

    def __init__(
        self,
        directory: Path | str,
        *,
        heap_mb: int = HEAP_MB,
        fixed_ports: bool = True,
        node: int | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        """`heap_mb` applies to brokers started from now on; 512 is what benchmarks use.

        `node` of `hosts`, three times `host` or `host:port`: the one broker to run here. They are remembered; those
        of a later call must be the same. Raises `ServiceError`.
        """
        super().__init__(directory, fixed_ports=fixed_ports)
        self._heap_mb = heap_mb
        self._node: int | None = self.state().get("node", node)
        self._hosts = {n: BrokerListeners.parse(text) for n, text in enumerate(self.state().get("hosts", hosts), 1)}
        if self._node is not None:
            self._check_hosts(node, hosts)
            self.host = self._hosts[self._node].host

    def _check_hosts(self, node: int | None, hosts: Sequence[str]) -> None:
        if node is None:
            return
        if len(set(hosts)) != len(NODES) or node not in NODES:
            raise ServiceError(f"not a node of three different hosts: {node} of {', '.join(hosts) or 'none'}")
        asked = {number: BrokerListeners.parse(text) for number, text in enumerate(hosts, 1)}
        held = self.state() and (self.state().get("node"), self._hosts)
        if held and held != (node, asked):
            what = f"node {held[0]} of {', '.join(self.state()['hosts'])}" if held[0] else "all three brokers"
            raise ServiceError(f"{self.directory} holds {what}: give this one a directory of its own, with --dir")

    @classmethod
    def default(cls) -> Self:
        """The user's cluster: FLAFKA_CLUSTER_DIR, else `$XDG_DATA_HOME/flafka/cluster`, else below ~/.local/share."""
        return cls(os.environ.get("FLAFKA_CLUSTER_DIR") or data_directory() / "cluster")

    @property
    def address(self) -> str:
        """The bootstrap servers."""
        return self.bootstrap_servers

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,…` for clients. Raises `ServiceError` before the first start."""
        return ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self._endpoints().values())

    def _endpoints(self) -> dict[int, BrokerListeners]:
        """Those of all nodes. Raises `ServiceError` before the first start."""
        ports = self.ports
        return self._hosts or {
            n: BrokerListeners(HOST, ports[f"broker-{n}"], ports[f"controller-{n}"]) for n in NODES
        }

    def _nodes(self) -> Sequence[int]:
        """Those that run on this machine."""
        return NODES if self._node is None else (self._node,)

    def names(self) -> list[str]:
        """`broker-<node>`, of the nodes on this machine."""
        return [f"broker-{node}" for node in self._nodes()]

    def default_ports(self) -> Mapping[str, int]:
        """19092 to 19094 for clients, 19095 to 19097 between controllers; with a host for each: 19092 and 19095."""
        if self._node is not None:
            _, port, controller_port = self._hosts[self._node]
            return {f"broker-{self._node}": port, f"controller-{self._node}": controller_port}
        brokers = {f"broker-{node}": 19091 + node for node in NODES}
        return brokers | {f"controller-{node}": 19094 + node for node in NODES}

    def usual_ports(self) -> Mapping[str, int]:
        """Those of three hosts are in what the hosts are called."""
        return super().usual_ports() if self._node is None else self.default_ports()

    def _assign_ports(self) -> None:
        if self._node is not None:
            hosts = [f"{host}:{port}" for host, port, _ in self._hosts.values()]
            self.remember(node=self._node, hosts=hosts, ports=dict(self.default_ports()))
        super()._assign_ports()
        if "cluster_id" not in self.state():
            self.remember(cluster_id=self._stored_id() or self._new_id())

    def _stored_id(self) -> str | None:
        """The one with which this host's data was formatted."""
        for name in self.names():
            with contextlib.suppress(FileNotFoundError), self._storage(name).open("rb") as file:
                return str(javaproperties.load(file)["cluster.id"])
        return None

    def _new_id(self) -> str:
        # Hosts that are started one by one have to agree on it, so it comes from their names.
        names = repr(sorted(self._hosts.items())).encode()
        identity = hashlib.sha256(names).digest()[:16] if self._hosts else secrets.token_bytes(16)
        # 16 bytes as Kafka writes them; a leading dash would pass for an option of the formatting tool.
        return base64.urlsafe_b64encode(identity).decode().rstrip("=").replace("-", "_")

    @property
    def cluster_id(self) -> str:
        """Tells its brokers from others at the same addresses. Raises `ServiceError` before the first start."""
        try:
            return str(self.state()["cluster_id"])
        except KeyError:
            raise ServiceError(f"no cluster in {self.directory}: it was never started") from None

    def foreign(self, cluster_id: str | None) -> str | None:
        """What is wrong with a cluster of that id at these addresses, in words; None where it is this one."""
        if cluster_id == self.cluster_id:
            return None
        return (
            f"at {self.bootstrap_servers} answers the Kafka cluster {cluster_id}, not that of {self.directory}, "
            f"{self.cluster_id}: another user's?"
        )

    def foreign_answer(self) -> str | None:
        """`foreign` of what answers now; None where nothing does."""
        view = self._look()
        return None if view is None else self.foreign(view.cluster_id)

    def stranger(self, port: int) -> str:
        """Another Kafka cluster, or another program."""
        view = self._ask(f"{self.host}:{port}")
        return super().stranger(port) if view is None else f"the Kafka cluster {view.cluster_id}: another user's?"

    def other_ports(self) -> str:
        """Those of several hosts are part of their names."""
        if self._node is None:
            return super().other_ports()
        return "give all three hosts another port and another --dir: --nodes HOST:PORT,HOST:PORT,HOST:PORT"

    def prepare(self, java: Java, lib: Path) -> None:
        """One folder of configuration and one of data per broker."""
        endpoints = self._endpoints()
        voters = ",".join(f"{node}@{host}:{port}" for node, (host, _, port) in endpoints.items())
        for node, name in zip(self._nodes(), self.names(), strict=True):
            conf, data = self.directory / "conf" / name, self.directory / "data" / name
            for folder in (conf, data, self.server(name).log.parent):
                folder.mkdir(parents=True, exist_ok=True)
            values = {"node": node, "voters": voters, "data": javaproperties.escape(str(data))}
            (conf / "server.properties").write_text(PROPERTIES.format(**values, **endpoints[node]._asdict()))
            (conf / "log4j2.properties").write_text(LOG4J2)
        self._format(java, lib)

    def _format(self, java: Java, lib: Path) -> None:
        """Give every data folder that has none the cluster's id."""
        fresh = [name for name in self.names() if not self._storage(name).exists()]
        if bereft := [name for name in fresh if self.server(name).pid]:
            raise ServiceError(
                f"{', '.join(bereft)} of {self.directory} run, but their data was deleted: run `agent cluster stop` "
                "first; what no other broker has is lost"
            )
        tools = {}
        for name in fresh:
            arguments = ["format", "-t", self.state()["cluster_id"], "-c", self._properties(name)]
            command = java_command(java, [lib / "*"], "kafka.tools.StorageTool", heap_mb=64, options=())
            tools[name] = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        for name, tool in tools.items():
            output, _ = tool.communicate()
            if tool.returncode:
                raise ServiceError(f"cannot format the storage of {name}:\n{output}")

    def _storage(self, name: str) -> Path:
        return self.directory / "data" / name / "meta.properties"

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """`kafka.Kafka server.properties`."""
        settings = self.directory / "conf" / name / "log4j2.properties"
        options = log4j2_options(name, self.server(name).log, settings, self.logs_to)
        command = java_command(java, [lib / "*"], "kafka.Kafka", heap_mb=self._heap_mb, options=options)
        return [*command, self._properties(name)]

    def _properties(self, name: str) -> str:
        return str(self.directory / "conf" / name / "server.properties")

    def waiting_for(self) -> str | None:
        """Ready is: every broker listens and is unfenced, and the quorum of controllers has a leader.

        A broker with a host to itself is ready alone while no other one runs: it cannot serve before a second does.
        """
        if self._node is not None:
            running = [node for node, (host, _, port) in self._endpoints().items() if listening(port, host)]
            if self._node not in running:
                return f"the controller of node {self._node} does not listen yet"
            if running == [self._node]:
                return None
        for name in self.names():
            # A broker listens once it is registered anew and has caught up with the metadata; without this check
            # a restarted one would pass for unfenced through the registration of the process that was killed.
            if not listening(self.ports[name], self.host):
                return f"{name} does not listen yet"
        view = self._look()
        if view is None:
            return "the brokers do not answer yet"
        if foreign := self.foreign(view.cluster_id):
            if self._hosts:  # perhaps on another host, where no port can be looked at
                raise PortInUse(f"{foreign} Or were the hosts started with other --nodes?")
            return foreign
        if not view.unfenced.issuperset(self._nodes()):
            return f"only brokers {sorted(view.unfenced)} are in the cluster"
        return "the controllers have not elected a leader" if view.controller is None else None

    def status(self) -> KafkaStatus:
        """What runs, and how well; answers within seconds whatever the state. Raises before the first start."""
        servers = {node: self.server(f"broker-{node}") for node in NODES}
        alive = {node for node, server in servers.items() if server.pid or node not in self._nodes()}
        view, patience = None, time.monotonic() + 6
        # A client may pick a broker that was killed a moment ago and that the others still believe alive.
        while alive and view is None and time.monotonic() < patience:
            view = self._look()
        taken = [f"port {port} is taken by {self.stranger(port)}" for port in self.strangers().values()]
        stranger = taken[0] if taken else None
        if view is not None and (foreign := self.foreign(view.cluster_id)):
            view, stranger = None, foreign
        view = view or _View("", set(), None, [])
        brokers = []
        for node, endpoint in self._endpoints().items():
            server = servers[node]
            unknown = "starting" if server.pid else "down"
            state = "up" if node in view.unfenced and node in alive else unknown
            brokers.append(BrokerStatus(node, state, endpoint.port, server.pid, server.rss_mb, endpoint.host))
        return KafkaStatus(
            brokers, view.controller, view.under_replicated, self.bootstrap_servers, str(self.directory), stranger
        )

    def _look(self) -> "_View | None":
        """Ask the cluster once; None when no broker answers. Another cluster only where this one does not answer."""
        view = self._ask(self.bootstrap_servers)
        if view is None or view.cluster_id == self.cluster_id:
            return view
        alone = (self._ask(f"{host}:{port}") for host, port, _ in self._endpoints().values())
        return next((one for one in alone if one is not None and one.cluster_id == self.cluster_id), view)

    def _ask(self, servers: str) -> "_View | None":
        """Whatever cluster is there; None when no broker answers."""
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        logger = logging.getLogger("kafka")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # it reports at length what is expected here
        try:
            with KafkaAdminClient(
                bootstrap_servers=servers, bootstrap_timeout_ms=2000, request_timeout_ms=2000
            ) as admin:
                cluster = admin.describe_cluster()
                unfenced = {broker["broker_id"] for broker in cluster["brokers"]}
                leader = admin.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"]
                under_replicated = [
                    f"{topic['name']}-{partition['partition_index']}"
                    for topic in admin.describe_topics()
                    for partition in topic["partitions"]
                    if len(partition["isr_nodes"]) < len(partition["replica_nodes"])
                ]
        except KafkaError:
            return None
        finally:
            logger.setLevel(level)
        return _View(cluster["cluster_id"], unfenced, leader if leader >= 0 else None, sorted(under_replicated))


class _View(NamedTuple):
    """What a client sees of the cluster."""

    cluster_id: str
    unfenced: set[int]
    controller: int | None
    under_replicated: list[str]

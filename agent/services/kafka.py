"""Kafka cluster of three brokers, on one host or on three, which survives the loss of any broker."""

import base64
import contextlib
import hashlib
import logging
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import javaproperties

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, PortInUse, data_directory, is_listening, java_command
from flafka.agent.services.logs import LOG4J2, log4j2_options

NODES = (1, 2, 3)
PORT, CONTROLLER_PORT_OFFSET = 19092, 3
"""Port of a broker alone on its host, and distance to the port of its controller."""
HEAP_MB = 256

# Every broker is also a controller. A record is acknowledged once two of three replicas have it. Any one broker can
# therefore be killed without losing a record or stopping producers and consumers.
PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
# The first of several hosts waits up to a day for the start of the others.
initial.broker.registration.timeout.ms=86400000
controller.listener.names=CONTROLLER
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
# Enough for a full batch of the channel, which is far smaller, and for one large event.
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
log.retention.hours=168
log.segment.bytes=134217728
# The committed offsets of a sink survive a month without it.
offsets.retention.minutes=43200
group.initial.rebalance.delay.ms=0

num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=4194304
"""
RACK = """\
broker.rack={rack}
# A consumer with client.rack reads from a replica in its rack (KIP-392).
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
"""
PLAIN_LISTENERS = """\
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
"""


@dataclass(frozen=True)
class BrokerStatus:
    """Status of one broker.

    `state` is `up` (in the cluster), `starting` (only a process) or `down`. Only brokers on this host have
    a pid and memory. `rack` is that of a broker in the cluster, if it has one.
    """

    node: int
    state: str
    port: int
    pid: int | None
    rss_mb: int | None
    host: str
    rack: str | None


@dataclass(frozen=True)
class KafkaStatus:
    """Status of the cluster.

    `controller` is the node of the active controller; None without a quorum. `under_replicated` has partitions, such
    as `topic-0`, with fewer in-sync replicas than replicas.
    """

    brokers: list[BrokerStatus]
    controller: int | None
    under_replicated: list[str]
    bootstrap_servers: str
    directory: str
    foreign_listener: str | None
    """Description of a foreign program on a port of a broker; None if there is none."""

    @property
    def up(self) -> bool:
        """True if every broker is in the cluster and a controller is active."""
        return self.controller is not None and all(broker.state == "up" for broker in self.brokers)


class BrokerListeners(NamedTuple):
    """Listeners of one broker and its controller."""

    host: str
    port: int
    controller_port: int

    @classmethod
    def parse(cls, text: str) -> "BrokerListeners":
        """Return the listeners for a text `host` or `host:port`. Raises ServiceError if it is another text."""
        host, _, port = text.strip().partition(":")
        if not host or not (port or str(PORT)).isdecimal():
            raise ServiceError(f"{text!r} is not a host, or host:port")
        return cls(host, int(port or PORT), int(port or PORT) + CONTROLLER_PORT_OFFSET)


class KafkaCluster(Cluster):
    """Three Apache Kafka brokers with KRaft, replication factor 3 and min ISR 2.

    Servers are `broker-1`, `broker-2` and `broker-3`, all on this host or one on each of three hosts. With three
    hosts, this object manages the broker of this host. Acknowledged records survive `kill -9` of all brokers. Only
    with three hosts, they survive the loss of a host.
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
        racks: Sequence[str] = (),
    ) -> None:
        """`heap_mb` is the heap of each broker from its next start on; benchmarks use 512.

        `racks` are the racks of brokers 1 to 3 from their next start on; `start` stores them. Without `racks`, the
        stored ones are used. Raises ServiceError for another number of racks.

        `node` is the number of the broker on this host, and `hosts` are the three hosts as `host` or `host:port`.
        Both are stored, and later calls must agree. Raises ServiceError if they do not.
        """
        super().__init__(directory, fixed_ports=fixed_ports)
        self._heap_mb, self._racks = heap_mb, racks
        if racks and not (len(racks) == len(NODES) and all(racks)):
            raise ServiceError(f"not the racks of {len(NODES)} brokers: {', '.join(racks)}")
        self._node: int | None = self.state().get("node", node)
        self._hosts = {n: BrokerListeners.parse(text) for n, text in enumerate(self.state().get("hosts", hosts), 1)}
        if self._node is not None:
            self._check_hosts(node, hosts)
            self.host = self._hosts[self._node].host

    def _check_hosts(self, node: int | None, hosts: Sequence[str]) -> None:
        """Raise ServiceError if node and hosts are not three different hosts, or differ from the stored ones."""
        if node is None:
            return
        if len(set(hosts)) != len(NODES) or node not in NODES:
            raise ServiceError(f"not a node of three different hosts: {node} of {', '.join(hosts) or 'none'}")
        requested = {number: BrokerListeners.parse(text) for number, text in enumerate(hosts, 1)}
        stored = self.state() and (self.state().get("node"), self._hosts)
        if stored and stored != (node, requested):
            what = f"node {stored[0]} of {', '.join(self.state()['hosts'])}" if stored[0] else "all three brokers"
            raise ServiceError(f"{self.directory} contains {what}: choose another directory with --dir")

    @classmethod
    def default(cls) -> Self:
        """Return the user's cluster, in FLAFKA_CLUSTER_DIR, or else in `cluster` of `data_directory`."""
        return cls(os.environ.get("FLAFKA_CLUSTER_DIR") or data_directory() / "cluster")

    @property
    def address(self) -> str:
        """Bootstrap servers as `host:port,…`. Raises ServiceError before the first start."""
        return self.bootstrap_servers

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers as `host:port,…`. Raises `ServiceError` before the first start."""
        return ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self._endpoints().values())

    def _endpoints(self) -> dict[int, BrokerListeners]:
        """Return the listeners of all nodes. Raises `ServiceError` before the first start."""
        ports = self.ports
        return self._hosts or {
            n: BrokerListeners(HOST, ports[f"broker-{n}"], ports[f"controller-{n}"]) for n in NODES
        }

    def rack(self, node: int) -> str | None:
        """Return the rack of a broker from its next start on; None if it has none."""
        racks = self._racks or self.state().get("racks")
        return str(racks[node - 1]) if racks else None

    def _nodes(self) -> Sequence[int]:
        """Return the nodes on this host."""
        return NODES if self._node is None else (self._node,)

    def names(self) -> list[str]:
        """Return `broker-<node>` for each node on this host."""
        return [f"broker-{node}" for node in self._nodes()]

    def default_ports(self) -> Mapping[str, int]:
        """Return 19092 to 19094 for clients and 19095 to 19097 for controllers; 19092 and 19095 with three hosts."""
        if self._node is not None:
            _, port, controller_port = self._hosts[self._node]
            return {f"broker-{self._node}": port, f"controller-{self._node}": controller_port}
        brokers = {f"broker-{node}": 19091 + node for node in NODES}
        return brokers | {f"controller-{node}": 19094 + node for node in NODES}

    def preferred_ports(self) -> Mapping[str, int]:
        """Return `default_ports`, shifted by FLAFKA_INSTANCE unless there are three hosts."""
        return super().preferred_ports() if self._node is None else self.default_ports()

    def _assign_ports(self) -> None:
        if self._node is not None:
            hosts = [f"{host}:{port}" for host, port, _ in self._hosts.values()]
            self.save_state(node=self._node, hosts=hosts, ports=dict(self.default_ports()))
        super()._assign_ports()
        if "cluster_id" not in self.state():
            self.save_state(cluster_id=self._stored_id() or self._new_id())

    def _stored_id(self) -> str | None:
        """Return the cluster ID in the data directories of this host; None without data."""
        for name in self.names():
            with contextlib.suppress(FileNotFoundError), self._storage(name).open("rb") as file:
                return str(javaproperties.load(file)["cluster.id"])
        return None

    def _new_id(self) -> str:
        """Return a new cluster ID; on three hosts the same one on each."""
        # Hosts that start independently must agree on the id, so it is derived from their names.
        names = repr(sorted(self._hosts.items())).encode()
        identity = hashlib.sha256(names).digest()[:16] if self._hosts else secrets.token_bytes(16)
        # 16 bytes encoded as by Kafka. The formatting tool would take a leading dash for an option.
        return base64.urlsafe_b64encode(identity).decode().rstrip("=").replace("-", "_")

    @property
    def cluster_id(self) -> str:
        """ID by which the brokers of this cluster are recognized. Raises ServiceError before the first start."""
        try:
            return str(self.state()["cluster_id"])
        except KeyError:
            raise ServiceError(f"no cluster in {self.directory}: it was never started") from None

    def foreign_cluster_error(self, cluster_id: str | None) -> str | None:
        """Return an error text if `cluster_id`, of brokers that answer, is not this cluster's; None if it is."""
        if cluster_id == self.cluster_id:
            return None
        return (
            f"the Kafka cluster at {self.bootstrap_servers} is {cluster_id}, not that of {self.directory}, "
            f"{self.cluster_id}: another user's?"
        )

    def find_foreign_cluster(self) -> str | None:
        """Return an error text if another cluster answers at this cluster's addresses; None without an answer."""
        view = self._describe()
        return None if view is None else self.foreign_cluster_error(view.cluster_id)

    def describe_listener(self, port: int) -> str:
        """Return a description of the Kafka cluster or other program on a port."""
        view = self._describe_at(f"{self.host}:{port}")
        if view is None:
            return super().describe_listener(port)
        return f"the Kafka cluster {view.cluster_id}: another user's?"

    def port_change_hint(self) -> str:
        """Return the advice for a change of the ports: with three hosts, other names of the hosts."""
        if self._node is None:
            return super().port_change_hint()
        return "give all three hosts another port and another --dir: --nodes HOST:PORT,HOST:PORT,HOST:PORT"

    def prepare(self, java: Java, lib: Path) -> None:
        """Write the configuration of each broker on this host, and format new storage. Raises ServiceError."""
        if self._racks:
            self.save_state(racks=list(self._racks))
        endpoints = self._endpoints()
        voters = ",".join(f"{node}@{host}:{port}" for node, (host, _, port) in endpoints.items())
        for node, name in zip(self._nodes(), self.names(), strict=True):
            conf, data = self.directory / "conf" / name, self.directory / "data" / name
            for folder in (conf, data, self.server(name).log.parent):
                folder.mkdir(parents=True, exist_ok=True)
            values = {"node": node, "voters": voters, "data": javaproperties.escape(str(data))}
            listeners = self._listener_properties(node, endpoints[node])
            rack = self.rack(node)
            location = "" if rack is None else RACK.format(rack=javaproperties.escape(rack))
            (conf / "server.properties").write_text(PROPERTIES.format(**values) + location + listeners)
            (conf / "log4j2.properties").write_text(LOG4J2)
        self._format(java, lib)

    def _listener_properties(self, node: int, listeners: BrokerListeners) -> str:
        """Return the properties of a broker's listeners, with their protocols and authentication: none."""
        return PLAIN_LISTENERS.format(**listeners._asdict())

    def _format(self, java: Java, lib: Path) -> None:
        """Format the unformatted storages of this host with the cluster ID. Raises ServiceError."""
        fresh = [name for name in self.names() if not self._storage(name).exists()]
        if running := [name for name in fresh if self.server(name).pid]:
            raise ServiceError(
                f"{', '.join(running)} of {self.directory} run, but their data was deleted: run `agent cluster stop` "
                "first; records without a replica on another broker are lost"
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
        """Return the command `kafka.Kafka server.properties`."""
        settings = self.directory / "conf" / name / "log4j2.properties"
        options = [*log4j2_options(name, self.server(name).log, settings, self.log_ports), *self._java_options()]
        command = java_command(java, [lib / "*"], "kafka.Kafka", heap_mb=self._heap_mb, options=options)
        return [*command, self._properties(name)]

    def _java_options(self) -> list[str]:
        """Return the options of a broker's JVM that do not concern its log."""
        return []

    def _properties(self, name: str) -> str:
        return str(self.directory / "conf" / name / "server.properties")

    def unready_reason(self) -> str | None:
        """Return the reason why the cluster is not ready; None if it is ready.

        Every broker must listen and be unfenced, and a controller must be active. On one of three hosts, the only
        running broker counts as ready: it cannot serve before a second one runs. Raises PortInUse if another cluster
        answers.
        """
        if self._node is not None:
            running = [node for node, (host, _, port) in self._endpoints().items() if is_listening(port, host)]
            if self._node not in running:
                return f"the controller of node {self._node} does not listen yet"
            if running == [self._node]:
                return None
        for name in self.names():
            # A broker listens after its registration and after catching up with the metadata. Without this check,
            # a restarted broker would count as unfenced by the registration of the killed process.
            if not is_listening(self.ports[name], self.host):
                return f"{name} does not listen yet"
        view = self._describe()
        if view is None:
            return "the brokers do not answer yet"
        if foreign := self.foreign_cluster_error(view.cluster_id):
            if self._hosts:  # perhaps on another host, whose ports cannot be checked
                raise PortInUse(f"{foreign} Or were the hosts started with other --nodes?")
            return foreign
        if not view.unfenced.keys() >= {*self._nodes()}:
            return f"only brokers {sorted(view.unfenced)} are in the cluster"
        return "the controllers have not elected a leader" if view.controller is None else None

    def status(self) -> KafkaStatus:
        """Return the status of the cluster, after at most about 6 s. Raises ServiceError before the first start."""
        servers = {node: self.server(f"broker-{node}") for node in NODES}
        alive = {node for node, server in servers.items() if server.pid or node not in self._nodes()}
        view, deadline = None, time.monotonic() + 6
        # A client may choose a killed broker that the other brokers still consider alive.
        while alive and view is None and time.monotonic() < deadline:
            view = self._describe()
        foreign_ports = self.foreign_listeners().values()
        listeners = [f"port {port} is taken by {self.describe_listener(port)}" for port in foreign_ports]
        foreign_listener = listeners[0] if listeners else None
        if view is not None and (foreign := self.foreign_cluster_error(view.cluster_id)):
            view, foreign_listener = None, foreign
        view = view or _ClusterDescription("", {}, None, [])
        brokers = []
        for node, endpoint in self._endpoints().items():
            server = servers[node]
            process_state = "starting" if server.pid else "down"
            state = "up" if node in view.unfenced and node in alive else process_state
            rack = view.unfenced.get(node)
            brokers.append(BrokerStatus(node, state, endpoint.port, server.pid, server.rss_mb, endpoint.host, rack))
        return KafkaStatus(
            brokers,
            view.controller,
            view.under_replicated,
            self.bootstrap_servers,
            str(self.directory),
            foreign_listener,
        )

    def _describe(self) -> "_ClusterDescription | None":
        """Return the description of this cluster by its brokers; None if no broker answers.

        If only another cluster answers at these addresses, return the description of that one.
        """
        addresses = [f"{host}:{port}" for host, port, _ in self._endpoints().values()]
        view = self._describe_at(",".join(addresses))
        if view is None or view.cluster_id == self.cluster_id:
            return view
        views = map(self._describe_at, addresses)
        return next((own for own in views if own is not None and own.cluster_id == self.cluster_id), view)

    def _admin_login(self) -> dict[str, Any]:
        """Return kafka-python's options of an administrator's connection; none without authentication."""
        return {}

    def _describe_at(self, servers: str) -> "_ClusterDescription | None":
        """Return the description of the cluster at these bootstrap servers; None if no broker answers within 2 s."""
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        login = self._admin_login()
        try:
            with (
                without_client_log(),
                KafkaAdminClient(
                    bootstrap_servers=servers, bootstrap_timeout_ms=2000, request_timeout_ms=2000, **login
                ) as admin,
            ):
                cluster = admin.describe_cluster()
                unfenced = {broker["broker_id"]: broker["rack"] for broker in cluster["brokers"]}
                leader = admin.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"]
                under_replicated = [
                    f"{topic['name']}-{partition['partition_index']}"
                    for topic in admin.describe_topics()
                    for partition in topic["partitions"]
                    if len(partition["isr_nodes"]) < len(partition["replica_nodes"])
                ]
        except KafkaError:
            return None
        controller = leader if leader >= 0 else None
        return _ClusterDescription(cluster["cluster_id"], unfenced, controller, sorted(under_replicated))


@contextlib.contextmanager
def without_client_log() -> Iterator[None]:
    """Log no errors of kafka-python's clients within the block, which expects them."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class _ClusterDescription(NamedTuple):
    """Cluster as described by its brokers."""

    cluster_id: str
    unfenced: dict[int, str | None]
    """Rack of each broker in the cluster."""
    controller: int | None
    under_replicated: list[str]

"""Secured servers of `agent sandbox --secure` and `agent demo --secure`: a KDC, HDFS and Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import HEAP_MB
from flafka.agent.services.kdc import Kdc
from flafka.agent.services.securekafka import SecureKafkaCluster
from flafka.plugins.net.gssapi import KerberosError

PORT_OFFSET = 50
"""Distance between the preferred ports of a secured server and of the same server without authentication."""


@dataclass(frozen=True)
class SecureServers:
    """Clusters of the secured servers. The KDC starts first, and the other clusters use its keytab."""

    kdc: Kdc
    hdfs: HdfsCluster
    kafka: SecureKafkaCluster

    def by_service(self) -> dict[str, Cluster]:
        """Return the clusters by the names of their services, the KDC first."""
        return {cluster.service: cluster for cluster in (self.kdc, self.hdfs, self.kafka)}


def secure_servers(home: Path, *, fixed_ports: bool = True, heap_mb: int = HEAP_MB) -> SecureServers:
    """Return the secured servers whose directories are below `home`. `heap_mb` is the heap of each broker."""
    kdc = Kdc(home / "kdc", fixed_ports=fixed_ports)
    hdfs = HdfsCluster(home / "hdfs", kdc=kdc, fixed_ports=fixed_ports)
    kafka = SecureKafkaCluster(home / "kafka", kdc, heap_mb=heap_mb, fixed_ports=fixed_ports)
    servers = SecureServers(kdc, hdfs, kafka)
    for cluster in servers.by_service().values():
        cluster.port_offset += PORT_OFFSET
    return servers


def share_root(hdfs: HdfsCluster) -> None:
    """Let every user create directories in the root of a secured HDFS, which runs. Raises ServiceError."""
    import requests

    try:
        hdfs.superuser_request("PUT", "/", "SETPERMISSION", permission="1777").raise_for_status()
    except (KerberosError, requests.RequestException) as e:
        raise ServiceError(f"HDFS does not admit its superuser: {e}") from e

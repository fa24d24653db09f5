"""The examples of conf/examples as they are shipped, on real servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from agent.services.kafka import KafkaCluster
from agent.services.solr import SolrCluster
from tests.system.running import ROOT, Agent, free_ports
from tests.system.test_solr_sink import documents

EXAMPLES = ROOT / "conf/examples"


def test_counts(tmp_path: Path, kafka_cluster: KafkaCluster, solr_cluster: SolrCluster) -> None:
    (port,) = free_ports()
    environment = {
        "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory),
        "COUNTS_SYSLOG": str(port),
        "COUNTS_SOLR": solr_cluster.address,
        "COUNTS_INTERVAL": "1",
        "COUNTS_METRICS": "0",
    }

    def charted() -> dict[str, int]:
        found: dict[str, int] = {}
        for document in documents(f"{solr_cluster.address}/events").values():
            if "severity_s" in document:
                assert document["minute_dt"].endswith(":00Z")
                severity = document["severity_s"]
                found[severity] = found.get(severity, 0) + document["count_l"]
        return found

    def log(severity: str, times: int) -> None:
        command = ["logger", "--server", "127.0.0.1", "--port", str(port), "--tcp", "--rfc5424"]
        text = "".join(f"message {n}\n" for n in range(times))
        subprocess.run([*command, "--priority", f"user.{severity}"], input=text, text=True, check=True)

    with Agent(tmp_path, EXAMPLES / "counts/counts.conf", environment=environment) as agent:
        agent.port("syslog")
        log("err", 5)
        log("info", 7)
        agent.until(lambda: charted() == {"err": 5, "info": 7}, "the counts in Solr")
        log("err", 3)
        agent.until(lambda: charted() == {"err": 8, "info": 7}, "the counts that have grown")
        assert agent.stop() == 0

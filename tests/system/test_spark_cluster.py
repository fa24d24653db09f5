"""Deliveries on a standalone Spark cluster whose workers have a bare Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from agent.services.spark import MASTER, WORKERS, SparkCluster
from tests.system.running import agent_command


def test_the_sandbox_s_cluster_and_its_bare_python(tmp_path: Path, spark_cluster: SparkCluster) -> None:
    home = tmp_path / "flafka"
    home.mkdir()
    (home / "spark").symlink_to(spark_cluster.directory)
    shown = agent_command("sandbox", "status", "spark", "--json", environment={"XDG_DATA_HOME": str(tmp_path)})
    rows = json.loads(shown.stdout)
    assert [row["server"] for row in rows] == [MASTER, *WORKERS]
    assert {(row["state"], row["address"]) for row in rows} == {("up", spark_cluster.address)}
    python = spark_cluster.python / "bin" / spark_cluster.python.name
    there = subprocess.run([python, "-c", "import pyarrow"], capture_output=True, text=True, env={}, check=False)
    assert "No module named 'pyarrow'" in there.stderr
    spark_cluster.kill(MASTER)
    spark_cluster.start()  # ready only with both workers, which have found the new master

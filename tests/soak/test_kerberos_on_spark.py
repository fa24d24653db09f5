"""Sink `hdfs` with Kerberos on Spark, in one process and on a cluster, over three lives of tokens: `./dev soak`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.running import RunningAgent
from tests.fixtures.kerberos import TOKEN_SECONDS, SecureHdfs
from tests.system.running import ROOT, agent_command, hdfs_sink, unique
from tests.system.test_groups import Group
from tests.system.test_proofs_spark import driver_of

TIMEOUT_SECONDS = 600.0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["local", "cluster"])
def test_a_driver_is_killed_the_kdc_is_away_and_the_keytab_has_another_path(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kdc: Kdc,
    secure_hdfs: SecureHdfs,
    kafka_cluster: KafkaCluster,
    lean_python: Path,
    figures: list[str],
    where: str,
) -> None:
    """The driver is killed after the first life, the KDC is away for the second, and the keytab is moved for the
    third."""
    name, life = unique("spark"), TOKEN_SECONDS[1]
    path, keytab = f"/{name}", tmp_path / "first.keytab"
    kdc.add(name)
    kdc.keytab(name).rename(keytab)
    secure_hdfs.create_directory(path, name)
    options = [
        "a1.runner = spark",
        "a1.spark.triggerInterval = 1",
        # Executors read the KDC's address from their hosts' krb5.conf, or from this file.
        f"a1.spark.conf.spark.executorEnv.KRB5_CONFIG = {kdc.krb5_conf}",
        hdfs_sink(secure_hdfs.webhdfs, path),
        f"a1.sinks.k1.hdfs.kerberosPrincipal = {name}@{REALM}",
        f"a1.sinks.k1.hdfs.kerberosKeytab = {keytab}",
    ]
    if where == "cluster":
        cluster = request.getfixturevalue("spark_cluster")
        options.append(f"a1.spark.master = {cluster.address}")
    group = Group(tmp_path, kafka_cluster, name, "\n".join(options))
    command, environment = (str(lean_python), "-m", "flafka", "start"), {"PYTHONPATH": str(ROOT)}
    enough = threading.Event()

    def feed() -> None:
        while not enough.wait(0.5):
            group.put(30)

    def start() -> RunningAgent:
        return RunningAgent(tmp_path / "a1", group.configuration, environment=environment, command=command)

    def deliver(agent: RunningAgent, seconds: float = 0.0) -> float:
        """Wait for a delivery that many seconds from now, and return how long it took."""
        time.sleep(seconds)
        began, before = time.monotonic(), agent.count("SINK.k1", "EventDrainSuccessCount")

        def delivered() -> bool:
            return agent.count("SINK.k1", "EventDrainSuccessCount") > before

        agent.until(delivered, "a delivery", TIMEOUT_SECONDS)
        return time.monotonic() - began

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        with start() as agent:
            deliver(agent)
            deliver(agent, life)
            os.kill(driver_of(agent), signal.SIGKILL)
            deliver(agent)
            kdc.kill("kdc")
            refused = "Cannot contact any KDC"
            agent.until(lambda: refused in agent.failing().get("SINK.k1", ""), "the tokens to end", TIMEOUT_SECONDS)
            time.sleep(life)
            kdc.start()
            recovery = deliver(agent)
            assert agent.stop() == 0
        moved = keytab.rename(tmp_path / "second.keytab")
        with start() as agent:
            gone = f"the keytab {keytab} cannot be read: No such file or directory"
            agent.until(
                lambda: gone in agent.failing().get("SINK.k1", ""), "the keytab to be missed", TIMEOUT_SECONDS
            )
            checked = agent_command("check", "--connect", "-c", str(agent.file))
            assert "cannot be read" in checked.stdout + checked.stderr
            assert agent.stop() == 0
        group.configuration = group.configuration.replace(str(keytab), str(moved))
        with start() as agent:
            deliver(agent, life)
            enough.set()
            feeder.join()
            bodies = Counter(body.decode() for body in group.bodies)
            agent.until(lambda: len(secure_hdfs.lines(path)) >= len(bodies), "all events", TIMEOUT_SECONDS)
            assert agent.stop() == 0
    finally:
        enough.set()
        feeder.join(60)
        kdc.start()
    assert Counter(secure_hdfs.lines(path)) == bodies
    assert "delegation=" not in (tmp_path / "a1" / "agent.log").read_text().replace("delegation=…", "")
    figures.append(
        f"{where}: {len(bodies):,} events, each once; {len(secure_hdfs.tokens(name))} tokens; delivery went on "
        f"{recovery:.0f} s after the KDC was back"
    )

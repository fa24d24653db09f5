"""The demo on secured servers with either runner, and Kerberos at its brokers: `./dev soak`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.kdc import REALM
from flafka.agent.services.secure import SecureServers, secure_servers
from tests.system.running import ROOT, agent_command

KERBEROS = """\
security.protocol=SASL_SSL
sasl.mechanism=GSSAPI
sasl.kerberos.service.name=kafka
ssl.truststore.type=PEM
ssl.truststore.location={authority}
sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true \\
  ticketCache="{cache}" principal="{user}@{realm}";
"""


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runner", ["local", "spark"])
def test_the_demo_on_secured_servers_balances(runner: str, tmp_path: Path, figures: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "flafka", "demo", "--secure", "--exit", "--runner", runner, "--json"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["balanced"], report["wrong"]
    assert report["stores"] == {"HDFS": report["channel"]}
    assert report["received"]["avro"] > 0  # from HDFS
    assert not list(tmp_path.iterdir())
    figures.append(f"{runner}: {report['channel']:,} events after {report['seconds']} s")


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_ticket_is_accepted_by_the_brokers_and_users_outlive_a_restart(tmp_path: Path) -> None:
    servers = secure_servers(tmp_path / "flafka" / "secure", fixed_ports=False)
    for cluster in servers.by_service().values():
        cluster.reserve()

    def run(*arguments: str) -> str:
        result = agent_command(*arguments, environment={"XDG_DATA_HOME": str(tmp_path)})
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    clients = servers.kafka.authority.parent
    try:
        run("sandbox", "up", "--secure")
        run("topic", "create", "alice-1", "--command-config", str(clients / "admin.properties"))
        for user in ("alice", "bob"):
            run("sandbox", "kinit", user)
        passwords = {file.name: file.read_text() for file in clients.glob("*.password")}
        assert passwords.keys() == {f"{user}.password" for user in ("admin", "flafka", "alice", "bob")}
        run("sandbox", "down", "--secure")
        run("sandbox", "up", "--secure")
        assert {file.name: file.read_text() for file in clients.glob("*.password")} == passwords
        assert "alice-1" in run("topic", "list", "--command-config", str(clients / "alice.properties"))
        assert topics_by_ticket(servers, tmp_path, "alice") == ["alice-1"]
        assert topics_by_ticket(servers, tmp_path, "bob") == []
    finally:
        run("sandbox", "down", "--secure")


def topics_by_ticket(servers: SecureServers, directory: Path, user: str) -> list[str]:
    """Return the topics that Kafka's own tool shows to a user with a ticket of `agent sandbox kinit`."""
    kafka, kdc = servers.kafka, servers.kdc
    config = directory / f"{user}-ticket.properties"
    values = {"authority": kafka.authority, "cache": kdc.directory / "tickets" / user, "user": user, "realm": REALM}
    config.write_text(KERBEROS.format(**values))
    command = java_command(
        find_java(),
        [ensure("kafka-tools") / "*", ensure("kafka") / "*"],
        "org.apache.kafka.tools.TopicCommand",
        heap_mb=128,
        options=[f"-Djava.security.krb5.conf={kdc.krb5_conf}"],
    )
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--command-config", str(config), "--list"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.split()

"""Kafka clients that are made anew: after rights were revoked and granted, and with changed certificates."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.fixtures.secured import Right, SecuredKafka
from tests.plugins.certificates import certificate
from tests.system.rebuilding import (
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONS,
    WRITE,
    NumberedRecords,
    agent_text,
    all_rights,
)
from tests.system.running import unique

RESUMED_SECONDS = 30.0
"""Longest time from the grant of a right to the arrival of records that were written before it."""
USER = "flafka"


Denial = tuple[str, Right, str, str]
"""Name, right, failing component (empty: only the log has it), and resource as the error names it."""


def denials(name: str) -> list[Denial]:
    """Return the denials of all rights."""
    return [
        ("the channel's puts", (TOPIC, name, WRITE), "SOURCE.s1", f"Write on topic {name} "),
        ("the channel's reader", (TOPIC, name, READ), "SINK.k1", f"Read on topic {name} "),
        ("the channel's group", (GROUP, name, READ), "SINK.k1", f"Read on consumer group {name} "),
        ("transactions", (TRANSACTIONS, "flafka", WRITE), "SINK.k1", f"Write on transactional id flafka.{name}."),
        ("the sink's topic", (TOPIC, f"{name}.out", WRITE), "SINK.k1", f"Write on topic {name}.out "),
        ("the commit log", (TOPIC, f"{name}.positions", WRITE), "SINK.k1", f"{name}.positions"),
        ("dead letters", (TOPIC, f"{name}.deadletters", WRITE), "SINK.k1", f"Write on topic {name}.deadletters "),
        ("the source's topic", (TOPIC, f"{name}.in", READ), "SOURCE.s1", f"Read on topic {name}.in "),
        ("the source's group", (GROUP, f"{name}.in", READ), "SOURCE.s1", f"Read on consumer group {name}.in "),
        ("the audit", (TOPIC, f"{name}.audit", WRITE), "", f"Write on topic {name}.audit "),
    ]


def deny(
    agent: RunningAgent,
    kafka: SecuredKafka,
    records: NumberedRecords,
    denial: Denial,
    seconds: float,
) -> float:
    """Revoke a right for at least so many seconds, and until the agent reports it; return the seconds to resume."""
    what, right, component, resource = denial
    log_start = len(agent.log)
    kafka.revoke({USER: [right]})
    revoked = time.monotonic()

    def is_reported() -> bool:
        logged = any(f"{USER} lacks" in line and resource in line for line in agent.log[log_start:].splitlines())
        return logged and (not component or resource in agent.failing().get(component, ""))

    agent.until(is_reported, f"the denial of {what} to be reported: {resource}", 60)
    time.sleep(max(0.0, revoked + seconds - time.monotonic()))  # the time of the denial, not a wait for a condition
    written = records.sent
    kafka.grant({USER: [right]})
    granted = time.monotonic()
    agent.until(lambda: records.all_arrived(written), f"records after the denial of {what}", 120)
    resumed = time.monotonic() - granted
    agent.until(lambda: not agent.failing(), f"the end of the denial of {what} to be reported", 60)
    return resumed


def prepare(kafka: SecuredKafka, name: str, user: str = USER) -> None:
    for topic in (f"{name}.in", f"{name}.out", f"{name}.deadletters"):
        kafka.create(topic)
    kafka.grant({user: all_rights(name)})


def test_denials_that_come_and_go_lose_and_double_nothing(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    name, kafka = unique("denied"), secured_kafka
    prepare(kafka, name)
    text = agent_text(name, lambda component, kinds: kafka.client("login", component=component, kinds=kinds))
    with NumberedRecords(kafka, name) as records:
        with RunningAgent(tmp_path, text) as agent:
            agent.until(lambda: records.arrived()[7], "the flow of records")
            seconds = {denial[0]: deny(agent, kafka, records, denial, 0.0) for denial in denials(name)}
            assert max(seconds.values()) < RESUMED_SECONDS, seconds
            # Until here nothing was killed, so that nothing may be doubled.
            records.pause()
            agent.until(records.all_arrived, "all records", 120)
            assert records.doubled() == {"channel": [], "sink": []}
            records.resume()
            revoked = [right for _, right, _, _ in denials(name) if right[1] in (name, f"{name}.out")]
            kafka.revoke({USER: revoked})
            agent.until(lambda: {*agent.failing()} >= {"SOURCE.s1", "SINK.k1"}, "the denials to be reported", 60)
            agent.stop(signal.SIGKILL)
        kafka.grant({USER: revoked})
        with RunningAgent(tmp_path, text) as agent:
            records.stop()
            agent.until(records.all_arrived, "all records after the kill", 120)
            assert agent.stop() == 0
    # After the kill, the source may have put some records twice. The sink delivers each event of the channel once.
    assert records.arrived() == records.in_channel()
    assert records.arrived().keys() == {*range(records.sent)}
    assert "Traceback" not in agent.log
    assert "another owner" not in agent.log


def restart(kafka: SecuredKafka, change: Callable[[], None]) -> None:
    """Restart the broker after a change of its files."""
    kafka.kill()
    change()
    kafka.start()


class Certificates:
    """Certificates of a broker and of an agent, which trust each other, and files of both that change."""

    def __init__(self, kafka: SecuredKafka, directory: Path) -> None:
        self._kafka, self.files, self._made = kafka, directory / "files", directory / "made"
        self.files.mkdir(parents=True)

    def make(self, name: str) -> None:
        """Make certificates of broker and agent with that name."""
        for whose in ("broker", "agent"):
            (self._made / name / whose).mkdir(parents=True)
            certificate(self._made / name / whose, whose=f"{whose}-{name}")

    def give_agent(self, own: str, trusted: tuple[str, ...]) -> None:
        """Give the agent its certificate, and the certificates of the broker that it trusts, as PEM and PKCS#12."""
        made = self._made / own / "agent"
        self._replace(self.files / "agent.pem", (made / "server.pem").read_bytes())
        self._replace(self.files / "agent.p12", (made / "server.p12").read_bytes())
        self._replace(self.files / "ca.pem", self._joined("broker", trusted))

    def give_broker(self, own: str, trusted: tuple[str, ...]) -> None:
        """Give the broker its certificate, and the agent's certificates that it trusts, for its next start."""
        directory = self._kafka.directory
        for name in ("server.p12", "server.crt", "server.pem"):
            self._replace(directory / name, (self._made / own / "broker" / name).read_bytes())
        self._replace(directory / "client" / "server.crt", self._joined("agent", trusted))

    def _joined(self, whose: str, names: tuple[str, ...]) -> bytes:
        return b"".join((self._made / name / whose / "server.crt").read_bytes() for name in names)

    @staticmethod
    def _replace(file: Path, content: bytes) -> None:
        new = file.with_suffix(".new")
        new.write_bytes(content)
        new.rename(file)

    def client(self, component: str, kinds: tuple[str, ...]) -> str:
        """Return the lines of a component's clients: the sink has a key store, the others have PEM files."""
        own = (
            {"ssl.keystore.location": self.files / "agent.p12", "ssl.keystore.password": "changeit"}
            if "sink" in component
            else {"ssl.certificate.location": self.files / "agent.pem", "ssl.key.location": self.files / "agent.pem"}
        )
        properties = {"security.protocol": "SSL", "ssl.ca.location": self.files / "ca.pem", **own}
        lines = [f"{component}.kafka.bootstrap.servers = {self._kafka.servers['mutual']}"]
        lines += [
            f"{component}.kafka.{kind}.{name} = {value}" for kind in kinds for name, value in properties.items()
        ]
        return "\n".join(lines) + "\n"


@pytest.fixture
def own_kafka(servers: None, tmp_path: Path) -> Iterator[SecuredKafka]:
    """Broker of this test alone, which restarts it with other certificates."""
    (tmp_path / "kafka").mkdir()
    with SecuredKafka(tmp_path / "kafka") as kafka:
        yield kafka


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_changed_certificates_are_used_without_a_restart(tmp_path: Path, own_kafka: SecuredKafka) -> None:
    name, kafka = "rotated", own_kafka
    prepare(kafka, name, "CN=localhost")
    files = Certificates(kafka, tmp_path)
    for generation in ("1", "2", "3", "4"):
        files.make(generation)
    kafka.kill()
    files.give_broker("1", ("1", "2"))
    files.give_agent("1", ("1",))
    kafka.start()
    text = agent_text(name, files.client)
    with NumberedRecords(kafka, name) as records:
        with RunningAgent(tmp_path / "a", text) as agent:
            agent.until(lambda: records.arrived()[7], "the flow of records")

            # In time: the agent has its new certificate before the broker refuses the old one.
            files.give_agent("2", ("1", "2"))
            agent.until(lambda: agent.log.count("is made anew, with changed certificates") >= 7, "new clients", 120)
            records.pause()
            agent.until(records.all_arrived, "all records with the first certificates", 120)
            restart(kafka, lambda: files.give_broker("2", ("2",)))
            records.resume()
            written = records.sent + 1
            agent.until(lambda: records.all_arrived(written), "records with the second certificates", 180)

            # Late: the broker is back, with other certificates, before the agent has its own.
            records.pause()
            agent.until(records.all_arrived, "all records with the second certificates", 120)
            restart(kafka, lambda: files.give_broker("3", ("3",)))
            records.resume()
            agent.until(lambda: "certificate" in str(agent.failing()), "the refusal to be reported", 120)
            files.give_agent("3", ("3",))
            written = records.sent
            agent.until(lambda: records.all_arrived(written), "records with the third certificates", 180)
            records.pause()
            agent.until(records.all_arrived, "all records with the third certificates", 120)
            agent.until(lambda: not agent.failing(), "the agent to be healthy", 60)
            assert records.doubled() == {"channel": [], "sink": []}

            records.resume()
            files.give_agent("4", ("3", "4"))
            agent.stop(signal.SIGKILL)
            kafka.kill()
            files.give_broker("4", ("4",))
            kafka.start()
        with RunningAgent(tmp_path / "a", text) as agent:
            records.stop()
            agent.until(records.all_arrived, "all records after the kill", 120)
            assert agent.stop() == 0
    assert records.arrived() == records.in_channel()
    assert records.arrived().keys() == {*range(records.sent)}
    assert "Traceback" not in agent.log

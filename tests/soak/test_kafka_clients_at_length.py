"""Kafka clients that are made anew: changed certificates, and long denials of each right, one after the other."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.fixtures.secured import SecuredKafka
from tests.plugins.certificates import certificate
from tests.system.rebuilding import NumberedRecords, agent_text, run_after_kill
from tests.system.running import unique
from tests.system.test_kafka_clients_rebuilt import RESUMED_SECONDS, denials, deny, prepare

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
DENIED_SECONDS = 100.0
"""Time of a denial, after which attempts have the longest wait between them."""


def test_long_denials_lose_and_double_nothing(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    name, kafka = unique("denied"), secured_kafka
    prepare(kafka, name)
    text = agent_text(name, lambda component, kinds: kafka.client("login", component=component, kinds=kinds))
    with NumberedRecords(kafka, name) as records, RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: records.arrived()[7], "the flow of records")
        seconds = {denial[0]: deny(agent, kafka, records, denial, DENIED_SECONDS) for denial in denials(name)}
        records.stop()
        agent.until(records.all_arrived, "all records", 120)
        assert records.doubled() == {"channel": [], "sink": []}
        assert agent.stop() == 0
    assert max(seconds.values()) < RESUMED_SECONDS, seconds


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
        run_after_kill(tmp_path / "a", text, records)

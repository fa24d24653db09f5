"""Kerberos for Kafka, with the client that conf/kafka-gssapi.sh builds and a KDC that fails: `./dev soak`."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.jvm.jars import cache_directory, ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.running import RunningAgent, free_ports, until
from tests.fixtures.kerberos import SecureHdfs
from tests.fixtures.servers import of_this_run
from tests.system.running import ROOT, unique

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
SCRIPT = ROOT / "conf" / "kafka-gssapi.sh"
SOURCE = "@confluentinc/kafka-javascript@1.10.1"
"""Package of the npm registry with the source of librdkafka 2.15.1."""
DEBIAN = ("libsasl2-dev", "libcurl4-openssl-dev", "libzstd-dev", "libsasl2-modules-gssapi-mit")
LIBRARIES = {"libsasl2": "2", "libcurl": "4", "libzstd": "1"}
"""Installed libraries that those packages link to, and their versions."""
TICKET_SECONDS = 60
REAUTHENTICATION_SECONDS = 10
TOKEN_SECONDS = (20, 60)
"""Renewal interval and longest life of HDFS's delegation tokens."""
AWAY_SECONDS = 80.0
"""Time without a KDC: longer than a ticket lives."""
KAFKA_USER, HDFS_USER, USER = "flafka", "alice", "bob"
"""Principals of Kafka's clients, of a sink with a keytab, and of the user's ticket cache."""
SEVERAL = "several"
"""Keytab of Kafka's clients."""
ROUNDS = 2
FEED_SECONDS = 0.5
TIMEOUT_SECONDS = 300.0
TOPICS = ("events", "copied", "second")
BROKER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://localhost:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:flafka
allow.everyone.if.no.acl.found=false
sasl.enabled.mechanisms=GSSAPI
sasl.kerberos.service.name=kafka
connections.max.reauth.ms={reauthentication}
listener.name.sasl_plaintext.gssapi.sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required \
useKeyTab=true storeKey=true keyTab="{keytab}" principal="kafka/localhost@{realm}";
"""
AGENT = """\
a1.sources = tcp copied
a1.channels = events second
a1.sinks = keytab tickets copy second
a1.sources.tcp.type = netcat
a1.sources.tcp.bind = 127.0.0.1
a1.sources.tcp.port = 0
a1.sources.tcp.ack-every-event = false
a1.sources.tcp.channels = events
a1.sources.copied.type = kafka
a1.sources.copied.kafka.topics = copied
a1.sources.copied.kafka.consumer.group.id = copied
a1.sources.copied.channels = second
a1.channels.events.type = kafka
a1.channels.events.kafka.topic = events
a1.channels.events.partitions = 2
a1.channels.events.replication = 1
a1.channels.second.type = kafka
a1.channels.second.kafka.topic = second
a1.channels.second.partitions = 2
a1.channels.second.replication = 1
a1.sinks.copy.type = kafka
a1.sinks.copy.channel = events
a1.sinks.copy.group = copy
a1.sinks.copy.kafka.topic = copied
"""
TWO_LOGINS = """\
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = kafka
a1.sources.s1.kafka.topics = t
a1.sources.s1.channels = c1
a1.channels.c1.type = kafka
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
HDFS_SINK = """\
a1.sinks.{name}.type = hdfs
a1.sinks.{name}.channel = {channel}
a1.sinks.{name}.group = {name}
a1.sinks.{name}.hdfs.path = {path}
a1.sinks.{name}.hdfs.webhdfs = {webhdfs}
a1.sinks.{name}.hdfs.fileType = DataStream
a1.sinks.{name}.hdfs.rollInterval = 5
a1.sinks.{name}.hdfs.rollSize = 0
a1.sinks.{name}.hdfs.rollCount = 0
"""


class BuiltClient:
    """Virtual environment with this project and a Kafka client with GSSAPI, built once a version of the script."""

    def __init__(self) -> None:
        key = SCRIPT.read_bytes() + sys.version.encode() + sysconfig.get_path("purelib").encode()
        self.directory = cache_directory() / f"kafka-gssapi-{hashlib.sha256(key).hexdigest()[:12]}"
        self.python = self.directory / "venv" / "bin" / "python"
        self._packages = self.directory / "packages"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of an agent: the directory of the unpacked module of libsasl2."""
        return {"SASL_PATH": str(next(self._packages.glob("usr/lib/*/sasl2")))}

    def build(self) -> float:
        """Build the client, and return the seconds that the script takes; 0 if it was built before."""
        done = self.directory / "done"
        if done.exists():
            return 0.0
        self._packages.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-q", "download", *DEBIAN], cwd=self._packages, check=True, capture_output=True)
        for package in self._packages.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, self._packages], check=True)
        headers = self._packages / "usr/include"
        libraries = next(self._packages.glob("usr/lib/*/sasl2")).parent
        for name, version in LIBRARIES.items():
            link = libraries / f"{name}.so"
            link.unlink(missing_ok=True)
            link.symlink_to(Path("/", libraries.relative_to(self._packages), f"{name}.so.{version}"))
        subprocess.run(["npm", "pack", "--silent", SOURCE], cwd=self.directory, check=True, capture_output=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.python.parents[1]], check=True)
        flags = {
            "CPPFLAGS": f"-I{headers} -I{headers / libraries.name}",
            "LDFLAGS": f"-L{libraries}",
        }
        began, source = time.monotonic(), next(self.directory.glob("*.tgz"))
        command = ["bash", str(SCRIPT), str(self.python.parents[1]), str(source)]
        subprocess.run(command, env={**os.environ, **flags, **self.environment}, check=True)
        seconds = time.monotonic() - began
        # What this process has installed, behind the client that was built.
        packages = next(self.python.parents[1].glob("lib/*/site-packages"))
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (packages / "everything_else.pth").write_text(line)
        done.touch()
        return seconds


class KerberosBroker:
    """One broker that admits clients with Kerberos alone, but for the tests themselves; only `flafka` has rights."""

    def __init__(self, directory: Path, kdc: Kdc) -> None:
        self._directory, self._kdc = directory, kdc
        self._plain, self._sasl, self._controller = free_ports(3)
        self.servers = f"localhost:{self._sasl}"
        self.by_address = f"127.0.0.1:{self._sasl}"
        self.admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self._plain}", "log_level": 0})

    def __enter__(self) -> KerberosBroker:
        java, lib, file = find_java(), ensure("kafka"), self._directory / "server.properties"
        file.write_text(
            BROKER.format(
                controller=self._controller,
                plain=self._plain,
                sasl=self._sasl,
                directory=self._directory,
                reauthentication=REAUTHENTICATION_SECONDS * 1000,
                keytab=self._kdc.service_keytab,
                realm=REALM,
            )
        )
        quiet = self._directory / "log4j2.properties"
        quiet.write_text(
            "rootLogger.level=warn\nrootLogger.appenderRef.a.ref=o\nappender.o.type=Console\nappender.o.name=o\n"
        )
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "_")
        tool = java_command(java, [lib / "*"], "kafka.tools.StorageTool", heap_mb=64, options=())
        subprocess.run([*tool, "format", "-t", cluster_id, "-c", str(file)], check=True, capture_output=True)
        options = [
            f"-Djava.security.krb5.conf={self._kdc.krb5_conf}",
            "-Dsun.security.krb5.rcache=none",
            f"-Dlog4j2.configurationFile={quiet}",
        ]
        command = java_command(java, [lib / "*"], "kafka.Kafka", heap_mb=192, options=options)
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, str(file)], stdout=log, stderr=log)
        until(self._answers, "the broker to answer", 120)
        for answer in self.admin.create_topics([NewTopic(topic, 2, 1) for topic in TOPICS]).values():
            answer.result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            return bool(self.admin.list_topics(timeout=1).brokers)
        except Exception:  # not yet
            return False


@pytest.fixture(scope="module")
def client() -> BuiltClient:
    return BuiltClient()


@pytest.fixture(scope="module")
def realm(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """KDC whose tickets for Kafka's clients are short."""
    with of_this_run(Kdc(tmp_path_factory.mktemp("realm"), fixed_ports=False)) as kdc:
        for user in (HDFS_USER, USER):
            kdc.add(user)
        # The first key of this keytab is another principal's: the configured one counts.
        kdc.add("other", SEVERAL)
        kdc.add(KAFKA_USER, SEVERAL)
        kdc.admin("modprinc", "-maxlife", f"{TICKET_SECONDS} seconds", KAFKA_USER)
        yield kdc


@pytest.fixture(scope="module")
def broker(realm: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosBroker]:
    with KerberosBroker(tmp_path_factory.mktemp("broker"), realm) as broker:
        yield broker


@pytest.fixture(scope="module")
def hdfs(realm: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureHdfs]:
    directory = tmp_path_factory.mktemp("hdfs")
    with of_this_run(SecureHdfs(directory, kdc=realm, token_seconds=TOKEN_SECONDS, fixed_ports=False)) as cluster:
        yield cluster


@pytest.fixture
def login(realm: Kdc, broker: KerberosBroker) -> Callable[..., str]:
    """Function that returns the lines of the login of Kafka components, which are given as path and client."""

    def lines(*clients: str, principal: str = KAFKA_USER) -> str:
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.principal": f"{principal}@{REALM}",
            "sasl.kerberos.keytab": str(realm.keytab(SEVERAL)),
        }
        paths = {path.rpartition(".kafka.")[0] for path in clients}
        return "\n".join(
            [f"{path}.kafka.bootstrap.servers = {broker.servers}" for path in paths]
            + [f"{path}.{name} = {value}" for path in clients for name, value in properties.items()]
        )

    return lines


def test_two_principals_are_refused(
    tmp_path: Path, client: BuiltClient, realm: Kdc, login: Callable[..., str]
) -> None:
    client.build()
    file = tmp_path / "agent.conf"
    others = login("a1.sources.s1.kafka.consumer", principal="other")
    file.write_text(
        f"{TWO_LOGINS}{login('a1.channels.c1.kafka.producer', 'a1.channels.c1.kafka.consumer')}\n{others}\n"
    )
    for command in ("check", "start"):
        result = subprocess.run(
            [client.python, "-m", "flafka", command, "-c", file],
            env={**os.environ, **client.environment, **realm.variables()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 2
        assert f"have one Kerberos login, and this is other@{REALM} by " in result.stdout + result.stderr
        assert f"that of a1.channels.c1 {KAFKA_USER}@{REALM} by " in result.stdout + result.stderr


def test_commands_log_in_with_the_keytab(
    tmp_path: Path, client: BuiltClient, realm: Kdc, broker: KerberosBroker
) -> None:
    client.build()
    file, principal = tmp_path / "client.properties", f"{KAFKA_USER}@{REALM}"
    module = f"com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true principal={principal!r}"

    def topics(servers: str, keytab: Path) -> str:
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
            f'sasl.jaas.config={module} keyTab="{keytab}";\n'
        )
        options = ["--bootstrap-server", servers, "--command-config", str(file)]
        result = subprocess.run(
            [client.python, "-m", "flafka", "topic", "list", *options],
            env={**os.environ, **client.environment, **realm.variables()},
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout + result.stderr

    assert {*TOPICS} <= {*topics(broker.servers, realm.keytab(SEVERAL)).split()}
    assert f"has no key of {principal}, only of {HDFS_USER}@" in topics(broker.servers, realm.keytab(HDFS_USER))
    assert f"has no service kafka/127.0.0.1@{REALM}" in topics(broker.by_address, realm.keytab(SEVERAL))


def test_nothing_is_lost_while_the_kdc_is_away_and_the_principal_disabled(
    tmp_path: Path,
    client: BuiltClient,
    realm: Kdc,
    broker: KerberosBroker,
    hdfs: SecureHdfs,
    login: Callable[..., str],
    figures: list[str],
) -> None:
    built, name = client.build(), unique("gssapi")
    users = {"keytab": HDFS_USER, "tickets": USER, "second": HDFS_USER}
    configuration = AGENT + login(
        "a1.sources.copied.kafka.consumer",
        "a1.sinks.copy.kafka.producer",
        *(
            f"a1.channels.{channel}.kafka.{kind}"
            for channel in ("events", "second")
            for kind in ("producer", "consumer")
        ),
    )
    for sink, user in users.items():
        hdfs.create_directory(f"/{name}/{sink}", user)
        channel = "second" if sink == "second" else "events"
        configuration += "\n" + HDFS_SINK.format(
            name=sink, channel=channel, path=f"/{name}/{sink}", webhdfs=hdfs.webhdfs
        )
        if sink != "tickets":
            configuration += f"a1.sinks.{sink}.hdfs.kerberosPrincipal = {user}@{REALM}\n"
            configuration += f"a1.sinks.{sink}.hdfs.kerberosKeytab = {realm.keytab(user)}\n"
    tickets = tmp_path / "tickets"
    realm.kinit(USER, tickets)
    environment = {
        **client.environment,
        **realm.variables(),
        "KRB5CCNAME": f"FILE:{tickets}",
    }
    command = [str(client.python), "-m", "flafka", "start"]
    enough, sent, causes = threading.Event(), list[str](), dict[str, str]()
    with RunningAgent(tmp_path, configuration, environment=environment, command=command) as agent:
        agent.wait_until_healthy()
        connection = socket.create_connection(("127.0.0.1", agent.port("tcp")))

        def feed() -> None:
            while not enough.wait(FEED_SECONDS):
                ids = [f"event {len(sent) + number}" for number in range(20)]
                connection.sendall("".join(f"{line}\n" for line in ids).encode())
                sent.extend(ids)

        def delivers(seconds: float = TIMEOUT_SECONDS) -> float:
            """Block until each sink delivers, and return the seconds."""
            began = time.monotonic()
            counts = {sink: agent.count(f"SINK.{sink}", "EventDrainSuccessCount") for sink in (*users, "copy")}
            for sink, before in counts.items():
                agent.until(
                    lambda s=sink, b=before: agent.count(f"SINK.{s}", "EventDrainSuccessCount") > b, sink, seconds
                )
            return time.monotonic() - began

        def away(cause: str) -> None:
            """Wait until the agent reports the cause for Kafka's principal, for `AWAY_SECONDS` in all."""
            end = time.monotonic() + AWAY_SECONDS

            def reports() -> bool:
                texts = [*agent.failing().values(), *agent.degraded().values()]
                named = [text for text in texts if f"{KAFKA_USER}@{REALM}" in text and cause in text]
                causes.update((cause, text) for text in named)
                return bool(named)

            agent.until(reports, f"{cause!r} to be reported", TIMEOUT_SECONDS)
            time.sleep(max(0.0, end - time.monotonic()))

        feeding, longest = threading.Thread(target=feed, daemon=True), 0.0
        feeding.start()
        try:
            delivers()
            for _ in range(ROUNDS):
                realm.kill("kdc")
                away("Cannot contact any KDC")
                realm.start()
                longest = max(longest, delivers())
                realm.admin("modprinc", "-allow_tix", KAFKA_USER)
                away("have been revoked")
                realm.admin("modprinc", "+allow_tix", KAFKA_USER)
                longest = max(longest, delivers())
        finally:
            enough.set()
            feeding.join(60)
        connection.close()
        wanted = Counter(sent)
        delivered = {sink: Counter(hdfs.lines(f"/{name}/{sink}")) for sink in users}

        def is_complete() -> bool:
            delivered.update({sink: Counter(hdfs.lines(f"/{name}/{sink}")) for sink in users})
            return not any(wanted - counts for counts in delivered.values())

        agent.until(is_complete, "all events", TIMEOUT_SECONDS)
        assert agent.stop() == 0
        log = agent.log
    assert "Traceback" not in log
    doubled = {sink: sum((counts - wanted).values()) for sink, counts in delivered.items()}
    assert doubled == dict.fromkeys(users, 0)
    for sink, user in users.items():
        assert {*hdfs.files(f"/{name}/{sink}").values()} == {user}
    figures.append(
        f"Kafka with Kerberos: {len(sent):,} events, each once in three directories; {ROUNDS} times the KDC was away "
        f"and the principal disabled, for {AWAY_SECONDS:.0f} s each, with tickets of {TICKET_SECONDS} s; delivery "
        f"went on within {longest:.0f} s; the client was built in {built:.0f} s"
    )
    figures.extend(causes.values())

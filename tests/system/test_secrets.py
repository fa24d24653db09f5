"""Planted secrets, which no log, error, process list, page, command or file of an agent may show."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import ssl
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from click.testing import CliRunner
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from flafka.agent.cli import main
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.properties import parse
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.options import AgentOptions
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Component
from tests.agent.test_page import view_of
from tests.fixtures.ports import free_port
from tests.fixtures.secured import PACKAGE, SecuredKafka
from tests.plugins.certificates import certificate
from tests.system.running import ROOT, connected, send, unique
from tests.test_every_component import built_in

NAMES = {"source": "s1", "channel": "c1", "interceptor": "i1", "sink": "k1"}
"""Names of the components in docs/samples."""
LINES = {
    "source": {"ssl": "true", "keystore": "{home}/server.pem", "truststore": "{home}/server.crt"},
    "sink": {"ssl": "true", "truststore": "{home}/server.crt"},
}
"""Options that let the secrets of components take effect, where they have these options."""
MORE = {
    "source avro": {"keystore": "{home}/server.p12"},  # its password is wrong
    "source http": {"username": "user"},
    "source multiport_syslogtcp": {"ports": "0", "charset.port.5141": ""},
    "sink hdfs": {"hdfs.path": "swebhdfs://localhost:{closed}/logs", "hdfs.truststore": "{home}/server.crt"},
    "sink avro": {"hostname": "localhost", "port": "{closed}"},
    "sink thrift": {"hostname": "localhost", "port": "{closed}"},
    "sink http": {"endpoint": "https://localhost:{closed}/"},
    "sink solr": {"url": "https://localhost:{closed}/solr/logs", "username": "user"},
    "sink elasticsearch": {"hostNames": "https://localhost:{closed}", "username": "user"},
}
"""Options of single components, by kind and type. An empty one removes an option of docs/samples."""
KAFKA = """
a1.channels.kafka.type = kafka
a1.channels.kafka.kafka.bootstrap.servers = localhost:{closed}
a1.channels.kafka.kafka.producer.security.protocol = SASL_PLAINTEXT
a1.channels.kafka.kafka.producer.sasl.mechanism = SCRAM-SHA-256
a1.channels.kafka.kafka.producer.debug = all
a1.channels.kafka.kafka.producer.log_level = 7
a1.channels.kafka.kafka.producer.sasl.jaas.config = x.ScramLoginModule required username="u" password="{jaas}";
a1.channels.kafka.kafka.consumer.security.protocol = SASL_PLAINTEXT
a1.channels.kafka.kafka.consumer.sasl.mechanism = PLAIN
a1.channels.kafka.kafka.consumer.debug = all
a1.channels.kafka.kafka.consumer.log_level = 7
a1.channels.kafka.kafka.consumer.sasl.jaas.config = y.PlainLoginModule required username='u' password='{single}';
a1.sinks.null.type = null
a1.sinks.null.channel = kafka
a1.sources.kafka.type = kafka
a1.sources.kafka.channels = memory
a1.sources.kafka.kafka.topics = t
a1.sources.kafka.kafka.bootstrap.servers = localhost:{closed}
a1.sources.kafka.kafka.consumer.security.protocol = SSL
a1.sources.kafka.kafka.consumer.ssl.keystore.location = {home}/server.p12
a1.sources.kafka.kafka.consumer.ssl.keystore.password = {keystore}
a1.sources.kafka.kafka.consumer.ssl.key.password = {key}
a1.sinks.kafka.type = kafka
a1.sinks.kafka.channel = memory
a1.sinks.kafka.kafka.topic = u
a1.sinks.kafka.kafka.bootstrap.servers = localhost:{closed}
a1.sinks.kafka.kafka.producer.security.protocol = SASL_PLAINTEXT
a1.sinks.kafka.kafka.producer.sasl.mechanism = SCRAM-SHA-512
a1.sinks.kafka.kafka.producer.debug = all
a1.sinks.kafka.kafka.producer.log_level = 7
a1.sinks.kafka.kafka.producer.sasl.username = u
a1.sinks.kafka.kafka.producer.sasl.password = {password}
a1.spark.conf.spark.ssl.keyPassword = {spark}
"""


SOME_SECRET = "${env:PLANTED_2}"


class Secrets:
    """Planted values, and texts in which they are searched for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.planted: dict[str, str] = {}
        """Value by the name of its option."""
        self.environment: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self._ways = itertools.cycle(("text", "file", "environment"))

    def plant(self, option: str, value: str = "", way: str = "") -> str:
        """Return the text of a configuration for a new secret: itself, in a file, or in an environment variable."""
        number = len(self.planted)
        self.planted[option] = value = value or f"planted{number}-{uuid.uuid4().hex}"
        way = way or next(self._ways)
        if way == "file":
            (self._directory / f"secret{number}").write_text(f"{value}\n")
            return f"${{file:{self._directory}/secret{number}}}"
        if way == "environment":
            self.environment[f"PLANTED_{number}"] = value
            return f"${{env:PLANTED_{number}}}"
        return value

    def run(self, *words: str) -> int:
        """Run a command, keep its output and the traceback of its failure, and return its exit code."""
        result = CliRunner().invoke(main, [*words], env=self.environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        self.texts[f"agent {' '.join(words)}"] = result.output
        return result.exit_code

    def keep_processes(self, agent: RunningAgent, fragment: bytes = b"") -> None:
        """Keep the command lines of an agent and its descendants, one of which has the fragment."""
        lines = command_lines(agent.process.pid)
        assert any(fragment in line for line in lines), lines
        self.texts["process list"] = b"\n".join(lines).replace(b"\0", b" ").decode(errors="replace")

    def keep_files(self, directory: Path) -> None:
        """Keep all files below a directory, without the configuration and the files of secrets."""
        for file in directory.rglob("*"):
            if file.is_file() and file.name != "agent.conf" and not file.name.startswith("secret"):
                self.texts[str(file)] = file.read_bytes().decode(errors="replace")

    def leaks(self) -> list[str]:
        """Return text, option and line of each place that shows a secret, also in Base64 or percent-encoded."""
        leaks = []
        for option, value in self.planted.items():
            forms = {value, quote(value), base64.b64encode(value.encode()).decode().rstrip("=")}
            forms.add(base64.b64encode(f"user:{value}".encode()).decode().rstrip("="))
            for name, text in self.texts.items():
                lines = [line for line in text.splitlines() if any(form in line for form in forms)]
                leaks += [f"{name} shows {option}: {excerpt(line, forms)}" for line in lines[:1]]
        return leaks


def excerpt(line: str, forms: Iterable[str]) -> str:
    """Return the part of a line around the first of these forms in it."""
    start = min(line.find(form) for form in forms if form in line)
    return line[max(start - 100, 0) : start + 100]


def command_lines(pid: int) -> list[bytes]:
    """Return the command lines of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(directory.name))
    lines, pending = [], [pid]
    while pending:
        one = pending.pop()
        pending += children.get(one, ())
        try:
            lines.append(Path(f"/proc/{one}/cmdline").read_bytes())
        except OSError:
            continue
    return lines


def secret_options(options: Iterable[Any]) -> list[str]:
    return [option.name for option in options if option.is_secret and not option.without_effect]


def paths(routes: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all routes, and of those below them."""
    for route in routes:
        path = prefix + route.path.replace("{name}", "page.js")
        if getattr(route, "routes", None):
            yield from paths(route.routes, path)
        else:
            yield path


def sample(kind: str, cls: type[Component[Any]], prefix: str) -> dict[str, str]:
    """Return the properties of a component in docs/samples, by full name below another prefix."""
    file = ROOT / f"docs/samples/{kind}-{cls.type_name}.conf"
    start = {"interceptor": "a1.sources.s1.interceptors.i1."}.get(kind, f"a1.{kind}s.{NAMES[kind]}.")
    properties = parse(file.read_text(), str(file), DiagnosticCollector("normal"))
    return {prefix + prop.name.removeprefix(start): prop.value for prop in properties if prop.name.startswith(start)}


def every_secret(secrets: Secrets, home: Path, port: int, closed: int) -> str:
    """Return the configuration of an agent with each component that declares a secret, and each secret planted."""
    words = {"home": str(home), "closed": str(closed)}
    properties: dict[str, str] = {}
    names: dict[str, list[str]] = {
        "source": ["last", "kafka"],
        "channel": ["memory", "kafka"],
        "sink": ["kafka", "null"],
    }
    interceptors = []
    for title, cls in built_in().items():
        kind = title.partition(" ")[0]
        options = {option.name for option in cls.config_class.options()}
        declared = secret_options(cls.config_class.options())
        if not declared:
            continue
        name = cls.type_name.lower()
        prefix = f"a1.{kind}s.{name}."
        if kind == "interceptor":
            prefix = f"a1.sources.last.interceptors.{name}."
            interceptors.append(name)
        else:
            names[kind].append(name)
        properties |= sample(kind, cls, prefix)
        lines = {option: value for option, value in LINES.get(kind, {}).items() if option in options}
        for option, value in {**lines, **MORE.get(title, {})}.items():
            properties[prefix + option] = value.format(**words)
        if kind == "source":
            properties[f"{prefix}channels"] = "memory"
            properties[f"{prefix}{'bind' if 'bind' in options else 'host'}"] = "127.0.0.1"
            properties |= {f"{prefix}port": "0"} if "port" in options else {}
        elif kind == "sink":
            properties |= {f"{prefix}channel": f"to-{name}", f"a1.channels.to-{name}.type": "memory"}
            names["channel"].append(f"to-{name}")
        for option in declared:
            properties[prefix + option] = secrets.plant(f"{title}: {option}")
    for option in secret_options(AgentOptions.options()):
        properties[f"a1.{option}"] = secrets.plant(f"agent: {option}")
    password = secrets.planted["agent: monitoring.keystore-password"]
    (home / "own").mkdir()
    certificate(home / "own", password=password)
    ways = {"jaas": "text", "single": "file", "key": "text", "keystore": "text", "password": "environment"}
    planted = {word: secrets.plant(f"Kafka: {word}", way=way) for word, way in {**ways, "spark": "text"}.items()}
    planted["jaas"] = planted["jaas"].replace("-", '\\\\"')
    secrets.planted["Kafka: jaas"] = secrets.planted["Kafka: jaas"].rpartition("-")[2]
    lists = [f"a1.{kind}s = {' '.join(dict.fromkeys(listed))}" for kind, listed in names.items()]
    return "\n".join(
        [
            *lists,
            *(f"{name} = {value}" for name, value in properties.items() if value),
            KAFKA.format(**words, **planted),
            "a1.channels.memory.type = memory",
            "a1.sources.last.type = netcat",
            "a1.sources.last.bind = 127.0.0.1",
            "a1.sources.last.port = 0",
            f"a1.sources.last.channels = {' '.join(set(names['channel']) - {'kafka'})}",
            f"a1.sources.last.interceptors = {' '.join(interceptors)}",
            f"a1.monitoring.port = {port}",
            "a1.monitoring.ssl = true",
            f"a1.monitoring.keystore = {home}/own/server.p12",
            f"a1.monitoring.file = {home}/metrics.json",
        ]
    )


class Page:
    """Client of an agent's own HTTP server, over TLS."""

    def __init__(self, port: int, authority: Path, token: str) -> None:
        self._port, self._token = port, token
        self._context = ssl.create_default_context(cafile=authority)

    def get(self, path: str, *, token: bool = True) -> str:
        """Return status, headers and body as one text; empty if there is no answer."""
        client = http.client.HTTPSConnection("localhost", self._port, timeout=60, context=self._context)
        headers = {"authorization": f"Bearer {self._token}"} if token else {}
        with contextlib.closing(client), contextlib.suppress(OSError):
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            return f"{answer.status}\n{answer.headers}\n{answer.read().decode()}"
        return ""

    def failing(self) -> set[str]:
        answer = self.get("/healthz")
        problems = json.loads(answer.splitlines()[-1])["problems"] if answer else []
        return {problem["metrics"] for problem in problems if problem["severity"] == "failing"}


def test_no_secret_that_a_component_declares_is_shown(tmp_path: Path) -> None:
    certificate(tmp_path)
    secrets, port, closed = Secrets(tmp_path), free_port(), free_port()
    text = every_secret(secrets, tmp_path, port, closed)
    environment = {**secrets.environment, "FLAFKA_LOG_LEVEL": "DEBUG"}
    with RunningAgent(tmp_path / "agent", text, environment=environment) as agent:
        chosen = ("-c", str(agent.file))
        assert secrets.run("check", "-v", "--connect", "--json", *chosen) == 2
        page = Page(port, tmp_path / "own/server.crt", secrets.planted["agent: monitoring.token"])
        with connected(agent.port("last")) as sender:
            sender.sendall(b"4111 1111 1111 1111\n" * 100)
            failing = {
                f"SINK.{name}" for name in ("avro", "elasticsearch", "hdfs", "http", "kafka", "solr", "thrift")
            }
            failing |= {"SOURCE.avro", "SOURCE.kafka", "CHANNEL.kafka"}
            agent.until(lambda: failing <= page.failing(), "failures")
        for path in paths(MetricsServer(Registry("a1"), "", 0, view_of(Registry("a1")))._app().routes):
            for token in (True, False):
                secrets.texts[f"{path} {token}"] = page.get(path, token=token)
        assert '"id":"a1.sinks.solr"' in secrets.texts["/api/graph True"]
        for component in ("last", "memory", "http"):
            secrets.texts[f"sample {component}"] = page.get(f"/api/sample?component={component}")
        for words in (["top"], ["top", "--json"], ["graph"], ["reload"]):
            assert secrets.run(*words, *chosen) == 0, secrets.texts
        secrets.keep_processes(agent)
        agent.stacks()
        assert "[redacted]" in agent.log, "librdkafka logs no settings"
    secrets.keep_files(tmp_path)
    wrong = tmp_path / "wrong.conf"
    wrong.write_text(wrong_values(text))
    for words in (["check", "-v"], ["start"]):
        assert secrets.run(*words, "-c", str(wrong)) == 2
    assert not secrets.leaks(), "\n".join(secrets.leaks())


def wrong_values(text: str) -> str:
    """Return a configuration whose components have errors beside their secrets, and secrets in wrong options."""
    lines = []
    for line in text.splitlines():
        name, _, value = line.partition(" = ")
        option = name.rpartition(".")[2]
        lines.append(line)
        if option in ("token", "key"):  # a token has no blanks, and a key no comma
            lines[-1] = f"{name} = , {value} ,"
        if option == "type":
            owner = name.removesuffix("type")
            lines += [f"{owner}{wrong} = {SOME_SECRET}" for wrong in ("batchSize", "port", "passwort")]
    return "\n".join(lines)


ON_SPARK = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.channels.c1.type = kafka
a1.channels.c1.kafka.topic = {topic}
a1.channels.c1.kafka.consumer.group.id = {topic}
a1.channels.c1.kafka.bootstrap.servers = {servers}
a1.channels.c1.replication = 1
a1.channels.c1.partitions = 1
a1.channels.c1.kafka.producer.sasl.username = {user}
a1.channels.c1.kafka.producer.sasl.password = {producer}
a1.channels.c1.kafka.consumer.sasl.jaas.config = {module} required username="{user}" password="{consumer}";
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.k1.runner = spark
a1.monitoring.file = {home}/metrics.json
a1.spark.master = local[1]
a1.spark.triggerInterval = 1
a1.spark.conf.spark.ssl.keyPassword = {spark}
a1.spark.conf.spark.driver.extraJavaOptions = -Dplanted.password={java}
a1.spark.conf.spark.eventLog.enabled = true
a1.spark.conf.spark.eventLog.compress = false
a1.spark.conf.spark.eventLog.dir = file://{home}/events
"""


def test_spark_and_the_kafka_client_show_no_password(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    secrets, topic, user = Secrets(tmp_path), unique("secrets"), "planted-user"
    ways = {"producer": "file", "consumer": "environment", "spark": "text", "java": "file"}
    planted = {option: secrets.plant(option, way=way) for option, way in ways.items()}
    secrets.planted["consumer"] = secrets.environment["PLANTED_1"] = secrets.planted["producer"]
    login = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(user, login, secrets.planted["producer"].encode())
    for answer in secured_kafka.admin.alter_user_scram_credentials([change]).values():
        answer.result(20)
    rights = [(ResourceType.TOPIC, topic), (ResourceType.TOPIC, f"{topic}.deadletters"), (ResourceType.GROUP, topic)]
    secured_kafka.allow(*((*right, AclOperation.ALL) for right in rights), user=user)
    words = {"topic": topic, "user": user, "home": tmp_path, "servers": secured_kafka.servers["sha256"]}
    text = ON_SPARK.format(**words, module=f"{PACKAGE}scram.ScramLoginModule", **planted)
    for kind in ("producer", "consumer"):
        lines = {**secured_kafka.security("sha256"), "debug": "all", "log_level": "7"}
        for name in ("security.protocol", "sasl.mechanism", "ssl.ca.location", "debug", "log_level"):
            text += f"a1.channels.c1.kafka.{kind}.{name} = {lines[name]}\n"
    (tmp_path / "events").mkdir()
    environment = {**secrets.environment, "FLAFKA_LOG_LEVEL": "DEBUG"}
    with RunningAgent(tmp_path / "agent", text, environment=environment) as agent:
        send(agent.port("s1"), b"an event\n")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1, "the event")
        chosen = ("-c", str(agent.file))
        for words in (["check", "--connect"], ["dlq", "list"]):
            assert secrets.run(*words, *chosen) == 0, secrets.texts
        secrets.keep_processes(agent, b"org.apache.spark.deploy.SparkSubmit")
        for path in ("/", "/metrics", "/metrics/prometheus", "/healthz", "/api/graph", "/api/state"):
            secrets.texts[path] = agent.get(path)[1].decode()
        assert agent.stop() == 0, agent.log[-3000:]
    secrets.keep_files(tmp_path)
    events = "".join(text for name, text in secrets.texts.items() if name.startswith(f"{tmp_path}/events"))
    assert '"spark.ssl.keyPassword":"*********(redacted)"' in events
    assert "SASL" in secrets.texts[str(tmp_path / "agent/agent.log")]
    assert not secrets.leaks(), "\n".join(secrets.leaks())

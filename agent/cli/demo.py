"""`agent demo`: the whole pipeline on one machine, with real servers and real logs, and the books at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.books import Books, HdfsReader, audit, lines, read_topic
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from plugins import Components, FlafkaError

_PACKAGE = Path(__file__).parent.parent
# In a checkout the configurations lie beside the package, in a wheel within it.
CONFIGURATION = next((d / "demo.conf" for d in (_PACKAGE.parent / "conf", _PACKAGE / "conf") if d.is_dir()), Path())
MESSAGES = 500
"""Sent by `logger` over each of TCP and UDP in each of the two formats."""
ROOT = "/flafka/demo"
console = Console(highlight=False)


@click.command()
@click.option("--exit", "leave", is_flag=True, help="Stop everything afterwards; exit 0 only if the books balance.")
@click.option("--seconds", default=15, show_default=True, help="How long the servers' own logs are tailed.")
@click.option(
    "--runner", type=click.Choice(["local", "spark"]), default="local", show_default=True, help="What delivers."
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where servers keep their data and logs.")
def demo(leave: bool, seconds: int, runner: str, directory: Path | None) -> None:
    """Start Kafka and HDFS, run conf/demo.conf on real input, and compare what went in with what came out."""
    if shutil.which("logger") is None:
        raise FlafkaError("the demo sends syslog with `logger`: install the package util-linux (Debian: bsdutils)")
    home = directory or Path(tempfile.mkdtemp(prefix="flafka-demo-"))
    with ExitStack() as stack:
        kafka = KafkaCluster(home / "kafka", fixed_ports=False)
        hdfs = HdfsCluster(home / "hdfs", fixed_ports=False)
        for name, cluster in (("three Kafka brokers", kafka), ("HDFS", hdfs)):
            with _step(f"starting {name}"):
                cluster.start()
            if leave:
                stack.callback(cluster.stop)
        run = _Run(home, kafka, hdfs, runner)
        stack.callback(run.kill)
        with _step(f"agent start -c {CONFIGURATION.name} (runner = {runner})"):
            run.start()
        with _step(f"logger sends {4 * MESSAGES:,} syslog messages: TCP and UDP, RFC 3164 and RFC 5424"):
            run.send()
        with _step(f"tailing the servers' logs for {seconds} s"):
            time.sleep(seconds)
        with _step("SIGTERM: the agent drains and commits"):
            run.stop()
        with _step("agent start --drain: what the channel still holds"):
            run.drain()
        with _step("comparing the channel with HDFS, event by event"):
            records = read_topic(kafka.bootstrap_servers, run.topic, Components().get("channel", "kafka"))  # type: ignore[arg-type]
            reader = HdfsReader(hdfs.webhdfs)
            books = audit(records, reader, run.root)
        balanced = run.show(books, reader)
        if not leave:
            console.print(
                f"\nThe servers go on running. Look around:\n"
                f"  agent topic describe {run.topic} --bootstrap-server {kafka.bootstrap_servers}\n"
                f"  curl 'http://{hdfs.webhdfs}/webhdfs/v1{run.root}?op=LISTSTATUS'\n"
                f"Press Ctrl-C to stop them (data stays in {home})."
            )
            _until_interrupted()
            hdfs.stop()
            kafka.stop()
    if directory is None:
        shutil.rmtree(home, ignore_errors=True)
    if not balanced:
        sys.exit(1)


class _Run:
    """One agent on the demo's configuration."""

    def __init__(self, home: Path, kafka: KafkaCluster, hdfs: HdfsCluster, runner: str) -> None:
        stamp = time.strftime("%H%M%S")
        self.topic, self.root = f"demo-{stamp}", f"{ROOT}/{stamp}"
        self.home, self.metrics_port = home / f"agent-{stamp}", _free_port()
        self.home.mkdir(parents=True)
        self.tcp, self.udp = _free_port(), _free_port(socket.SOCK_DGRAM)
        self.environment = {
            **os.environ,
            "DEMO_DIR": str(self.home),
            "DEMO_TCP_PORT": str(self.tcp),
            "DEMO_UDP_PORT": str(self.udp),
            "DEMO_METRICS_PORT": str(self.metrics_port),
            "DEMO_KAFKA": kafka.bootstrap_servers,
            "DEMO_KAFKA_LOGS": str(kafka.directory / "logs"),
            "DEMO_HDFS_LOGS": str(hdfs.directory / "logs"),
            "DEMO_WEBHDFS": hdfs.webhdfs,
            "DEMO_TOPIC": self.topic,
            "DEMO_ROOT": self.root,
            "DEMO_RUNNER": runner,
        }
        self.log = self.home / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.sent = 0
        self.started = self.seconds = 0.0
        self.counters: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        self.started = time.monotonic()
        self.process = self._agent()
        self._await(lambda: self._listens(self.tcp), "the agent's syslog port")

    def _agent(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "agent", "start", "-c", str(CONFIGURATION), *arguments]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def send(self) -> None:
        """Syslog with something to hide in it."""
        source = self.home / "messages"
        source.write_text(
            "".join(
                f"order {number} paid with card 4111 1111 1111 1111 by ann{number}@example.com from 10.0.0.7\n"
                for number in range(MESSAGES)
            )
        )
        message = ["--tag", "shop", "--priority", "local0.notice", "--file", str(source)]
        for protocol, port in (("--tcp", self.tcp), ("--udp", self.udp)):
            for form in ("--rfc3164", "--rfc5424"):
                octets = ["--octet-count"] if (protocol, form) == ("--tcp", "--rfc5424") else []
                subprocess.run(
                    ["logger", "--server", "127.0.0.1", "--port", str(port), protocol, form, *octets, *message],
                    check=True,
                )
                self.sent += MESSAGES
        self._await(self._all_arrived, "the syslog messages in the agent")

    def _all_arrived(self) -> bool:
        counters = self._metrics()
        tcp, udp = counters.get("SOURCE.tcp", {}), counters.get("SOURCE.udp", {})
        dropped = int(udp.get("KernelDropCount", 0))
        return int(tcp.get("EventAcceptedCount", 0)) + int(udp.get("EventAcceptedCount", 0)) + dropped >= self.sent

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        if self._ended(120) != 0:
            raise FlafkaError(f"the agent did not stop cleanly; its log: {self.log}")
        self.seconds = time.monotonic() - self.started
        self.counters = json.loads((self.home / "metrics.json").read_text())

    def drain(self) -> None:
        self.process = self._agent("--drain")
        if self._ended(180) != 0:
            raise FlafkaError(f"the channel could not be drained; the agent's log: {self.log}")

    def _ended(self, seconds: float) -> int | None:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Leave no agent behind, whatever happened."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def show(self, books: Books, reader: HdfsReader) -> bool:
        """Print the books; whether they balance."""
        sources = {name: c for name, c in self.counters.items() if name.startswith("SOURCE.")}
        received = sum(int(c["EventReceivedCount"]) for c in sources.values())
        filtered = sum(int(c.get("EventFilteredCount", 0)) for c in sources.values())
        dropped = int(self.counters["SOURCE.udp"].get("KernelDropCount", 0))
        sent = int(sources["SOURCE.tcp"]["EventReceivedCount"]) + int(sources["SOURCE.udp"]["EventReceivedCount"])
        table = Table(title="\nThe books", title_justify="left", box=None, show_header=False)
        table.add_column(justify="right")
        table.add_column()
        for name, counters in sources.items():
            table.add_row(f"{int(counters['EventReceivedCount']):,}", f"received by {name.lower().replace('.', ' ')}")
        table.add_row(f"−{filtered:,}", "dropped on purpose by filters")
        table.add_row(f"{books.channel_events:,}", "in the channel, three replicas each")
        table.add_row(f"{books.delivered_events:,}", f"in HDFS, in {books.files} files")
        table.add_row(f"{dropped:,}", f"of {self.sent:,} sent by logger dropped by the kernel (UDP), counted")
        table.add_row(
            f"{received / self.seconds:,.0f}", f"events/s over {self.seconds:.0f} s, start and stop included"
        )
        console.print(table)
        files = reader.visible(self.root)
        for path in files[:: max(1, len(files) // 3)][:3]:
            console.print(f"\n[bold]{path}[/]", soft_wrap=True)
            for line in lines(reader.read(path))[:3]:
                row = Text("  " + line.decode(errors="replace"))
                console.print(row, no_wrap=True, overflow="ellipsis")
        wrong = list(books.differences[:10])
        if received - filtered != books.channel_events:
            wrong.append(f"sources − filtered = {received - filtered:,}, the channel holds {books.channel_events:,}")
        if sent + dropped != self.sent:
            wrong.append(f"logger sent {self.sent:,}, {sent:,} arrived and {dropped:,} were dropped")
        for text in wrong:
            console.print(f"[red]{text}")
        balanced = books.balanced and not wrong
        console.print("\n[green]The books balance." if balanced else "\n[red]The books do not balance.")
        return balanced

    def _metrics(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return {}

    def _await(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace").splitlines()[-15:]
                raise FlafkaError("\n".join([f"waited in vain for {what}; the agent's log ends:", *tail]))
            time.sleep(0.05)

    def _listens(self, port: int) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _step(text: str) -> Iterator[None]:
    started = time.monotonic()
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        yield
    console.print(f"[green]✓[/] {text} [dim]({time.monotonic() - started:.1f} s)")


def _until_interrupted() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping the servers")


def _free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""Memory of an agent whose sink is down while its source runs at full speed, of an idle one, and of its dashboard.

The sink is `hdfs` behind a Kafka channel, with a NameNode address at which nothing listens. Syslog lines arrive as
fast as the agent reads them. The figure is the growth of the resident set. For an idle agent, the figures are the
resident set and the share of one core. For the dashboard, they are what an idle agent with 20 components takes more
while a browser shows its page.
"""

from __future__ import annotations

import shutil
import time

from bench.frame import Bench, Figures, PeerMissing, without_setup
from bench.frame.delivery import peak_memory
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds, resident_bytes
from bench.frame.syslog import Lines, ours
from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port

MIB = "MiB"


def run(bench: Bench) -> None:
    """Measure both; the sink that is down once, as it takes minutes."""
    bench.compare("idle agent", without_setup(lambda: idle(bench)), {}, warm_up_rounds=0)
    bench.compare("open dashboard", without_setup(lambda: dashboard(bench)), {}, warm_up_rounds=0)
    bench.compare("dead sink, full speed", without_setup(lambda: dead_sink(bench)), {}, rounds=1, warm_up_rounds=0)


def idle(bench: Bench) -> Figures:
    """Measure an idle agent, some seconds after its start."""
    topic = Topic(bench.kafka.bootstrap_servers, bench.directory("idle").name)
    with ours(bench, topic) as receiver:
        return _idle_figures(bench, receiver.pid)


def _idle_figures(bench: Bench, pid: int) -> Figures:
    """Return resident set and share of one core of a process that has little to do."""
    time.sleep(1 if bench.smoke else 5)
    cpu, began = cpu_seconds(pid), time.perf_counter()
    time.sleep(1 if bench.smoke else 15)
    share = (cpu_seconds(pid) - cpu) / (time.perf_counter() - began)
    return {MIB: resident_bytes(pid) / 2**20, "% of a core": share * 100}


def dashboard(bench: Bench) -> Figures:
    """Measure what an open page takes of an idle agent with six sources, six channels and eight sinks."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as e:
        raise PeerMissing("Playwright is not installed") from e
    if (path := shutil.which("chromium")) is None:
        raise PeerMissing("there is no Chromium")
    port = free_port()
    with RunningAgent(bench.directory("dashboard"), _twenty_components(port)) as agent:
        agent.until(lambda: agent.get("/readyz")[0] == 200, "the agent to be ready")
        before = _idle_figures(bench, agent.process.pid)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            page.locator(".card").first.wait_for()
            during = _idle_figures(bench, agent.process.pid)
            browser.close()
    return {f"{unit} more than without": during[unit] - before[unit] for unit in before}


def _twenty_components(port: int) -> str:
    """Return a configuration with the monitoring at this port."""
    lines = [f"a.monitoring.port = {port}"]
    for kind, type_name, count in (("source", "netcat", 6), ("channel", "memory", 6), ("sink", "null", 8)):
        names = [f"{kind[0]}{number}" for number in range(count)]
        lines.append(f"a.{kind}s = {' '.join(names)}")
        lines += (f"a.{kind}s.{name}.type = {type_name}" for name in names)
    for number in range(8):
        lines.append(f"a.sinks.s{number}.channel = c{number % 6}")
    for number in range(6):
        lines += (
            f"a.sources.s{number}.{option}" for option in (f"channels = c{number}", "bind = 127.0.0.1", "port = 0")
        )
    return "\n".join(lines)


def dead_sink(bench: Bench) -> Figures:
    """Measure an agent whose sink is down, for five minutes."""
    seconds = 3 if bench.smoke else 300
    topic = Topic(bench.kafka.bootstrap_servers, "dead-sink")
    sink = (
        "a.sinks = dead",
        "a.sinks.dead.type = hdfs",
        "a.sinks.dead.channel = kafka",
        f"a.sinks.dead.hdfs.path = webhdfs://127.0.0.1:{free_port()}/logs",
    )
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    with ours(bench, topic, *sink) as receiver:
        receiver.take(lines.fewer(100))
        before = resident_bytes(receiver.pid) / 2**20
        with peak_memory(receiver.pid) as peak:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                receiver.take(lines, read=False)
        return {f"{MIB} more than before": peak[0] * 1e6 / 2**20 - before}

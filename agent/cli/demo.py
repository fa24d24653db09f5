"""`agent demo`: a complete pipeline with real servers on one machine, and a reconciliation at the end."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import click

from flafka.agent.cli.demo_outcome import DemoResult, console
from flafka.agent.cli.demo_run import CONFIGURATION, DemoRun, FullDemoRun, SecureDemoRun
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.jvm.jars import ensure_all
from flafka.agent.services import ServiceError
from flafka.plugins import FlafkaError

REQUIRED_MODULES = {
    "hdfs": ("pyhdfs", "requests"),
    "hbase": ("happybase",),
    "solr": ("pysolr", "requests"),
    "spark": ("pyspark", "pandas", "fastavro"),
    "sandbox": ("cryptography",),
}
"""Extra → its modules that the demo uses."""


@click.command()
@click.option(
    "--exit",
    "leave",
    is_flag=True,
    help="Stop everything afterwards. Exit code: 0 only if no event was lost or duplicated.",
)
@click.option("--seconds", default=10, show_default=True, help="Time in seconds for which the servers log.")
@click.option(
    "--master",
    type=click.Choice(["local", "yarn"]),
    default="local",
    show_default=True,
    help="Spark's master: local, or YARN, which is started as well.",
)
@click.option(
    "--runner",
    type=click.Choice(["local", "spark"]),
    default="spark",
    show_default=True,
    help="Runner of the sinks. The processor always runs on Spark.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Brokers with TLS, passwords and ACLs, and HDFS with Kerberos as the only store, as of "
    "`agent sandbox up --secure`.",
)
@json_option
def demo(leave: bool, seconds: int, master: str, runner: str, secure: bool, as_json: bool) -> None:
    """Run conf/flafka.conf with real servers that log into it, and compare the stores with the channel.

    With --json, the result is JSON, and the steps are printed to standard error.
    """
    if secure and master == "yarn":
        raise click.UsageError("--secure has no YARN: use --master local")
    console.stderr = as_json
    if shutil.which("logger") is None:
        raise FlafkaError("the demo sends syslog with `logger`: install the package util-linux (Debian: bsdutils)")
    with_spark = not secure or runner == "spark"
    extras = ["hdfs", *(["sandbox"] if secure else ["hbase", "solr"]), *(["spark"] if with_spark else [])]
    if missing := [extra for extra in extras if not all(map(importlib.util.find_spec, REQUIRED_MODULES[extra]))]:
        raise FlafkaError(f"the demo needs extras that are not installed: pip install 'flafka[{','.join(missing)}]'")
    home = Path(tempfile.mkdtemp(prefix="flafka-demo-"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM, too, stops the servers
    try:
        result = _run(home, leave, seconds, runner, as_json, on_yarn=master == "yarn", secure=secure)
    except ServiceError as e:  # a server that does not start is no bug of Flafka
        raise FlafkaError(str(e)) from None
    except KeyboardInterrupt:
        shutil.rmtree(home, ignore_errors=True)
        sys.exit(130)
    shutil.rmtree(home, ignore_errors=True)
    if not result.balanced:
        sys.exit(1)


def _run(
    home: Path, leave: bool, seconds: int, runner: str, as_json: bool, *, on_yarn: bool, secure: bool
) -> DemoResult:
    """Do all steps of the demo, print the result, and return it; without `leave`, block until Ctrl-C before."""
    with ExitStack() as stack:
        stores = () if secure else ("hbase", "solr")
        spark = ("spark",) if runner == "spark" or not secure else ()
        ensure_all("kafka", "hdfs", *stores, "appenders", *spark, *(["yarn"] if on_yarn else ()))
        began = time.monotonic()
        run: DemoRun = SecureDemoRun(home, runner) if secure else FullDemoRun(home, runner, on_yarn=on_yarn)
        stack.callback(run.end)
        with _step(run.brokers_step):
            run.start_brokers()
        more = f" -f {run.more.name}" if run.more else ""
        with _step(f"agent start {'-f' if run.more else '-c'} conf/{CONFIGURATION.name}{more}"):
            run.start_agent()
        with _step(run.stores_step):
            run.start_stores()
        with _step(f"logger sends {run.to_send:,} syslog messages"):
            run.send()
        with _step(f"the servers' logs flow for {seconds} s, and into every store"):
            time.sleep(seconds)
            run.await_deliveries()
        with _step("SIGTERM: the agent drains, commits and ends"):
            run.stop()
        with _step("agent start --drain: the rest of the channel"):
            run.drain()
        with _step(f"the channel and {run.compared} are compared, event by event"):
            result = run.read_back()
        result.memory_mb = run.memory_mb()
        result.compare()
        result.seconds = time.monotonic() - began
        if as_json:
            show_json(result.data())
        else:
            result.show()
        if not leave:
            hints = "\n".join(f"  {line}" for line in run.hints())
            console.print(
                f"\nThe servers keep running. In another terminal:\n\n{hints}\n\n"
                f"Ctrl-C stops them and removes their data.",
                soft_wrap=True,
            )
            _wait_for_interrupt()
    return result


@contextmanager
def _step(text: str) -> Iterator[None]:
    """Show a step while the block runs, and print it with its duration afterwards."""
    started = time.monotonic()
    with console.status(text) if console.is_terminal else nullcontext():
        yield
    console.print(f"[green]✓[/] {text} [dim]({time.monotonic() - started:.1f} s)", soft_wrap=True)


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping the servers")

"""`agent check`."""

from __future__ import annotations

import contextlib
import errno
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click
from confluent_kafka import KafkaException

from flafka.agent.cli.configured import Chosen, configuration_options, counted, show
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.cli.own_cluster import with_own_cluster
from flafka.agent.cli.running import held_by, running_agents
from flafka.agent.config import Diagnostic, Mode, chosen_agent
from flafka.agent.config.diagnostics import Severity
from flafka.agent.config.kafka import share_brokers
from flafka.agent.graph import graph_of, ways
from flafka.agent.topology import AgentSpec, ChannelSpec, ComponentSpec, Place, SinkSpec
from flafka.plugins import ConnectivityWarning, FlafkaError, PortOccupied, StreamingSink
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.kafka.admin import TopicMissing, unreachable
from flafka.plugins.kafka.clients import ASK, new_admin, stream_client
from flafka.plugins.kafka.topic import KafkaBackedChannel

NOT_STARTED = "it would not start"
PROBES_SECONDS = 15.0
"""Longest time `--connect` waits, for all components together."""


@click.command()
@configuration_options
@click.option(
    "--connect", is_flag=True, help="Also connect to every server and check every directory that the agent would use."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show notes: what is ignored, and how components differ from Flume's."
)
@json_option
def check(chosen: Chosen, connect: bool, verbose: bool, as_json: bool) -> None:
    """Check a configuration and show what would run; start nothing.

    All errors are shown at once, each with file, line and component. With an error that `--connect` finds, such as a
    server that is away, the agent starts, and the component is tried again until it works. A topic that the agent
    itself creates is not missing. Exit code: 0 if all would run, else 2.
    """
    running: list[int] = []
    spec, diagnostics = chosen.load(notes=verbose)
    if spec is not None:
        diagnostics += spark(spec, chosen.mode, connect=connect)
    if spec is not None and connect:
        with contextlib.suppress(FlafkaError):  # where that cluster was never started, the channel itself says so
            spec = with_own_cluster(spec)
        running = running_agents(chosen, spec.name)
        diagnostics += probe(spec, chosen.mode, running)
    failed = any(diagnostic.severity == "error" for diagnostic in diagnostics)
    starts = spec is not None and not any(diagnostic.uninstalled for diagnostic in diagnostics)
    if as_json:
        told = _as_json(chosen, None if failed else spec, diagnostics)
        paths = dict(spec.paths) if spec is not None else {}
        show_json({**told, "paths": paths, "starts": starts, "asked": connect and starts})
    else:
        show(diagnostics, sys.stdout)
        _summary(chosen, None if failed else spec, diagnostics, starts=starts, connect=connect)
        for option, path in spec.paths.items() if spec is not None else ():
            click.echo(f"  {option} is {path}")
        if connect and spec is None:
            click.echo("  servers and directories were not checked: mend these errors first")
        for pid in running:
            click.echo(f"  it runs already, as process {pid}: ports and directories that this one has are no errors")
    sys.exit(2 if failed else 0)


def spark(spec: AgentSpec, mode: Mode, *, connect: bool) -> list[Diagnostic]:
    """Return the conflicts of Spark, Java and Python, for sinks on Spark; with `connect`, ask the master, too."""
    first = next((sink for sink in spec.sinks if sink.runner == "spark"), None)
    if first is None:
        return []
    from flafka.agent.runner.spark import versions

    sentences = [*versions.wrong(spec.options)]
    if connect:
        from flafka.agent.services.spark import own_pages

        sentences += versions.wrong_with_master(spec.options, own_pages())
    place = spec.option_places.get("spark.master", first.place)
    return [replace(_diagnostic(sentence, first, mode), place=place) for sentence in sentences]


def probe(spec: AgentSpec, mode: Mode, running: Sequence[int] = ()) -> list[Diagnostic]:
    """Return what keeps components from opening; all are asked at once, and no answer in time counts, too.

    Ports and directories of the processes `running`, which run this configuration, are free.
    """
    answers: queue.SimpleQueue[tuple[ComponentSpec, list[str]]] = queue.SimpleQueue()
    waiting = list(spec.components())
    for component in waiting:
        threading.Thread(target=lambda c=component: answers.put((c, _ask(c, spec))), daemon=True).start()
    found = _probe_monitoring(spec, running)
    deadline = time.monotonic() + PROBES_SECONDS
    while waiting:
        try:
            component, sentences = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        waiting.remove(component)
        found += [_diagnostic(text, component, mode) for text in sentences if not _own(text, running)]
    for component in waiting:
        message = f"gave no answer within {PROBES_SECONDS:.0f} s"
        found.append(Diagnostic("error", component.place, component.path, message))
    return sorted(found, key=lambda diagnostic: diagnostic.place.line)


def _probe_outputs(sink: SinkSpec, channel: ChannelSpec) -> Iterator[str]:
    """A processor's topics, which are made where they are missing: those that are there and less safe than made ones.

    Nothing where no broker answers: the channel says so.
    """
    made = channel.make()
    topics = sink.make().topics()
    if not topics or not isinstance(made, KafkaBackedChannel):
        return
    stream = made.kafka.stream(None)
    with contextlib.suppress(KafkaException):
        there = new_admin(ASK, stream_client(stream)).list_topics(timeout=PROBES_SECONDS / 2).topics
        for topic in sorted(topics & there.keys()):
            replicas = min((len(one.replicas) for one in there[topic].partitions.values()), default=0)
            if replicas < made.replication:
                yield ConnectivityWarning(
                    f"topic {topic} has {replicas} replicas, its channel's has to have {made.replication}: what is "
                    "written there is less safe than what is read"
                )


def _refusals(sink: SinkSpec, channel: ChannelSpec) -> Iterator[str]:
    """Yield why the sink cannot go on in its consumer group before a person decides, with the command for that.

    Nothing where brokers do not answer, or are too old: the channel says so.
    """
    made = channel.make()
    if not isinstance(made, KafkaBackedChannel):
        return
    from flafka.agent.runner.retries import with_brokers

    brokers = made.kafka.stream(None).bootstrap_servers
    servers = brokers.replace(",", " ").split()
    if len(unreachable(" ".join(servers))) < len(servers):  # else each question would take ten seconds
        with contextlib.suppress(FlafkaError):
            for error in made.kafka.refusals(sink.group):
                yield with_brokers(str(error), {"group": brokers})


def _probe_monitoring(spec: AgentSpec, running: Sequence[int]) -> list[Diagnostic]:
    from flafka.agent.monitoring.server import listen

    host, port = spec.options.monitoring_host, spec.options.monitoring_port
    try:
        listen(host, port).close()
    except OSError as e:
        why = e.strerror
        if e.errno == errno.EADDRINUSE:
            why = "another program listens there; stop it or choose another port"
            if _own(PortOccupied(why, port), running):
                return []
        place = spec.option_places.get("monitoring.port", Place(spec.file, 0))
        message = f"monitoring.port: cannot listen on {host}:{port} (TCP): {why}"
        return [Diagnostic("error", place, spec.name, message)]
    return []


def _own(sentence: str, running: Sequence[int]) -> bool:
    """Return True if the port or the directory is taken by one of the processes `running`."""
    if isinstance(sentence, PortOccupied):
        return any(held_by(pid, sentence) for pid in running)
    return any(f"another process ({pid})" in sentence for pid in running)


def _created(spec: AgentSpec, component: ComponentSpec) -> set[str]:
    """Topics on the brokers of that component that the agent creates where they are missing."""
    topics = set[str]()
    for channel in spec.channels:
        if not share_brokers(channel.config, component.config):
            continue
        topics |= {*channel.config.writes(), spec.options.audit_topic or ""}
        for sink in spec.sinks:
            if sink.channel == channel.name and issubclass(sink.cls, StreamingSink):
                topics |= sink.make().topics()
    return topics


def _ask(component: ComponentSpec, spec: AgentSpec) -> list[str]:
    try:
        found = list(component.make().check_connectivity())
        if any(isinstance(sentence, TopicMissing) for sentence in found):
            created = _created(spec, component)
            found = [one for one in found if not (isinstance(one, TopicMissing) and one.topic in created)]
        if isinstance(component, SinkSpec) and issubclass(component.cls, StreamingSink):
            found += _probe_outputs(component, spec.channel(component.channel))
        if isinstance(component, SinkSpec):
            found += _refusals(component, spec.channel(component.channel))
        return found
    except ANY_FAILURE as e:  # whatever a component's probe raises is an answer too
        return [str(e) or type(e).__name__]


def _diagnostic(sentence: str, component: ComponentSpec, mode: Mode) -> Diagnostic:
    severity: Severity = "warning" if isinstance(sentence, ConnectivityWarning) and mode != "strict" else "error"
    return Diagnostic(severity, component.place, component.path, sentence)


def _summary(
    chosen: Chosen, spec: AgentSpec | None, diagnostics: list[Diagnostic], *, starts: bool, connect: bool
) -> None:
    if spec is None:
        waiting = dict.fromkeys(one.component for one in diagnostics if one.severity == "error")
        would = f"it would start, and try again until these work: {', '.join(waiting)}" if starts else NOT_STARTED
        click.secho(f"{counted(diagnostics)}: {would}", fg="red")
        return
    warnings = f", with {counted(diagnostics).removeprefix('0 errors, ')}" if diagnostics else ""
    click.secho(f"{chosen.file}: agent {spec.name} would run{warnings}:", fg="green")
    for line in ways(graph_of(spec)):
        click.echo(f"  {line}")
    if any(sink.runner == "spark" for sink in spec.sinks):
        from flafka.agent.runner.spark.versions import told

        click.echo(f"  {told(spec.options, asking=connect)}")


def _as_json(chosen: Chosen, spec: AgentSpec | None, diagnostics: list[Diagnostic]) -> dict[str, object]:
    return {
        "file": str(chosen.file),
        "agent": spec.name if spec else chosen_agent(chosen.file, chosen.name, chosen.more),
        "ok": spec is not None,
        "diagnostics": [
            {"severity": d.severity, **asdict(d.place), "component": d.component, "message": d.message}
            for d in diagnostics
        ],
        "flow": ways(graph_of(spec)) if spec else [],
    }

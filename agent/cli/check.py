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

from flafka.agent.cli.configuration import (
    ChosenConfiguration,
    configuration_options,
    count_by_severity,
    print_diagnostics,
)
from flafka.agent.cli.default_brokers import with_default_brokers
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.cli.processes import find_running_agents, is_listening
from flafka.agent.config import Diagnostic, Mode, chosen_agent
from flafka.agent.config.diagnostics import Severity
from flafka.agent.config.kafka import share_brokers
from flafka.agent.config.listeners import open_listeners
from flafka.agent.graph import graph_of, text_lines
from flafka.agent.runner.kafkalogin import log_in_to_kafka
from flafka.agent.topology import AgentSpec, ChannelSpec, ComponentSpec, ConfigLocation, SinkSpec
from flafka.plugins import ConnectivityWarning, FlafkaError, PortOccupied, StreamingSink
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.kafka.admin import TopicMissing, unreachable_brokers
from flafka.plugins.kafka.clients import QUERY, new_admin, stream_client
from flafka.plugins.kafka.topic import KafkaBackedChannel

NOT_STARTED = "it would not start"
CONNECT_SECONDS = 15.0
"""Timeout of `--connect`, for all components together."""


@click.command()
@configuration_options
@click.option(
    "--connect", is_flag=True, help="Also connect to every server and check every directory that the agent would use."
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also show notes: options without effect, and differences from Flume's components.",
)
@json_option
def check(chosen: ChosenConfiguration, connect: bool, verbose: bool, as_json: bool) -> None:
    """Check a configuration and show what would run; start nothing.

    All errors are shown at once, each with file, line and component. Errors of `--connect`, such as a server that is
    down, do not keep the agent from starting: it retries the component. A topic that the agent creates is no error.
    Exit code: 0 if all would run, else 2.
    """
    running: list[int] = []
    spec, diagnostics = chosen.load(notes=verbose)
    if spec is not None:
        diagnostics += check_spark_versions(spec, chosen.mode, connect=connect)
        diagnostics += [listener for listener in open_listeners(spec) if verbose or listener.severity != "note"]
    if spec is not None and connect:
        with contextlib.suppress(FlafkaError):  # the channel reports a cluster that was never started
            spec = with_default_brokers(spec)
        running = find_running_agents(chosen, spec.name)
        diagnostics += check_connectivity(spec, chosen.mode, running)
    failed = any(diagnostic.severity == "error" for diagnostic in diagnostics)
    starts = spec is not None and not any(diagnostic.is_library_missing for diagnostic in diagnostics)
    if as_json:
        report = _as_json(chosen, None if failed else spec, diagnostics)
        paths = dict(spec.paths) if spec is not None else {}
        show_json({**report, "paths": paths, "starts": starts, "asked": connect and starts})
    else:
        print_diagnostics(diagnostics, sys.stdout)
        _summary(chosen, None if failed else spec, diagnostics, starts=starts, connect=connect)
        for option, path in spec.paths.items() if spec is not None else ():
            click.echo(f"  {option} is {path}")
        if connect and spec is None:
            click.echo("  servers and directories were not checked: fix these errors first")
        for pid in running:
            click.echo(
                f"  it runs already, as process {pid}: the ports and directories of this process are no errors"
            )
    sys.exit(2 if failed else 0)


def check_spark_versions(spec: AgentSpec, mode: Mode, *, connect: bool) -> list[Diagnostic]:
    """Return version conflicts of Spark, Java and Python for sinks on Spark; empty without such sinks.

    With `connect`, the master is connected to as well. In `mode` "strict", warnings are errors.
    """
    first = next((sink for sink in spec.sinks if sink.runner == "spark"), None)
    if first is None:
        return []
    from flafka.agent.runner.spark import versions

    problems = [*versions.version_problems(spec.options)]
    if connect:
        from flafka.agent.services.spark import own_master_pages

        problems += versions.master_problems(spec.options, own_master_pages())
    place = spec.option_locations.get("spark.master", first.place)
    return [replace(_diagnostic(problem, first, mode), place=place) for problem in problems]


def check_connectivity(spec: AgentSpec, mode: Mode, running: Sequence[int] = ()) -> list[Diagnostic]:
    """Return the reasons why components would not open, sorted by line.

    All components are checked at once, each on a thread. No answer within `CONNECT_SECONDS` is an error. Ports and
    directories of the processes `running`, which run this configuration, count as free. In `mode` "strict", warnings
    are errors.
    """
    answers: queue.SimpleQueue[tuple[ComponentSpec, list[str]]] = queue.SimpleQueue()
    waiting = list(spec.components())
    log_in_to_kafka(waiting)
    for component in waiting:
        threading.Thread(target=lambda c=component: answers.put((c, _problems(c, spec))), daemon=True).start()
    diagnostics = _check_monitoring_port(spec, running)
    deadline = time.monotonic() + CONNECT_SECONDS
    while waiting:
        try:
            component, problems = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        waiting.remove(component)
        diagnostics += [_diagnostic(text, component, mode) for text in problems if not _is_own(text, running)]
    for component in waiting:
        message = f"gave no answer within {CONNECT_SECONDS:.0f} s"
        diagnostics.append(Diagnostic("error", component.place, component.path, message))
    return sorted(diagnostics, key=lambda diagnostic: diagnostic.place.line)


def _check_output_topics(spec: SinkSpec, channel_spec: ChannelSpec) -> Iterator[str]:
    """Yield a warning for each existing topic of a processor with fewer replicas than its channel's topic.

    Empty if no broker answers: the channel reports that.
    """
    channel = channel_spec.make()
    topics = spec.make().topics()
    if not topics or not isinstance(channel, KafkaBackedChannel):
        return
    stream = channel.kafka.stream(None)
    with contextlib.suppress(KafkaException):
        existing = new_admin(QUERY, stream_client(stream)).list_topics(timeout=CONNECT_SECONDS / 2).topics
        for topic in sorted(topics & existing.keys()):
            replicas = min((len(part.replicas) for part in existing[topic].partitions.values()), default=0)
            if replicas < channel.replication:
                yield ConnectivityWarning(
                    f"topic {topic} has {replicas} replicas, the topic of its channel {channel.replication}: "
                    "results are less safe than their events"
                )


def _check_consumer_group(sink: SinkSpec, channel_spec: ChannelSpec) -> Iterator[str]:
    """Yield the reasons why the sink cannot resume in its consumer group without a command of an operator.

    One may be a missing right. Empty if brokers do not answer, or are too old: the channel reports that.
    """
    channel = channel_spec.make()
    if not isinstance(channel, KafkaBackedChannel):
        return
    from flafka.agent.runner.retries import add_brokers
    from flafka.plugins.kafka.errors import is_missing_right

    brokers = channel.kafka.stream(None).bootstrap_servers
    servers = brokers.replace(",", " ").split()
    if len(unreachable_brokers(" ".join(servers))) < len(servers):  # else each request would take its timeout of 10 s
        try:
            for error in channel.kafka.blocking_errors(sink.group):
                yield add_brokers(str(error), {"group": brokers})
        except FlafkaError as e:
            if is_missing_right(e):
                yield str(e)


def _check_monitoring_port(spec: AgentSpec, running: Sequence[int]) -> list[Diagnostic]:
    """Return an error for an unusable certificate, and one if the monitoring port cannot be listened on.

    A port on which one of the processes `running` listens is no error.
    """
    from flafka.agent.monitoring.server import open_listener

    host, port = spec.options.monitoring_host, spec.options.monitoring_port
    diagnostics = []
    try:
        if spec.options.tls is not None:
            spec.options.tls.context()
    except FlafkaError as e:
        place = spec.option_locations.get("monitoring.keystore", ConfigLocation(spec.file, 0))
        diagnostics.append(Diagnostic("error", place, spec.name, f"monitoring.keystore: {e}"))
    try:
        open_listener(host, port).close()
    except OSError as e:
        reason = e.strerror
        if e.errno == errno.EADDRINUSE:
            reason = "another program listens there; stop it or choose another port"
            if _is_own(PortOccupied(reason, port), running):
                return diagnostics
        place = spec.option_locations.get("monitoring.port", ConfigLocation(spec.file, 0))
        message = f"monitoring.port: cannot listen on {host}:{port} (TCP): {reason}"
        diagnostics.append(Diagnostic("error", place, spec.name, message))
    return diagnostics


def _is_own(problem: str, running: Sequence[int]) -> bool:
    """Return True if the problem is a port or directory that one of the processes `running` occupies."""
    if isinstance(problem, PortOccupied):
        return any(is_listening(pid, problem) for pid in running)
    return any(f"another process ({pid})" in problem for pid in running)


def _created_topics(spec: AgentSpec, component: ComponentSpec) -> set[str]:
    """Return the topics on the brokers of `component` that the agent would create if they are missing."""
    topics = set[str]()
    for channel in spec.channels:
        if not share_brokers(channel.config, component.config):
            continue
        topics |= {*channel.config.produced_topics(), spec.options.audit_topic or ""}
        for sink in spec.sinks:
            if sink.channel == channel.name and issubclass(sink.cls, StreamingSink):
                topics |= sink.make().topics()
    return topics


def _problems(component: ComponentSpec, spec: AgentSpec) -> list[str]:
    """Return the reasons why this component would not open. Missing topics that the agent creates are left out."""
    try:
        problems = list(component.make().check_connectivity())
        if any(isinstance(problem, TopicMissing) for problem in problems):
            created = _created_topics(spec, component)
            problems = [text for text in problems if not (isinstance(text, TopicMissing) and text.topic in created)]
        if isinstance(component, SinkSpec) and issubclass(component.cls, StreamingSink):
            problems += _check_output_topics(component, spec.channel(component.channel))
        if isinstance(component, SinkSpec):
            problems += _check_consumer_group(component, spec.channel(component.channel))
        return problems
    except ANY_FAILURE as e:  # a failed connectivity check of a component is one of its problems
        return [str(e) or type(e).__name__]


def _diagnostic(problem: str, component: ComponentSpec, mode: Mode) -> Diagnostic:
    """Return a problem as an error at the component, or as a warning if it is one and `mode` is not "strict"."""
    severity: Severity = "warning" if isinstance(problem, ConnectivityWarning) and mode != "strict" else "error"
    return Diagnostic(severity, component.place, component.path, problem)


def _summary(
    chosen: ChosenConfiguration, spec: AgentSpec | None, diagnostics: list[Diagnostic], *, starts: bool, connect: bool
) -> None:
    """Print the outcome of the check and, for a valid configuration, the flow of events.

    `spec` is None after errors.
    """
    if spec is None:
        failing = dict.fromkeys(d.component for d in diagnostics if d.severity == "error")
        outcome = f"it would start, and retry these components: {', '.join(failing)}" if starts else NOT_STARTED
        click.secho(f"{count_by_severity(diagnostics)}: {outcome}", fg="red")
        return
    warnings = f", with {count_by_severity(diagnostics).removeprefix('0 errors, ')}" if diagnostics else ""
    click.secho(f"{chosen.file}: agent {spec.name} would run{warnings}:", fg="green")
    for line in text_lines(graph_of(spec)):
        click.echo(f"  {line}")
    if any(sink.runner == "spark" for sink in spec.sinks):
        from flafka.agent.runner.spark.versions import describe_versions

        click.echo(f"  {describe_versions(spec.options, connect=connect)}")


def _as_json(chosen: ChosenConfiguration, spec: AgentSpec | None, diagnostics: list[Diagnostic]) -> dict[str, object]:
    """Return the result of the check as JSON values. `spec` is None after errors."""
    return {
        "file": str(chosen.file),
        "agent": spec.name if spec else chosen_agent(chosen.file, chosen.name, chosen.more),
        "ok": spec is not None,
        "diagnostics": [
            {"severity": d.severity, **asdict(d.place), "component": d.component, "message": d.message}
            for d in diagnostics
        ],
        "flow": text_lines(graph_of(spec)) if spec else [],
    }

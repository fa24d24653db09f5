"""Running agent: starts the components of one configuration in order, reloads it, and stops without loss."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flafka.agent.audit.publishing import audit_of
from flafka.agent.graph import graph_of
from flafka.agent.monitoring.kafkamonitor import KafkaMonitor
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.monitoring.taps import TapServer
from flafka.agent.monitoring.view import View
from flafka.agent.runner.changes import (
    Changes,
    SinkUnit,
    after_failure,
    changes_between,
    initial_changes,
    sink_units,
    spark_sinks,
    take_snapshot,
)
from flafka.agent.runner.deadletters.alerts import AlertingStore, Alerts
from flafka.agent.runner.deadletters.store import DeadLetterStore, dead_letter_store
from flafka.agent.runner.drain import Drain
from flafka.agent.runner.kafkalogin import log_in_to_kafka, refuse_other_login
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.overflow import OverflowingChannel
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.runner.preload import import_libraries
from flafka.agent.runner.registration import register_metrics, sink_metrics_by_channel
from flafka.agent.state import state_file
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import Channel, FlafkaError, Metrics, OverflowConfig
from flafka.plugins.threads import ThreadFailures

if TYPE_CHECKING:
    from flafka.agent.runner.spark.supervisor import SparkRunner

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""Longest wait of a stop for channels to take the events of sources, and for memory channels to become empty."""
BLOCKED_SECONDS = 5.0
"""Time after which a stop logs the sources that neither end nor wait for a channel."""
SINK_STOP_SECONDS = 60.0
"""Longest wait of a stop for sinks to commit what they took."""
IDLE_STOP_SECONDS = 15.0
"""Longest wait of a stop while no counter changes, as of a channel or a store that does not answer."""
FAILED_SECONDS = 5.0
"""Longest wait of a stop for a component whose latest attempt has failed."""


class Agent:
    """Runner of an `AgentSpec`. Channels start first, then sinks, then sources; a stop drains in the opposite order.

    `reload` applies another configuration of the same agent, and restarts only the components that differ.
    """

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        import_libraries(spec)
        log_in_to_kafka(spec.components())
        list_command = spec.command("dlq list")
        self.alerts = Alerts(list_command)
        self.thread_failures = ThreadFailures()
        """Record of threads that have ended unexpectedly. The process installs it."""
        self.registry = Registry(spec.name, self.alerts.recent, self.thread_failures.reasons)
        self.dead_letters: dict[str, DeadLetterStore] = {}
        self.channels: dict[str, ChannelRunner] = {}
        self.sources: list[SourceRunner] = []
        self.sinks: list[SinkRunner] = []
        self.spark: SparkRunner | None = None
        self._snapshot = take_snapshot(spec)
        self._changing = threading.Lock()
        """Lock that is held while components start or stop."""
        self._stopping = threading.Event()
        self.registry.waiting = self._never_opened
        self.registry.application = lambda: self.spark.application if self.spark is not None else {}
        self.view = View(graph_of(spec), self.registry, list_command)
        self.kafka_monitor = KafkaMonitor({}, {})
        self.taps = TapServer(spec)
        self._unstarted = self._make(initial_changes(self._snapshot))
        deliveries = [member.delivery for runner in self.sinks for member in runner.members]
        metrics: dict[str, Metrics] = self.spark.metrics if self.spark is not None else {}
        self._drain = Drain(self.channels, deliveries, [(sink, metrics[sink.name]) for sink in spark_sinks(spec)])

    # --- components

    def _make(self, changes: Changes, server: MetricsServer | None = None) -> list[Callable[[], None]]:
        """Make the components that `changes` names, publish them, and return the functions that start them.

        `server` is the HTTP server if it has been made already. The order of the functions: monitor of the brokers,
        HTTP server if it changes, channels, sinks, sinks on Spark, sources.
        """
        spec = changes.new
        channels = self._make_channels(spec, changes.channels)
        sources = [
            SourceRunner(source, self.channels, self.dead_letters)
            for source in spec.sources
            if source.name in changes.sources
        ]
        sinks = [self._make_sinks(unit) for unit in sink_units(spec) if unit.path in changes.units]
        self.sources += sources
        self.sinks += sinks
        starts = [*(channel.start for channel in channels), *(sink.start for sink in sinks)]
        if changes.spark:
            remote = spark_sinks(spec)
            self.spark = _spark_runner(spec, remote, self.alerts) if remote else None
            starts += [self.spark.start] if self.spark is not None else []
        starts += [source.start for source in sources]
        self._publish_components()
        if changes.server:
            self.server = server or self._make_server(spec)
            starts.insert(0, self.server.start)
        return [self.kafka_monitor.start, *starts]

    def _make_server(self, spec: AgentSpec) -> MetricsServer:
        """Return the HTTP server by the options of the agent, not started."""
        host, port = spec.options.monitoring_host, spec.options.monitoring_port
        return MetricsServer(
            *(self.registry, host, port, self.view, spec.options.token, spec.options.tls),
            behind_proxy=spec.options.monitoring_ssl is False,
        )

    def _make_channels(self, spec: AgentSpec, names: Collection[str]) -> list[ChannelRunner]:
        """Make the named channels with their dead letter stores.

        An overflow comes before the channel that uses the overflow.
        """
        runners = []
        for c in sorted(spec.channels, key=lambda c: c.overflow is not None):  # overflows before their channels
            if c.name not in names:
                continue
            channel: Channel = c.make()
            store = AlertingStore(dead_letter_store(spec.name, c, channel, spec.options, spec.file), self.alerts.add)
            self.dead_letters[c.name] = store
            arguments = c.path, c.name, channel, audit_of(channel, spec.options)
            if isinstance(c.config, OverflowConfig) and c.overflow is not None:
                overflow, timeout = self.channels[c.overflow], c.config.overflow_timeout
                runner: ChannelRunner = OverflowingChannel(*arguments, overflow, store, timeout)
            else:
                runner = ChannelRunner(*arguments)
            self.channels[c.name] = runner
            runners.append(runner)
        return runners

    def _make_sinks(self, unit: SinkUnit) -> SinkRunner:
        """Return the runner of one sink, or of all sinks of a sink group."""
        member = member_id(self.spec.name, unit.path.split(".", 1)[1] if unit.group else unit.sinks[0].name)
        return SinkRunner(
            unit.sinks, self.channels[unit.channel], self.dead_letters[unit.channel], member, unit.group
        )

    def _publish_components(self) -> None:
        """Publish the present components to the metrics, the web page, the taps, and the monitor of the brokers."""
        spec = self.spec
        self.registry.clear()
        register_metrics(self.registry, spec, self.sources, self.channels.values(), self.sinks, self.spark)
        sink_metrics = sink_metrics_by_channel(spec, self.sinks, self.spark)
        self.kafka_monitor = KafkaMonitor({name: c.channel for name, c in self.channels.items()}, sink_metrics)
        tailed_files = {source.spec.name: source.source.tailed_files for source in self.sources}
        self.view.set_agent(graph_of(spec), self.kafka_monitor, tailed_files)
        taps = {source.path: source.taps for source in self.sources}
        taps |= {channel.path: channel.taps for channel in self.channels.values()}
        taps |= {member.delivery.path: member.delivery.taps for runner in self.sinks for member in runner.members}
        self.taps.set_agent(spec, taps)
        self.view.samples.set_agent(spec, taps)

    def _never_opened(self) -> dict[str, str]:
        """Return path → latest error, or "is not open yet", of each channel and source that has never been open."""
        workers = [*((c, c.ready) for c in self.channels.values()), *((s, s.was_open) for s in self.sources)]
        return {
            worker.path: worker.metrics.last_error or "is not open yet"
            for worker, opened in workers
            if not opened.is_set()
        }

    def start(self) -> None:
        """Start all components, each on a thread of its own, without waiting until they are open.

        A component that cannot open retries on its thread.
        """
        logging.getLogger().addHandler(self.view.recent)
        self.view.history.start(state_file(self.spec.name, self.spec.file, "history", "npz"))
        self.taps.start()
        _start(self._unstarted)

    def tick(self) -> None:
        """Log due alerts and problems, end samples without requests, and report the recovery of waiting sources.

        Call it about once a second.
        """
        self.alerts.log_due()
        self.view.problems.log_due()
        self.view.samples.close_expired()
        for source in self.sources:
            source.retries.check_recovery()

    def is_drained(self) -> bool:
        """Return True once every consumer group of the durable channels has reached the end offsets. Does not block.

        The first call reads the end offsets. As a sink may feed another channel, they are read again later, once for
        each durable channel. Commits by members of the groups in other agents count as well. Raises DrainStalled
        after 60 s without progress of any group, or after 600 s while Spark runs a micro-batch.
        """
        return self._drain.is_complete()

    def drain(self) -> None:
        """Switch the sinks in this process to draining mode: each flushes as soon as its channel has no more records.

        Returns at once. Sinks on Spark do not change.
        """
        for sink in self.sinks:
            sink.draining.set()

    # --- another configuration

    def reload(self, spec: AgentSpec) -> str:
        """Apply another configuration of the same agent, and return the changes as text, or "nothing".

        Components that are equal in both configurations keep their connections and partition assignments. Changed
        components end: sources first, then sinks, which deliver what they hold. A changed channel that is not durable
        is drained before. Then the new components start. Blocks until all changed sources and sinks have ended.

        Raises FlafkaError without any change if such a channel is not empty after `DRAIN_SECONDS`, or if a library of
        a new component fails to import. Another Kerberos login to Kafka, and an unusable certificate of a new
        monitoring server, are such errors, too. After any other error, such as a thread that the system refuses, some
        of the new components do not run. The next call then restarts all changed components.
        """
        new = take_snapshot(spec)
        refuse_other_login(self.spec, spec)
        import_libraries(spec)
        with self._changing:
            changes = changes_between(self._snapshot, new)
            if changes:
                server = self._make_server(spec) if changes.server else None
                if server is not None:
                    _load_certificate(server)
                before, self._snapshot = self._snapshot, after_failure(new, changes)
                try:
                    self._end(changes)
                except FlafkaError:
                    self._snapshot = before
                    raise
                self.spec = spec
                _start(self._make(changes, server))
                self._snapshot = new
            return str(changes)

    def _end(self, changes: Changes) -> None:
        """End the components that `changes` names: sources, sinks, channels, and the monitoring server.

        Channels that are not durable are drained first. If one of them is not empty after `DRAIN_SECONDS`, the
        sources are started again, and FlafkaError is raised. Raises FlafkaError also if the agent stops meanwhile.
        """
        sources = [source for source in self.sources if source.spec.name in changes.sources]
        self._await_end(sources)
        ended = {name: self.channels[name] for name in changes.channels if name in self.channels}
        sinks = [sink for sink in self.sinks if sink.path in changes.units]
        for sink in sinks:
            sink.draining.set()
        if not self._drain_channels([c for c in ended.values() if not c.channel.durable]):
            self.sources = [s for s in self.sources if s not in sources]
            restarted = [SourceRunner(source.spec, self.channels, self.dead_letters) for source in sources]
            self.sources += restarted
            for sink in sinks:
                sink.draining.clear()
            self.kafka_monitor.stop()
            self._publish_components()
            _start([self.kafka_monitor.start, *(source.start for source in restarted)])
            names = ", ".join(name for name, c in ended.items() if not c.channel.durable)
            raise FlafkaError(
                f"channel {names} changes, and its sinks do not deliver what it holds: nothing was changed"
            )
        for channel in ended.values():
            channel.stop_forwarding()
        if changes.spark and self.spark is not None:
            self.spark.stop(SINK_STOP_SECONDS)
        self._await_end(sinks)  # a successor with the same member ID would fence a member that is still in the group
        _stop_channels(ended.values())
        for name in ended:
            self._close_dead_letters(name)
            del self.channels[name]
        self.sources = [source for source in self.sources if source not in sources]
        self.sinks = [sink for sink in self.sinks if sink not in sinks]
        self.kafka_monitor.stop()
        if changes.server:
            self.server.stop()

    def _await_end(self, parts: Sequence[SourceRunner | SinkRunner]) -> None:
        """Stop these sources or sinks, and block without a timeout until their threads have ended.

        A warning is logged once after `DRAIN_SECONDS`. Raises FlafkaError if the agent stops meanwhile.
        """
        for part in parts:
            part.stop()
        warn_time = time.monotonic() + DRAIN_SECONDS
        while alive := [part.path for part in parts if part.thread.is_alive()]:
            if self._stopping.wait(0.02):
                raise FlafkaError("the agent stops")
            if time.monotonic() > warn_time:
                warn_time = float("inf")
                log.warning("the new configuration waits for %s to end", ", ".join(alive))
                self._warn_blocked_sources()

    # --- the end

    def stop(self) -> bool:
        """Stop sources, drain memory channels, have sinks commit what they took, and close everything.

        Return True if all components ended in time, memory channels are empty, no sink fails, and no thread has ended
        unexpectedly. Return False otherwise: memory channels may have lost events, and durable channels redeliver
        theirs. Each step has a timeout. A reload in progress is abandoned.
        """
        self._stopping.set()
        with self._changing:
            log.info("stopping: draining")
            return self._stop()

    def _stop(self) -> bool:
        """Do the steps of `stop` in their order, while the caller holds the lock `_changing`."""
        for source in self.sources:
            source.stop()
        clean = self._join_sources()
        for source in self.sources:
            source.give_up.set()
        if not clean:
            for channel in self.channels.values():
                channel.channel.stopping.set()
            _join([s.thread for s in self.sources], 5)
        for channel in self.channels.values():
            channel.stop_forwarding()
        self.drain()
        progress = {sink.path: _Progress([member.metrics for member in sink.members]) for sink in self.sinks}
        drained = self._drain_memory()
        clean &= drained
        for sink in self.sinks:
            sink.stop()
        if self.spark is not None:
            clean &= self.spark.stop(SINK_STOP_SECONDS)
        clean &= self._join_sinks(progress, drained=drained)
        clean &= not any(sink.failing() for sink in self.sinks) and not self.thread_failures
        _stop_channels(self.channels.values())
        for name in self.channels:
            self._close_dead_letters(name)
        self.alerts.log_due(everything=True)
        self.server.stop()
        self.taps.stop()
        self.view.samples.stop()
        self.kafka_monitor.stop()
        self.view.history.stop()
        logging.getLogger().removeHandler(self.view.recent)
        self._write_metrics()
        log.info("stopped" if clean else "stopped, but not everything could be delivered; see the warnings above")
        return clean

    def _join_sources(self) -> bool:
        """Wait until the threads of all sources have ended, and return True.

        Return False after `DRAIN_SECONDS`. Return False earlier, but not before `BLOCKED_SECONDS`, if channels refuse
        the batches of all remaining sources, or if no counter has changed for `IDLE_STOP_SECONDS`.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        progress = _Progress([part.metrics for part in (*self.sources, *self.channels.values())])
        if _join([source.thread for source in self.sources], BLOCKED_SECONDS):
            return True
        self._warn_blocked_sources()
        while alive := [source for source in self.sources if source.thread.is_alive()]:
            is_blocked = all(s.is_refused() for s in alive) or progress.idle_seconds() > IDLE_STOP_SECONDS
            if is_blocked or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _join_sinks(self, progress: Mapping[str, _Progress], *, drained: bool) -> bool:
        """Wait until the threads of all sinks in this process have ended, and return True.

        Return False, with a warning, once every remaining sink has used up its `_stop_timeout`. `progress` is by path
        of the sink. `drained` is True if memory channels are empty: their sinks hold the last copies of events, and
        get more time.
        """
        began = time.monotonic()
        while alive := [sink for sink in self.sinks if sink.thread.is_alive()]:
            waited = time.monotonic() - began
            if all(waited > self._stop_timeout(sink, progress[sink.path], drained=drained) for sink in alive):
                names = ", ".join(sink.path for sink in alive)
                log.warning("%s: the stop does not wait any longer for an answer of the store", names)
                return False
            time.sleep(0.02)
        return True

    def _stop_timeout(self, sink: SinkRunner, progress: _Progress, *, drained: bool) -> float:
        """Return the seconds for which a stop waits for a sink in all.

        0 without progress for `IDLE_STOP_SECONDS`; `FAILED_SECONDS` if the sink fails.

        `SINK_STOP_SECONDS` otherwise, and always for a sink that has delivered everything or drains an empty memory
        channel.
        """
        is_idle = progress.idle_seconds() > IDLE_STOP_SECONDS  # called each time, as it samples the counters
        if sink.finished:  # only its reader is still being closed, which Kafka's client may delay
            return SINK_STOP_SECONDS
        if drained and not sink.channel.channel.durable:
            return SINK_STOP_SECONDS
        return 0.0 if is_idle else FAILED_SECONDS if sink.failing() else SINK_STOP_SECONDS

    def has_hanging_threads(self) -> bool:
        """Return True if the thread of a source or sink is alive, as after a stop that timed out."""
        threads = [*(source.thread for source in self.sources), *(sink.thread for sink in self.sinks)]
        return any(thread.is_alive() for thread in threads)

    def _warn_blocked_sources(self) -> None:
        """Log a warning for each stopped source whose own code blocks."""
        for source in self.sources:
            if why := source.why_not_stopped():
                source.log.warning("%s", why)

    def _close_dead_letters(self, channel: str) -> None:
        """Close the dead letter store and the audit of the channel with this name."""
        self.dead_letters[channel].close()
        if (audit := self.channels[channel].audit) is not None:
            audit.close()

    def describe_unfinished(self) -> str:
        """Return the sources, sinks and memory channels that a stop has left unfinished, as text, or "nothing".

        Says for each kind whether events are lost. Does not block.
        """
        sources = [s.spec.name for s in self.sources if s.thread.is_alive()]
        sinks = [m.name for runner in self.sinks if runner.thread.is_alive() for m in runner.members]
        if self.spark is not None and self.spark.running():
            sinks += self.spark.metrics
        texts = []
        if sources:
            texts.append(f"sources {', '.join(sources)} (events that no channel has were not acknowledged)")
        if sinks:
            texts.append(f"sinks {', '.join(sinks)} (durable channels redeliver uncommitted events)")
        volatile = [c for c in self.channels.values() if not c.channel.durable]
        if undelivered := sum(c.metrics.get("ChannelSize") for c in volatile):
            texts.append(f"{undelivered:.0f} events in memory channels, which are lost")
        return "; ".join(texts) or "nothing"

    def _write_metrics(self) -> None:
        """Write the metrics as JSON to the file of the option `monitoring.file`, if set.

        An OSError is only logged.
        """
        path = self.spec.options.monitoring_file
        if path is not None:
            try:
                Path(path).write_text(json.dumps(self.registry.flume(), indent=2))
            except OSError as e:
                log.warning("monitoring.file %s cannot be written: %s", path, e.strerror)

    def _drain_memory(self) -> bool:
        """Drain all channels that are not durable.

        Return False after `DRAIN_SECONDS`, with a warning that counts lost events.
        """
        volatile = [c for c in self.channels.values() if not c.channel.durable]
        if self._drain_channels(volatile):
            return True
        undelivered = sum(c.metrics.get("ChannelSize") for c in volatile)
        log.warning("%d events in memory channels could not be delivered and are lost", undelivered)
        return False

    def _drain_channels(self, channels: Iterable[ChannelRunner]) -> bool:
        """Wait until these channels are empty. Return True then, or False after `DRAIN_SECONDS`.

        Channels without a sink in this process are not waited for.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        with_sinks = {s.channel.name for s in self.sinks}
        drained = [c for c in channels if c.name in with_sinks]
        while sum(c.metrics.get("ChannelSize") for c in drained):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _spark_runner(spec: AgentSpec, sinks: list[SinkSpec], alerts: Alerts) -> SparkRunner:
    """Return the runner of the sinks on Spark, and import it: other agents save the memory of it and of its tools."""
    from flafka.agent.runner.spark.supervisor import SparkRunner

    return SparkRunner(spec, sinks, alerts.add)


class _Progress:
    """Progress of components, by changes of their counters."""

    def __init__(self, metrics: Sequence[Metrics]) -> None:
        self._metrics = metrics
        self._latest, self._changed = self._counters(), time.monotonic()

    def idle_seconds(self) -> float:
        """Return the seconds since a call has last seen a changed counter, at first since the creation.

        As only calls look at the counters, call it often.
        """
        if (counters := self._counters()) != self._latest:
            self._latest, self._changed = counters, time.monotonic()
        return time.monotonic() - self._changed

    def _counters(self) -> list[dict[str, float]]:
        return [metrics.counters() for metrics in self._metrics]


def member_id(agent: str, sink: str) -> str:
    """Return the static member ID of a sink's consumer, `HOST.AGENT.SINK`, which stays the same after a restart.

    `sink` is the name of a sink, of a sink group, or of a sink with a suffix.
    """
    return f"{socket.gethostname()}.{agent}.{sink}"


def _load_certificate(server: MetricsServer) -> None:
    """Load the certificate of a new server while the old one still serves. Raises FlafkaError if it is unusable."""
    try:
        server.load_certificate()
    except FlafkaError as e:
        raise FlafkaError(f"monitoring.keystore: {e}: nothing was changed") from e


def _start(starts: Iterable[Callable[[], None]]) -> None:
    for start in starts:
        start()


def _stop_channels(channels: Iterable[ChannelRunner]) -> None:
    """Have channels close that nothing uses any more, and wait up to 5 s in all for their threads."""
    stopped = list(channels)
    for channel in stopped:
        channel.stopping.set()
        channel.channel.stopping.set()
        channel.may_close.set()
    _join([channel.thread for channel in stopped], 5)


def _join(threads: list[threading.Thread], seconds: float) -> bool:
    """Wait up to `seconds` in all for these threads, and return True if none is alive."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        if thread.is_alive():  # join raises for a thread that the system refused
            thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)

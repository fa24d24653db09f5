"""A running agent: all components of one configuration, started in order and stopped without loss."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from flafka.agent.audit.publishing import audit_of
from flafka.agent.graph import graph_of
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.monitoring.taps import TapServer
from flafka.agent.monitoring.view import View
from flafka.agent.monitoring.watch import KafkaWatch
from flafka.agent.runner.changes import (
    Changes,
    Unit,
    after_failure,
    between,
    described,
    everything,
    on_spark,
    units_of,
)
from flafka.agent.runner.deadletters.letters import DeadLetters, dead_letters_of
from flafka.agent.runner.deadletters.notices import Heard, Notices
from flafka.agent.runner.drain import Drain
from flafka.agent.runner.figures import drained_by, show_figures
from flafka.agent.runner.imported import import_libraries
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.overflow import OverflowingChannel
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.runner.spark.supervisor import SparkRunner
from flafka.agent.topology import AgentSpec
from flafka.plugins import Channel, FlafkaError, Metrics, OverflowConfig
from flafka.plugins.threads import Ended

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""Longest wait of a stop for channels to take what sources hold, and for memory channels to become empty."""
BLOCKED_SECONDS = 5.0
"""Time after which a source that should stop, and waits for no channel, is named in the log."""
SINK_STOP_SECONDS = 60.0
"""Longest wait of a stop for sinks to commit what they took."""
IDLE_STOP_SECONDS = 15.0
"""Longest wait of a stop while no counter changes: a channel takes nothing, or a store does not answer."""
FAILED_SECONDS = 5.0
"""Longest wait of a stop for a component whose latest attempt has failed."""


class Agent:
    """Runs an `AgentSpec`: channels first, then sinks, then sources; stops in the opposite order, draining.

    `reload` goes over to another configuration of the same agent: only what is not the same in both stops and starts.
    """

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        import_libraries(spec)
        list_letters = spec.command("dlq list")
        self.notices = Notices(list_letters)
        self.ended = Ended()
        """Threads that have ended unexpectedly, once the process has installed it."""
        self.registry = Registry(spec.name, self.notices.recent, self.ended.reasons)
        self.dead_letters: dict[str, DeadLetters] = {}
        self.channels: dict[str, ChannelRunner] = {}
        self.sources: list[SourceRunner] = []
        self.sinks: list[SinkRunner] = []
        self.spark: SparkRunner | None = None
        self._described = described(spec)
        self._changing = threading.Lock()
        """Held while parts start and stop."""
        self._stopping = threading.Event()
        self.registry.waiting = self._waiting
        self.registry.application = lambda: self.spark.application if self.spark is not None else {}
        self.view = View(graph_of(spec), self.registry, list_letters)
        self.watch = KafkaWatch({}, {})
        self.taps = TapServer(spec)
        self._unstarted = self._make(everything(self._described))
        deliveries = [member.delivery for runner in self.sinks for member in runner.members]
        metrics: dict[str, Metrics] = self.spark.metrics if self.spark is not None else {}
        self._drain = Drain(self.channels, deliveries, [(one, metrics[one.name]) for one in on_spark(spec)])

    # --- parts

    def _make(self, changes: Changes) -> list[Callable[[], None]]:
        """Make the parts that a configuration begins, all or those that changed, and return what starts each."""
        spec = changes.new
        channels = self._make_channels(spec, changes.channels)
        sources = [
            SourceRunner(one, self.channels, self.dead_letters) for one in spec.sources if one.name in changes.sources
        ]
        sinks = [self._runner(unit) for unit in units_of(spec) if unit.path in changes.units]
        self.sources += sources
        self.sinks += sinks
        starts = [*(channel.start for channel in channels), *(sink.start for sink in sinks)]
        if changes.spark:
            remote = on_spark(spec)
            self.spark = SparkRunner(spec, remote, self.notices.add) if remote else None
            starts += [self.spark.start] if self.spark is not None else []
        starts += [one.start for one in sources]
        self._look_at_all()
        if changes.server:
            host, port = spec.options.monitoring_host, spec.options.monitoring_port
            self.server = MetricsServer(self.registry, host, port, self.view, spec.options.token)
            starts.insert(0, self.server.start)
        return [self.watch.start, *starts]

    def _make_channels(self, spec: AgentSpec, names: Collection[str]) -> list[ChannelRunner]:
        made_now = []
        for c in sorted(spec.channels, key=lambda c: c.overflow is not None):  # each after the one it overflows into
            if c.name not in names:
                continue
            channel: Channel = c.make()
            letters = Heard(dead_letters_of(spec.name, c, channel, spec.options, spec.file), self.notices.add)
            self.dead_letters[c.name] = letters
            made = c.path, c.name, channel, audit_of(channel, spec.options)
            if isinstance(c.config, OverflowConfig) and c.overflow is not None:
                overflow, seconds = self.channels[c.overflow], c.config.overflow_timeout
                runner: ChannelRunner = OverflowingChannel(*made, overflow, letters, seconds)
            else:
                runner = ChannelRunner(*made)
            self.channels[c.name] = runner
            made_now.append(runner)
        return made_now

    def _runner(self, unit: Unit) -> SinkRunner:
        member = member_id(self.spec.name, unit.path.split(".", 1)[1] if unit.group else unit.sinks[0].name)
        return SinkRunner(
            unit.sinks, self.channels[unit.channel], self.dead_letters[unit.channel], member, unit.group
        )

    def _look_at_all(self) -> None:
        """Show the parts that there are now: in the metrics, on the page, and to the watch of Kafka's brokers."""
        spec = self.spec
        self.registry.clear()
        show_figures(self.registry, spec, self.sources, self.channels.values(), self.sinks, self.spark)
        drained = drained_by(spec, self.sinks, self.spark)
        self.watch = KafkaWatch({name: c.channel for name, c in self.channels.items()}, drained)
        followed = {source.spec.name: source.source.tailed_files for source in self.sources}
        self.view.show(graph_of(spec), self.watch, followed)
        taps = {source.path: source.taps for source in self.sources}
        taps |= {channel.path: channel.taps for channel in self.channels.values()}
        taps |= {member.delivery.path: member.delivery.taps for runner in self.sinks for member in runner.members}
        self.taps.show(spec, taps)
        self.view.samples.show(spec, taps)

    def _waiting(self) -> dict[str, str]:
        """Channels and sources that were never open since the start, and why."""
        never = [*((c, c.ready) for c in self.channels.values()), *((s, s.was_open) for s in self.sources)]
        return {
            worker.path: worker.metrics.last_error or "is not open yet" for worker, was in never if not was.is_set()
        }

    def start(self) -> None:
        """Start everything; returns at once. Components that cannot open yet are tried again."""
        logging.getLogger().addHandler(self.view.recent)
        self.view.history.start()
        self.taps.start()
        _start(self._unstarted)

    def look(self) -> None:
        """Say what is to be said now and then, whether anything happens or not. To be called every second or so."""
        self.notices.say()
        self.view.samples.look()
        for source in self.sources:
            source.retries.look()

    def drained(self) -> bool:
        """Return True once durable channels are delivered up to their ends at the first call, by any group member.

        Raises Stuck when nothing is delivered for too long.
        """
        return self._drain.over()

    def drain(self) -> None:
        """Tell sinks to deliver what they take at once: nothing that is worth waiting for comes any more."""
        for sink in self.sinks:
            sink.draining.set()

    # --- another configuration

    def reload(self, spec: AgentSpec) -> str:
        """Apply another configuration of the same agent, and return a description of the changes.

        Components that are the same in both configurations keep their connections and places in consumer groups. Of
        the rest, sources end first. Channels that do not outlive the agent are emptied, and sinks deliver what they
        hold; then the new components start. Raises FlafkaError, and changes nothing, where such a channel cannot be
        emptied. After any other error, as where the system refuses a thread, some of the new components do not run.
        The next call then stops and starts all that changed.
        """
        new = described(spec)
        import_libraries(spec)
        with self._changing:
            changes = between(self._described, new)
            if changes:
                before, self._described = self._described, after_failure(new, changes)
                try:
                    self._end(changes)
                except FlafkaError:
                    self._described = before
                    raise
                self.spec = spec
                _start(self._make(changes))
                self._described = new
            return str(changes)

    def _end(self, changes: Changes) -> None:
        sources = [source for source in self.sources if source.spec.name in changes.sources]
        self._await_end(sources)
        ended = {name: self.channels[name] for name in changes.channels if name in self.channels}
        sinks = [sink for sink in self.sinks if sink.path in changes.units]
        for sink in sinks:
            sink.draining.set()
        if not self._empty([c for c in ended.values() if not c.channel.durable]):
            self.sources = [s for s in self.sources if s not in sources]
            again = [SourceRunner(source.spec, self.channels, self.dead_letters) for source in sources]
            self.sources += again
            for sink in sinks:
                sink.draining.clear()
            self.watch.stop()
            self._look_at_all()
            _start([self.watch.start, *(source.start for source in again)])
            names = ", ".join(name for name, c in ended.items() if not c.channel.durable)
            raise FlafkaError(
                f"channel {names} changes, and its sinks do not deliver what it holds: nothing was changed"
            )
        for channel in ended.values():
            channel.stop_forwarding()
        if changes.spark and self.spark is not None:
            self.spark.stop(SINK_STOP_SECONDS)
        self._await_end(sinks)  # their places in consumer groups are taken over only when they have left them
        _stop_channels(ended.values())
        for name in ended:
            self._close_letters(name)
            del self.channels[name]
        self.sources = [source for source in self.sources if source not in sources]
        self.sinks = [sink for sink in self.sinks if sink not in sinks]
        self.watch.stop()
        if changes.server:
            self.server.stop()

    def _await_end(self, parts: Sequence[SourceRunner | SinkRunner]) -> None:
        """Stop them, and wait as long as that takes: what they hold has to be stored, or delivered, first."""
        for part in parts:
            part.stopping.set()
        told = time.monotonic() + DRAIN_SECONDS
        while alive := [part.path for part in parts if part.thread.is_alive()]:
            if self._stopping.wait(0.02):
                raise FlafkaError("the agent stops")
            if time.monotonic() > told:
                told = float("inf")
                log.warning("the new configuration waits for %s to end", ", ".join(alive))
                self._tell_blocked()

    # --- the end

    def stop(self) -> bool:
        """Stop sources, let channels and sinks deliver what they hold, commit. True when nothing was left undone."""
        self._stopping.set()
        with self._changing:  # a change that is under way is given up
            log.info("stopping: draining")
            return self._stop()

    def _stop(self) -> bool:
        for source in self.sources:
            source.stopping.set()
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
            sink.stopping.set()
        if self.spark is not None:
            clean &= self.spark.stop(SINK_STOP_SECONDS)
        clean &= self._join_sinks(progress, drained=drained)
        clean &= not any(sink.failing() for sink in self.sinks) and not self.ended
        _stop_channels(self.channels.values())
        for name in self.channels:
            self._close_letters(name)
        self.notices.say(all_of_them=True)
        self.server.stop()
        self.taps.stop()
        self.view.samples.stop()
        self.watch.stop()
        self.view.history.stop()
        logging.getLogger().removeHandler(self.view.recent)
        self._keep_metrics()
        log.info("stopped" if clean else "stopped, but not everything could be delivered; see the warnings above")
        return clean

    def _join_sources(self) -> bool:
        """Wait until sources have ended, but not long for a channel that does not take what they hold."""
        deadline = time.monotonic() + DRAIN_SECONDS
        progress = _Progress([part.metrics for part in (*self.sources, *self.channels.values())])
        if _join([source.thread for source in self.sources], BLOCKED_SECONDS):
            return True
        self._tell_blocked()
        while alive := [source for source in self.sources if source.thread.is_alive()]:
            in_vain = all(source.refused() for source in alive) or progress.seconds_without() > IDLE_STOP_SECONDS
            if in_vain or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _join_sinks(self, progress: Mapping[str, _Progress], *, drained: bool) -> bool:
        """Wait until sinks have ended, but not long for one that fails or whose store does not answer.

        `drained` says whether memory channels are empty: what their sinks hold would be lost.
        """
        began = time.monotonic()
        while alive := [sink for sink in self.sinks if sink.thread.is_alive()]:
            waited = time.monotonic() - began
            if all(waited > self._patience(sink, progress[sink.path], drained=drained) for sink in alive):
                names = ", ".join(sink.path for sink in alive)
                log.warning("%s: the stop does not wait any longer for an answer of the store", names)
                return False
            time.sleep(0.02)
        return True

    def _patience(self, sink: SinkRunner, progress: _Progress, *, drained: bool) -> float:
        silent = progress.seconds_without() > IDLE_STOP_SECONDS  # asked in any case: it looks at the counters
        if sink.finished:  # its reader is being closed, which takes long where Kafka's client stands still
            return SINK_STOP_SECONDS
        if drained and not sink.channel.channel.durable:
            return SINK_STOP_SECONDS
        return 0.0 if silent else FAILED_SECONDS if sink.failing() else SINK_STOP_SECONDS

    def hangs(self) -> bool:
        """Return True where a stop has left threads that Python would wait for at its own end."""
        threads = [*(source.thread for source in self.sources), *(sink.thread for sink in self.sinks)]
        return any(thread.is_alive() for thread in threads)

    def _tell_blocked(self) -> None:
        for source in self.sources:
            if why := source.told_to_stop():
                source.log.warning("%s", why)

    def _close_letters(self, channel: str) -> None:
        self.dead_letters[channel].close()
        if (audit := self.channels[channel].audit) is not None:
            audit.close()

    def left_undone(self) -> str:
        """Describe the unfinished part of a stop, for the log. Does not block."""
        sources = [s.spec.name for s in self.sources if s.thread.is_alive()]
        sinks = [m.name for runner in self.sinks if runner.thread.is_alive() for m in runner.members]
        if self.spark is not None and self.spark.running():
            sinks += self.spark.metrics
        undone = []
        if sources:
            undone.append(f"sources {', '.join(sources)} (what no channel has was not acknowledged)")
        if sinks:
            undone.append(f"sinks {', '.join(sinks)} (durable channels deliver again what is not committed)")
        volatile = [c for c in self.channels.values() if not c.channel.durable]
        if left := sum(c.metrics.get("ChannelSize") for c in volatile):
            undone.append(f"{left:.0f} events in memory channels, which are lost")
        return "; ".join(undone) or "nothing"

    def _keep_metrics(self) -> None:
        path = self.spec.options.monitoring_file
        if path is not None:
            try:
                Path(path).write_text(json.dumps(self.registry.flume(), indent=2))
            except OSError as e:
                log.warning("monitoring.file %s cannot be written: %s", path, e.strerror)

    def _drain_memory(self) -> bool:
        volatile = [c for c in self.channels.values() if not c.channel.durable]
        if self._empty(volatile):
            return True
        left = sum(c.metrics.get("ChannelSize") for c in volatile)
        log.warning("%d events in memory channels could not be delivered and are lost", left)
        return False

    def _empty(self, channels: Iterable[ChannelRunner]) -> bool:
        """Wait until those that sinks drain are empty; False when that takes too long."""
        deadline = time.monotonic() + DRAIN_SECONDS
        drained = {s.channel.name for s in self.sinks}
        drained_ones = [c for c in channels if c.name in drained]
        while sum(c.metrics.get("ChannelSize") for c in drained_ones):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


class _Progress:
    """Counters of components, and when one of them has changed last."""

    def __init__(self, metrics: Sequence[Metrics]) -> None:
        self._metrics = metrics
        self._seen, self._changed = self._counters(), time.monotonic()

    def seconds_without(self) -> float:
        """Return the time since the last change that was seen. To be called often."""
        if (seen := self._counters()) != self._seen:
            self._seen, self._changed = seen, time.monotonic()
        return time.monotonic() - self._changed

    def _counters(self) -> list[dict[str, float]]:
        return [one.counters() for one in self._metrics]


def member_id(agent: str, sink: str) -> str:
    """Return the member ID of a sink's consumer, which is the same after a restart."""
    return f"{socket.gethostname()}.{agent}.{sink}"


def _start(starts: Iterable[Callable[[], None]]) -> None:
    for start in starts:
        start()


def _stop_channels(channels: Iterable[ChannelRunner]) -> None:
    """Close them. Nobody puts into them or takes from them any more."""
    stopped = list(channels)
    for channel in stopped:
        channel.stopping.set()
        channel.channel.stopping.set()
        channel.may_close.set()
    _join([channel.thread for channel in stopped], 5)


def _join(threads: list[threading.Thread], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    for thread in threads:
        if thread.is_alive():  # join raises for a thread that the system refused
            thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)

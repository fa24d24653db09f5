"""A running agent: all components of one configuration, started in order and stopped without loss."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from agent.audit.publishing import audit_of
from agent.graph import graph_of, metrics_of_interceptor
from agent.monitoring.registry import Registry
from agent.monitoring.server import MetricsServer
from agent.monitoring.view import View
from agent.monitoring.watch import KafkaWatch
from agent.runner.deadletters.letters import DeadLetters, dead_letters_of
from agent.runner.deadletters.notices import Heard, Notices, command_for
from agent.runner.drain import Drain
from agent.runner.local.channels import ChannelRunner
from agent.runner.local.overflow import OverflowingChannel
from agent.runner.local.sinks import SinkRunner
from agent.runner.local.sources import SourceRunner
from agent.runner.spark.supervisor import SparkRunner
from agent.topology import AgentSpec, SinkGroupSpec, SinkSpec, SourceSpec
from plugins import Channel, Metrics

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""How long a stop waits for channels to take what sources hold, and for memory channels to empty."""
FLUSH_SECONDS = 60.0
"""How long a stop waits for sinks to commit what they took."""


class Agent:
    """Runs an `AgentSpec`: channels first, then sinks, then sources; stops in the opposite order, draining."""

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        self.notices = Notices(command_for(spec))
        self.registry = Registry(spec.name, self.notices.recent)
        self.give_up = threading.Event()
        channels: dict[str, Channel] = {c.name: c.make() for c in spec.channels}
        self.dead_letters: dict[str, DeadLetters] = {
            c.name: Heard(dead_letters_of(spec.name, c, channels[c.name], spec.options), self.notices.add)
            for c in spec.channels
        }
        self.channels: dict[str, ChannelRunner] = {}
        for c in sorted(spec.channels, key=lambda c: c.overflow is not None):  # each after the one it overflows into
            made = c.path, c.name, channels[c.name], audit_of(channels[c.name], spec.options)
            if (overflow := c.overflow) is None:
                self.channels[c.name] = ChannelRunner(*made)
            else:
                into, letters = self.channels[overflow.channel], self.dead_letters[c.name]
                self.channels[c.name] = OverflowingChannel(*made, into, letters, overflow.seconds)
        self.sources = [SourceRunner(s, self.channels, self.dead_letters, self.give_up) for s in spec.sources]
        in_groups = {name for group in spec.groups if len(group.sinks) > 1 for name in group.sinks}
        sinks = {s.name: s for s in spec.sinks}
        self.sinks = [
            *(self._runner([s]) for s in spec.sinks if s.runner == "local" and s.name not in in_groups),
            *(self._runner([sinks[name] for name in g.sinks], g) for g in spec.groups if len(g.sinks) > 1),
        ]
        remote = [s for s in spec.sinks if s.runner == "spark"]
        self.spark = SparkRunner(spec, remote, self.notices.add) if remote else None
        deliveries = [member.delivery for runner in self.sinks for member in runner.members]
        self._drain = Drain(
            self.channels, deliveries, [(s, self.spark.metrics[s.name]) for s in remote] if self.spark else []
        )
        for source in self.sources:
            self.registry.add("SOURCE", source.spec.name, source.metrics, source.source.counters)
            for one in source.interceptors:
                self._show_interceptor(source.spec, one.name, one.metrics, one.counters)
        for channel in self.channels.values():
            self.registry.add(
                "CHANNEL", channel.name, channel.metrics, (*channel.channel.counters, *channel.counters)
            )
        for delivery in deliveries:
            self.registry.add("SINK", delivery.spec.name, delivery.metrics, delivery.sink.counters)
            for one in delivery.interceptors:
                self._show_interceptor(delivery.spec, one.name, one.metrics, one.counters)
        if self.spark is not None:
            for s in remote:
                self.registry.add("SINK", s.name, self.spark.metrics[s.name], s.cls.counters)
                for i in s.interceptors:
                    if (counted := self.spark.interceptors.get((s.name, i.name))) is not None:
                        self._show_interceptor(s, i.name, counted, i.cls.counters)
        self.registry.waiting = self._waiting
        drained: dict[str, list[tuple[str | None, Metrics]]] = {}
        known = {delivery.spec.name: delivery.metrics for delivery in deliveries}
        known |= self.spark.metrics if self.spark is not None else {}
        for s in spec.sinks:
            drained.setdefault(s.channel, []).append((s.group, known[s.name]))
        self.watch = KafkaWatch({name: c.channel for name, c in self.channels.items()}, drained)
        followed = {source.spec.name: source.source.followed for source in self.sources}
        self.view = View(graph_of(spec), self.registry, self.watch, followed)
        options = spec.options
        token = options.monitoring_token.get_secret_value() if options.monitoring_token is not None else ""
        served = options.monitoring_host, options.monitoring_port
        self.server = MetricsServer(self.registry, *served, self.view, token)

    def _show_interceptor(
        self, owner: SourceSpec | SinkSpec, name: str, metrics: Metrics, counters: tuple[str, ...]
    ) -> None:
        self.registry.add("INTERCEPTOR", metrics_of_interceptor(self.spec, owner, name), metrics, counters)

    def _waiting(self) -> dict[str, str]:
        """Channels and sources that were never open since the start, and why."""
        never = [*((c, c.ready) for c in self.channels.values()), *((s, s.was_open) for s in self.sources)]
        return {
            worker.path: worker.metrics.last_error or "is not open yet" for worker, was in never if not was.is_set()
        }

    def _runner(self, sinks: Sequence[SinkSpec], group: SinkGroupSpec | None = None) -> SinkRunner:
        name = sinks[0].name if group is None else f"sinkgroups.{group.name}"
        channel = sinks[0].channel
        member = member_id(self.spec.name, name)
        return SinkRunner(sinks, self.channels[channel], self.dead_letters[channel], member, group)

    def start(self) -> None:
        """Start everything; returns at once. Components that cannot open yet are tried again."""
        logging.getLogger().addHandler(self.view.recent)
        self.view.history.start()
        self.watch.start()
        self.server.start()
        for channel in self.channels.values():
            channel.start()
        for sink in self.sinks:
            sink.thread.start()
        if self.spark is not None:
            self.spark.start()
        for source in self.sources:
            source.thread.start()

    def look(self) -> None:
        """Say what is to be said now and then, whether anything happens or not. To be called every second or so."""
        self.notices.say()

    def drained(self) -> bool:
        """Whether durable channels are delivered up to where they ended when this was first asked, by whoever is in
        their groups. Raises Stuck when that does not come about.
        """
        return self._drain.over()

    def drain(self) -> None:
        """Tell sinks to deliver what they take at once: nothing that is worth waiting for comes any more."""
        for sink in self.sinks:
            sink.draining.set()

    def stop(self) -> bool:
        """Stop sources, let channels and sinks deliver what they hold, commit. True when nothing was left undone."""
        log.info("stopping: draining")
        for source in self.sources:
            source.stopping.set()
        clean = _join([s.thread for s in self.sources], DRAIN_SECONDS)
        self.give_up.set()
        if not clean:
            for channel in self.channels.values():
                channel.channel.stopping.set()
            _join([s.thread for s in self.sources], 5)
        for channel in self.channels.values():
            channel.stop_forwarding()
        self.drain()
        clean &= self._drain_memory()
        for sink in self.sinks:
            sink.stopping.set()
        if self.spark is not None:
            clean &= self.spark.stop(FLUSH_SECONDS)
        clean &= _join([s.thread for s in self.sinks], FLUSH_SECONDS)
        clean &= not any(sink.failing() for sink in self.sinks)
        for channel in self.channels.values():
            channel.stopping.set()
            channel.channel.stopping.set()
            channel.may_close.set()
        _join([c.thread for c in self.channels.values()], 5)
        for letters in self.dead_letters.values():
            letters.close()
        for channel in self.channels.values():
            if channel.audit is not None:
                channel.audit.close()
        self.notices.say(all_of_them=True)
        self.server.stop()
        self.watch.stop()
        self.view.history.stop()
        logging.getLogger().removeHandler(self.view.recent)
        self._keep_metrics()
        log.info("stopped" if clean else "stopped, but not everything could be delivered; see the warnings above")
        return clean

    def left_undone(self) -> str:
        """What a stop that is under way has not done yet, for the log. Looks only, and waits for nothing."""
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
        deadline = time.monotonic() + DRAIN_SECONDS
        drained = {s.channel.name for s in self.sinks}
        volatile = [c for c in self.channels.values() if not c.channel.durable and c.name in drained]
        while left := sum(c.metrics.get("ChannelSize") for c in volatile):
            if time.monotonic() > deadline:
                log.warning("%d events in memory channels could not be delivered and are lost", left)
                return False
            time.sleep(0.05)
        return True


def member_id(agent: str, sink: str) -> str:
    """How a sink's consumer is called across restarts: its group knows it again."""
    return f"{socket.gethostname()}.{agent}.{sink}"


def _join(threads: list[threading.Thread], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)

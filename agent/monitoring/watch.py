"""Looks at the brokers and backlogs of an agent's Kafka channels, for its metrics and its page."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from flafka.plugins import Channel, FlafkaError, Metrics
from flafka.plugins.kafka.backlog import ClusterState, TopicMonitor
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.threads import start_thread

log = logging.getLogger(__name__)

BROKER_CHECK_SECONDS = 2.0
BACKLOG_CHECK_SECONDS = 5.0
BACKLOG = ("Lag", "Backlog", "LagSeconds", "RetentionSecondsLeft")
"""Gauges of a sink on a Kafka channel, known while the sink itself is down, too.

`Lag` is the number of records that the consumer group has not committed, and `Backlog` the same under its former
name. `LagSeconds` is the age of the oldest of them, `RetentionSecondsLeft` the time until the brokers delete it.
Without an answer of the brokers none of them is known.
"""

CLUSTER = ("BrokersDown", "UnderReplicatedPartitions", "OfflinePartitions")
"""Gauges of a Kafka channel, the last two of its topic."""


class KafkaWatch:
    """Watches the channels on a thread of its own. What fails is shown, not logged: the channels tell of it."""

    def __init__(
        self, channels: Mapping[str, Channel], sinks: Mapping[str, Collection[tuple[str | None, Metrics]]]
    ) -> None:
        """`sinks` are, by channel, the groups of those that drain it, with their metrics."""
        self._channels = {
            name: channel for name, channel in channels.items() if isinstance(channel, KafkaBackedChannel)
        }
        self._sinks = sinks
        self._monitors: dict[str, TopicMonitor] = {}
        self._seen: dict[str, ClusterState | str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka watch", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        if self._channels:
            start_thread(self._thread)

    def stop(self) -> None:
        """End, soon."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def clusters(self) -> list[dict[str, Any]]:
        """By channel what was seen last."""
        return [
            {"channel": name, "error": seen} if isinstance(seen, str) else {"channel": name, **_data(seen)}
            for name, seen in list(self._seen.items())
        ]

    def _run(self) -> None:
        due = 0.0
        try:
            while not self._stopping.is_set():
                backlogs = time.monotonic() >= due
                if backlogs:
                    due = time.monotonic() + BACKLOG_CHECK_SECONDS
                for name in self._channels:
                    self._look(name, backlogs=backlogs)
                self._stopping.wait(BROKER_CHECK_SECONDS)
        finally:
            for monitor in self._monitors.values():
                monitor.close()

    def _look(self, name: str, *, backlogs: bool) -> None:
        known = False
        try:
            monitor = self._monitors[name] = self._monitors.get(name) or self._channels[name].kafka.monitor()
            seen = monitor.cluster()
            self._show_cluster(name, seen)
            known = bool(seen.id)  # else no broker answers, and each group would wait for one in vain
            if backlogs and known:
                self._show_backlogs(name, monitor)
        except FlafkaError as e:
            self._seen[name] = str(e)
        except Exception as e:  # what monitoring meets must not end monitoring
            log.debug("looking at channel %s failed", name, exc_info=e)
            self._seen[name] = f"{type(e).__name__}: {e}"

        finally:
            if not known:
                for _, metrics in self._sinks.get(name, ()):
                    _show(metrics, dict.fromkeys(BACKLOG))

    def _show_cluster(self, name: str, seen: ClusterState) -> None:
        self._seen[name] = seen
        down = sum(not broker.up for broker in seen.brokers)
        known = (down, seen.under_replicated, seen.leaderless) if seen.partitions else (down, None, None)
        _show(self._channels[name].metrics, dict(zip(CLUSTER, known, strict=True)))

    def _show_backlogs(self, name: str, monitor: TopicMonitor) -> None:
        known: dict[str | None, Mapping[str, float | None]] = {}
        for group, metrics in self._sinks.get(name, ()):
            if group not in known:
                known[group] = {}
                with contextlib.suppress(FlafkaError):
                    found = monitor.backlog(group)
                    since = None if found.records else 0.0  # what was not read in time has an age that is not known
                    if found.oldest is not None:
                        since = round(max(0.0, time.time() - found.oldest / 1000), 1)
                    values = (found.records, found.records, since, found.retention)
                    known[group] = dict(zip(BACKLOG, values, strict=True))
            _show(metrics, {gauge: known[group].get(gauge) for gauge in BACKLOG})


def _show(metrics: Metrics, gauges: Mapping[str, float | None]) -> None:
    for gauge, value in gauges.items():
        if value is None:
            metrics.forget(gauge)
        else:
            metrics.set(gauge, value)


def _data(seen: ClusterState) -> dict[str, Any]:
    return {**seen._asdict(), "brokers": [broker._asdict() for broker in seen.brokers], "error": ""}

"""Monitor of the brokers and the backlogs of an agent's Kafka channels, for metrics and the page."""

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

KAFKA_CHECK_SECONDS = 5.0
"""Interval of the checks of brokers and backlogs."""
BACKLOG = ("Lag", "Backlog", "LagSeconds", "RetentionSecondsLeft")
"""Gauges of a sink on a Kafka channel, which are known even if the sink is down.

`Lag` is the number of records that the consumer group has not committed; `Backlog` is its deprecated alias.
`LagSeconds` is the age of the oldest of these records, `RetentionSecondsLeft` the time until the brokers delete it.
All are unknown if no broker answers.
"""

CLUSTER = ("BrokersDown", "UnderReplicatedPartitions", "OfflinePartitions")
"""Gauges of a Kafka channel. The last two are about its topic."""


class KafkaMonitor:
    """Monitor of Kafka channels, on its own thread. Errors go to the page; the channels log theirs themselves."""

    def __init__(
        self, channels: Mapping[str, Channel], sinks: Mapping[str, Collection[tuple[str | None, Metrics]]]
    ) -> None:
        """`channels` are by name; those outside Kafka are ignored.

        `sinks` has, by name of the channel, consumer group and metrics of each sink; a group of None is the default.
        """
        self._channels = {
            name: channel for name, channel in channels.items() if isinstance(channel, KafkaBackedChannel)
        }
        self._sinks = sinks
        self._monitors: dict[str, TopicMonitor] = {}
        self._latest: dict[str, ClusterState | str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka watch", daemon=True)

    def start(self) -> None:
        """Start the thread, if there are Kafka channels. Does not block. Call it at most once."""
        if self._channels:
            start_thread(self._thread)

    def stop(self) -> None:
        """Stop the thread, and wait up to 1 s for its end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def clusters(self) -> list[dict[str, Any]]:
        """Return the latest state of each channel's cluster as JSON values, or `{"channel": name, "error": text}`.

        Does not ask the brokers. Empty before the first check.
        """
        return [
            {"channel": name, "error": state} if isinstance(state, str) else {"channel": name, **_to_json(state)}
            for name, state in list(self._latest.items())
        ]

    def _run(self) -> None:
        """Check brokers and backlogs every `KAFKA_CHECK_SECONDS` until `stop`."""
        try:
            while not self._stopping.is_set():
                for name in self._channels:
                    self._update(name)
                self._stopping.wait(KAFKA_CHECK_SECONDS)
        finally:
            for monitor in self._monitors.values():
                monitor.close()

    def _update(self, name: str) -> None:
        """Check the cluster of one channel, and set its gauges and its sinks' gauges.

        The gauges of the sinks are removed if no broker answers. Never raises.
        """
        is_reachable = False
        try:
            monitor = self._monitors[name] = self._monitors.get(name) or self._channels[name].kafka.monitor()
            state = monitor.cluster()
            self._set_cluster_gauges(name, state)
            is_reachable = bool(state.id)  # without a broker, the request of each group would run into its timeout
            if is_reachable:
                self._set_backlog_gauges(name, monitor)
        except FlafkaError as e:
            self._latest[name] = str(e)
        except Exception as e:  # an unexpected error must not end the thread
            log.debug("monitoring of channel %s failed", name, exc_info=e)
            self._latest[name] = f"{type(e).__name__}: {e}"
        finally:
            if not is_reachable:
                for _, metrics in self._sinks.get(name, ()):
                    _set_gauges(metrics, dict.fromkeys(BACKLOG))

    def _set_cluster_gauges(self, name: str, state: ClusterState) -> None:
        """Set the gauges `CLUSTER` of a channel, and keep the state for `clusters`."""
        self._latest[name] = state
        down = sum(not broker.up for broker in state.brokers)
        values = (down, state.under_replicated, state.leaderless) if state.partitions else (down, None, None)
        _set_gauges(self._channels[name].metrics, dict(zip(CLUSTER, values, strict=True)))

    def _set_backlog_gauges(self, name: str, monitor: TopicMonitor) -> None:
        """Set the gauges `BACKLOG` of a channel's sinks, with one request for each group; remove unknown ones."""
        known: dict[str | None, Mapping[str, float | None]] = {}
        for group, metrics in self._sinks.get(name, ()):
            if group not in known:
                known[group] = {}
                with contextlib.suppress(FlafkaError):
                    backlog = monitor.backlog(group)
                    # If the oldest record was not read within the timeout, its age is unknown.
                    lag_seconds = None if backlog.records else 0.0
                    if backlog.oldest is not None:
                        lag_seconds = round(max(0.0, time.time() - backlog.oldest / 1000), 1)
                    values = (backlog.records, backlog.records, lag_seconds, backlog.retention)
                    known[group] = dict(zip(BACKLOG, values, strict=True))
            _set_gauges(metrics, {gauge: known[group].get(gauge) for gauge in BACKLOG})


def _set_gauges(metrics: Metrics, gauges: Mapping[str, float | None]) -> None:
    """Set the gauges, and remove gauges whose value is None."""
    for gauge, value in gauges.items():
        if value is None:
            metrics.remove(gauge)
        else:
            metrics.set(gauge, value)


def _to_json(state: ClusterState) -> dict[str, Any]:
    return {**state._asdict(), "brokers": [broker._asdict() for broker in state.brokers], "error": ""}

"""Agent with a disk overflow under load while brokers are killed: sources continue, and nothing is lost.

The short version is in test_proofs_brokers.py, ten minutes in tests/soak.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, free_ports, until
from tests.system.running import agent_command, in_topic, kafka_channel, unique

OVERFLOW_TIMEOUT_SECONDS = 3
"""Time that the channel waits for its brokers."""
SLOW_SECONDS = 2.0
"""Latency of 99 of 100 puts, outages included; the others wait until the overflow begins."""


class Sender:
    """Client that sends numbered lines over one connection, each once, after the acknowledgement of the last."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self._port = name, port
        self.acknowledged: list[int] = []
        self.seconds: list[float] = []
        """Latency of each line."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._over.wait(0.05):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=60) as client,
                client.makefile("rb") as answers,
            ):
                while not self._over.wait(0.005):
                    number, began = next(numbers), time.monotonic()
                    client.sendall(b"%s %d\n" % (self.name.encode(), number))
                    if answers.readline() != b"OK\n":
                        break
                    self.acknowledged.append(number)
                    self.seconds.append(time.monotonic() - began)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def end(self) -> None:
        """Stop sending."""
        self._over.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.end()


def overflow(directory: Path, kafka: KafkaCluster, seconds: float) -> str:
    """Stop the brokers for at least this many seconds and check every event; return the figures."""
    topic, ports = unique("overflow"), free_ports(2)
    configuration = f"""
a1.sources = s1 s2
a1.channels = c1 c2
{kafka_channel(kafka.bootstrap_servers, topic, partitions=1)}
a1.channels.c1.overflow = c2
a1.channels.c1.overflowTimeout = {OVERFLOW_TIMEOUT_SECONDS}
a1.channels.c2.type = file
a1.channels.c2.checkpointDir = {directory}/checkpoint
a1.channels.c2.dataDirs = {directory}/data
"""
    for number, port in enumerate(ports, 1):
        configuration += f"""
a1.sources.s{number}.type = netcat
a1.sources.s{number}.bind = 127.0.0.1
a1.sources.s{number}.port = {port}
a1.sources.s{number}.channels = c1
"""
    senders = [Sender(f"s{number}", port) for number, port in enumerate(ports, 1)]

    def await_events(agent: RunningAgent, events: int) -> None:
        before = [len(sender.acknowledged) for sender in senders]
        agent.until(
            lambda: all(len(s.acknowledged) > n + events for s, n in zip(senders, before, strict=True)), "events"
        )

    def straight(agent: RunningAgent) -> int:
        """Return the number of events that were put into Kafka without the overflow."""
        accepted = sum(agent.count(f"SOURCE.{sender.name}", "EventAcceptedCount") for sender in senders)
        return accepted - agent.count("CHANNEL.c1", "OverflowEventCount")

    with contextlib.ExitStack() as sending:
        with RunningAgent(directory, configuration) as agent:
            agent.wait_until_healthy()
            for sender in senders:
                sending.enter_context(sender)
            await_events(agent, 100)
            for name in kafka.names():
                kafka.kill(name)
            away = time.monotonic()
            agent.until(lambda: agent.count("CHANNEL.c1", "Overflowing"), "the overflow")
            await_events(agent, 100)
            assert agent.failing() == {}
            assert agent.degraded()["CHANNEL.c1"].startswith("overflows into a1.channels.c2 for ")
            until(lambda: time.monotonic() - away > seconds / 2, "half of the outage")
            agent.process.kill()
            agent.wait_for_exit()
        with RunningAgent(directory, configuration) as agent:
            await_events(agent, 100)  # it listens without brokers
            assert "holds" in agent.degraded()["CHANNEL.c1"]
            agent.file.write_text(agent.file.read_text() + "a1.channels.c2.capacity = 2000000\n")
            reloaded = agent_command("reload", "-c", str(agent.file))
            assert reloaded.returncode == 0, reloaded.stderr
            agent.until(lambda: agent.count("CHANNEL.c2", "ChannelCapacity") == 2_000_000, "the larger overflow")
            await_events(agent, 100)
            until(lambda: time.monotonic() - away > seconds, "the outage to be long enough")
            queued = agent.count("CHANNEL.c1", "OverflowSize")
            away = time.monotonic() - away
            kafka.start()
            agent.until(lambda: agent.count("CHANNEL.c1", "OverflowForwardedCount"), "events to be forwarded")
            repeated = agent.count("CHANNEL.c1", "OverflowRepeatedCount")
            agent.process.kill()
            agent.wait_for_exit()
        with RunningAgent(directory, configuration) as agent:
            agent.until(lambda: straight(agent) > 100, "the overflow to be over")
            agent.until(lambda: not agent.degraded() and not agent.failing(), "the agent to be well")
            sending.close()
            repeated += agent.count("CHANNEL.c1", "OverflowRepeatedCount")
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
    bodies = [event.body.decode() for event in in_topic(kafka, topic)]
    for sender in senders:
        first = [int(line.split()[1]) for line in dict.fromkeys(bodies) if line.startswith(sender.name)]
        assert first == sorted(first)
        assert not set(sender.acknowledged) - set(first)
    twice = sum(Counter(bodies).values()) - len(set(bodies))
    assert twice <= repeated
    durations = sorted(second for sender in senders for second in sender.seconds)
    slow = durations[len(durations) * 99 // 100]
    assert slow < SLOW_SECONDS
    return (
        f"Kafka away for {away:.0f} s, the agent killed twice: all {len(durations)} acknowledged events are there in "
        f"their order, {queued} were held at most, {twice} came twice of {repeated} told; 99 of 100 puts took less "
        f"than {1000 * slow:.0f} ms, the longest {durations[-1]:.1f} s"
    )

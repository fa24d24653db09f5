"""Sink `hdfs` on two NameNodes that fail over while one of them, or both, are suspended or killed: `./dev soak`."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyhdfs
import pytest
import requests

from flafka.agent.services.hdfs import NAMENODE
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.kdc import REALM
from flafka.agent.services.running import until
from tests.fixtures.kerberos import TOKEN_SECONDS, SecureHdfs
from tests.system.namenodes import NAMENODES, SECOND, PairedHdfs
from tests.system.running import in_hdfs, unique
from tests.system.test_groups import Group

ROUNDS = 2
"""Rounds of all faults, each in random order."""
SUSPENDED_SECONDS = 9.0
"""Seconds of a suspension; longer than a call of the sink may take."""
TIMEOUT_SECONDS = 600.0


class SecurePairedHdfs(SecureHdfs, PairedHdfs):
    """Two NameNodes that require Kerberos."""


@pytest.fixture(params=["plain", "kerberos"])
def hdfs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairedHdfs]:
    directory, cluster = tmp_path_factory.mktemp("paired hdfs"), PairedHdfs
    if request.param == "kerberos":
        kdc = request.getfixturevalue("kdc")
        cluster = partial(SecurePairedHdfs, kdc=kdc, token_seconds=TOKEN_SECONDS)
    with cluster(directory, fixed_ports=False) as running:
        running.activate(NAMENODE)
        yield running


class Faults:
    """Faults of which each makes the other NameNode the active one."""

    def __init__(self, hdfs: PairedHdfs) -> None:
        self.hdfs = hdfs

    def all(self) -> list[Callable[[str, str], None]]:
        """Return the faults; arguments are the active NameNode and the standby."""
        return [self.change, self.sleep, self.sleep_until_changed, self.see_what_was, self.die]

    def change(self, active: str, standby: str) -> None:
        """Make the standby active in an orderly failover."""
        self.hdfs.stand_by(active)
        self.hdfs.activate(standby)

    def sleep(self, active: str, standby: str) -> None:
        """Suspend the active one, which answers late and carries out the requests that it was sent meanwhile."""
        self._asleep(active)
        self.change(active, standby)

    def sleep_until_changed(self, active: str, standby: str) -> None:
        """Suspend the active one until it has lost its role; it wakes to the order to be a standby."""
        self.hdfs.server(active).signal(signal.SIGSTOP)
        with self.hdfs.haadmin("-transitionToStandby", NAMENODES[active]):
            time.sleep(SUSPENDED_SECONDS)
            self.hdfs.server(active).signal(signal.SIGCONT)
        self.change(active, standby)

    def see_what_was(self, active: str, standby: str) -> None:
        """Leave a formerly suspended standby as the only one to answer."""
        self._asleep(standby, meanwhile=lambda: self.hdfs.server(active).signal(signal.SIGSTOP))
        time.sleep(SUSPENDED_SECONDS)
        self.hdfs.server(active).signal(signal.SIGCONT)
        self.change(active, standby)

    def die(self, active: str, standby: str) -> None:
        """Kill the active one; it restarts as a standby."""
        self.hdfs.kill(active)
        self.hdfs.activate(standby)
        self.hdfs.start(TIMEOUT_SECONDS)

    def _asleep(self, name: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.hdfs.server(name).signal(signal.SIGSTOP)
        time.sleep(SUSPENDED_SECONDS)
        meanwhile()
        self.hdfs.server(name).signal(signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_failovers_between_namenodes_whose_standby_answers_reads(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs: PairedHdfs, seed: int, figures: list[str]
) -> None:
    chance, name, faults = random.Random(seed), unique("failover"), Faults(hdfs)
    sink = {
        "type": "hdfs",
        "channel": "c1",
        "hdfs.path": f"/{name}",
        "hdfs.webhdfs": hdfs.addresses,
        "hdfs.callTimeout": "5000",
        "hdfs.fileType": "DataStream",
        "hdfs.rollInterval": "1",
        "hdfs.rollSize": "0",
        "hdfs.rollCount": "0",
    }
    if isinstance(hdfs, SecureHdfs):
        hdfs.create_directory(f"/{name}", "flafka")
        sink |= {"hdfs.kerberosPrincipal": f"flafka@{REALM}", "hdfs.kerberosKeytab": str(hdfs.kdc.keytab("flafka"))}
    group = Group(tmp_path, kafka_cluster, name, "\n".join(f"a1.sinks.k1.{key} = {sink[key]}" for key in sink))
    enough = threading.Event()

    def feed() -> None:
        while not enough.wait(0.5):
            group.put(30)

    feeding, longest, kills = threading.Thread(target=feed, daemon=True), 0.0, 0
    feeding.start()
    agent = group.agent()
    try:
        agent.__enter__()

        def delivers() -> None:
            before = agent.count("SINK.k1", "EventDrainSuccessCount")
            agent.until(
                lambda: agent.count("SINK.k1", "EventDrainSuccessCount") > before,
                "files of a new commit",
                TIMEOUT_SECONDS,
            )

        for _ in range(ROUNDS):
            for fault in chance.sample(faults.all(), len(faults.all())):
                delivers()
                active = hdfs.active()
                assert active is not None
                fault(active, SECOND if active == NAMENODE else NAMENODE)
                if chance.random() < 0.5:
                    agent.stop(signal.SIGKILL)
                    agent = group.agent()
                    agent.__enter__()
                    kills += 1
                began = time.monotonic()
                delivers()
                longest = max(longest, time.monotonic() - began)
        enough.set()
        feeding.join()
        wanted = Counter(group.bodies)

        def delivered() -> Counter[bytes]:
            counts: list[Counter[bytes]] = []

            def read() -> bool:  # not while the DataNode asks a standby that does not know the file yet
                with contextlib.suppress(pyhdfs.HdfsException, requests.HTTPError):
                    if isinstance(hdfs, SecureHdfs):
                        counts.append(Counter(line.encode() for line in hdfs.lines(f"/{name}")))
                    else:
                        counts.append(Counter(in_hdfs(hdfs, f"/{name}")))
                return bool(counts)

            until(read, "HDFS to be read", TIMEOUT_SECONDS)
            return counts[0]

        agent.until(lambda: not wanted - delivered(), "all events", TIMEOUT_SECONDS)
        assert agent.stop() == 0
        assert "count as delivered by another sink" not in agent.log
        assert "Traceback" not in agent.log
    finally:
        enough.set()
        feeding.join(60)
        agent.__exit__()
        for server in NAMENODES:
            hdfs.server(server).signal(signal.SIGCONT)
    assert delivered() == wanted
    figures.append(
        f"seed {seed}: {len(group.bodies):,} events through {ROUNDS * len(faults.all())} failovers of NameNodes and "
        f"{kills} kills of the agent, each once; delivery went on within {longest:.0f} s"
    )

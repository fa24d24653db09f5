"""Sinks `hdfs` over thirty lives of delegation tokens, while the KDC, the principal and HDFS fail: `./dev soak`."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services import ServiceError
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.running import RunningAgent
from tests.fixtures.httpfs import HttpFs
from tests.fixtures.kerberos import SecureHdfs
from tests.fixtures.servers import of_this_run
from tests.system.running import agent_command, unique
from tests.system.test_clock import Clock
from tests.system.test_groups import Group

LIVES = int(os.environ.get("FLAFKA_SOAK_LIVES", "30"))
"""Longest lives of tokens that one process works through; none of its servers fails during the first third."""
INTERVAL_SECONDS, LIFE_SECONDS = 20, 60
"""Renewal interval and longest life of delegation tokens."""
OFF_SECONDS = 6 * 60
"""Error of a clock: more than the 300 s that Kerberos allows by default."""
TIMEOUT_SECONDS = 600.0
RECOVERY_SECONDS = 60.0
"""Longest time from the return of the KDC to a delivery; half of it on an idle machine."""
USER, SINKS = "flafka", ("k1", "k2")
PRINCIPAL = f"{USER}@{REALM}"


class ClockedKdc(Kdc):
    """KDC whose clock can be set."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        super().__init__(directory, fixed_ports=False)
        self.clock = clock

    def environment(self) -> Mapping[str, str]:
        """Return the variables of the KDC, with its clock."""
        return {**super().environment(), **self.clock.environment}


@pytest.fixture
def kdc(tmp_path: Path) -> Iterator[ClockedKdc]:
    with of_this_run(ClockedKdc(tmp_path / "kdc", new_clock(tmp_path / "kdc-clock"))) as kdc:
        kdc.add(USER)
        yield kdc


@pytest.fixture
def hdfs(kdc: ClockedKdc, tmp_path: Path) -> Iterator[SecureHdfs]:
    tokens = INTERVAL_SECONDS, LIFE_SECONDS
    with of_this_run(SecureHdfs(tmp_path / "hdfs", kdc=kdc, token_seconds=tokens, fixed_ports=False)) as cluster:
        yield cluster


@pytest.fixture
def httpfs(hdfs: SecureHdfs, tmp_path: Path) -> Iterator[HttpFs]:
    with of_this_run(HttpFs(tmp_path / "httpfs", hdfs, (INTERVAL_SECONDS, LIFE_SECONDS))) as server:
        yield server


def new_clock(directory: Path) -> Clock:
    directory.mkdir()
    return Clock(directory)


class Fault(NamedTuple):
    """Fault with its end."""

    begin: Callable[[], object]
    end: Callable[[], object]
    says: str = ""
    """Pattern of the failure in /healthz, the log and `check --connect`; empty for a fault without a failure."""
    sinks: tuple[str, ...] = SINKS
    """Sinks that fail."""


class Faults:
    """Faults of the KDC, of its principal and keytab, of HDFS and of the agents' clock."""

    def __init__(self, kdc: ClockedKdc, hdfs: SecureHdfs, httpfs: HttpFs, clock: Clock, directory: Path) -> None:
        self.kdc, self.hdfs, self.httpfs, self.clock = kdc, hdfs, httpfs, clock
        self.keytab, self._old_keytab, self._cache = (directory / name for name in ("keytab", "old", "cache"))
        kdc.admin("ktadd", "-k", str(self._old_keytab), USER)
        self.replace_keytab()
        kdc.admin("addpol", "-maxfailure", "3", "lock")

    def all(self) -> dict[str, Fault]:
        """Return the faults by name."""
        return {
            "KDC restarted": Fault(self._restart_kdc, lambda: None),
            "KDC away at the renewal": Fault(self._kill_kdc, self.kdc.start, "Cannot contact any KDC"),
            "KDC away for three lives": Fault(self._kill_kdc, self._start_kdc_late, "Cannot contact any KDC"),
            "KDC's clock ahead": self._kdc_clock(OFF_SECONDS),
            "KDC's clock behind": self._kdc_clock(-OFF_SECONDS),
            "new key": Fault(
                lambda: self.kdc.admin("cpw", "-randkey", USER), self.replace_keytab, "another key than version"
            ),
            "disabled": Fault(
                lambda: self._change("-allow_tix"),
                lambda: self._change("+allow_tix"),
                "revoked; it is disabled or locked",
            ),
            "locked": Fault(self._lock, self._unlock, "revoked; it is disabled or locked"),
            "expired": Fault(
                lambda: self._change("-expire", "2020-01-01"),
                lambda: self._change("-expire", "never"),
                "entry in database has expired; .* -expire",
            ),
            "password expired": Fault(
                lambda: self._change("-pwexpire", "2020-01-01"),
                lambda: self._change("-pwexpire", "never"),
                "Password has expired; .* -pwexpire",
            ),
            "agents' clock ahead": self._agents_clock(OFF_SECONDS),
            "agents' clock behind": self._agents_clock(-OFF_SECONDS),
            "NameNode restarted": Fault(lambda: self.hdfs.kill("namenode"), self.hdfs.start),
            "NameNode away until tokens ended": Fault(
                self._namenode_away, self.hdfs.start, "HDFS is away|does not answer", ("k1",)
            ),
            "HttpFS restarted": Fault(lambda: self.httpfs.kill("httpfs"), self.httpfs.start),
            "tokens cancelled": Fault(lambda: self.hdfs.cancel_tokens(USER, self.keytab), lambda: None),
        }

    def heal(self) -> None:
        """Resume what a failed test has left."""
        for clock in (self.clock, self.kdc.clock):
            clock.jump(0)

    def replace_keytab(self) -> None:
        """Replace the keytab by one with a new key."""
        draft = self.keytab.with_suffix(".new")
        self.kdc.admin("ktadd", "-k", str(draft), USER)
        draft.replace(self.keytab)

    def _change(self, *arguments: str) -> None:
        self.kdc.admin("modprinc", *arguments, USER)

    def _restart_kdc(self) -> None:
        self.kdc.kill("kdc")
        self.kdc.start()

    def _kill_kdc(self) -> None:
        self._killed = time.monotonic()
        self.kdc.kill("kdc")

    def _start_kdc_late(self) -> None:
        time.sleep(max(0.0, self._killed + 3 * LIFE_SECONDS - time.monotonic()))
        self.kdc.start()

    def _kdc_clock(self, seconds: int) -> Fault:
        says = r"does not admit .*Clock skew too great \(37\).*; set the clocks"
        return Fault(lambda: self.kdc.clock.jump(seconds), lambda: self.kdc.clock.jump(0), says)

    def _agents_clock(self, seconds: int) -> Fault:
        def jump() -> None:
            self.clock.jump(seconds)
            time.sleep(INTERVAL_SECONDS + 5)  # with tokens that were obtained by this clock

        return Fault(jump, lambda: self.clock.jump(0))

    def _lock(self) -> None:
        """Try old keys until the KDC locks the principal."""
        self._change("-policy", "lock")
        for _ in range(4):
            with pytest.raises(ServiceError, match=r"Preauthentication failed|revoked"):
                self.kdc.kinit(USER, self._cache, self._old_keytab)

    def _unlock(self) -> None:
        self._change("-unlock")
        self._change("-clearpolicy")

    def _namenode_away(self) -> None:
        self.hdfs.kill("namenode")
        time.sleep(INTERVAL_SECONDS + 1)


class Pair:
    """Two agents with the same sinks, one through the NameNode and one through HttpFS, and the events for them."""

    def __init__(self, directory: Path, kafka: KafkaCluster, faults: Faults) -> None:
        self.name = unique("lives")
        hdfs = faults.hdfs
        hdfs.create_directory(f"/{self.name}", USER)
        common = {
            "type": "hdfs",
            "channel": "c1",
            "hdfs.kerberosPrincipal": PRINCIPAL,
            "hdfs.kerberosKeytab": str(faults.keytab),
            "hdfs.fileType": "DataStream",
            "hdfs.rollInterval": "3",
            "hdfs.rollSize": "0",
            "hdfs.rollCount": "0",
        }
        servers = {"k1": hdfs.webhdfs, "k2": faults.httpfs.address}
        options = {
            f"a1.sinks.{sink}.{key}": value
            for sink, server in servers.items()
            for key, value in (
                common
                | {
                    "hdfs.path": f"webhdfs://{server}/{self.name}/a1-{sink}",
                    "group": f"{self.name}-a1-{sink}",
                }
            ).items()
        }
        self.group = Group(directory, kafka, self.name, "\n".join(f"{key} = {options[key]}" for key in options))
        self.group.configuration = self.group.configuration.replace("sinks = k1", f"sinks = {' '.join(SINKS)}")
        self._environment = faults.clock.environment
        self.agents: dict[str, RunningAgent] = {}
        self._enough = threading.Event()
        self._feeder = threading.Thread(target=self._feed, daemon=True)

    def _feed(self) -> None:
        while not self._enough.wait(1):
            self.group.put(60)

    def __enter__(self) -> Pair:
        for name in ("a1", "a2"):
            self.start(name)
        self._feeder.start()
        return self

    def start(self, name: str) -> None:
        """Start an agent."""
        # Both agents deliver events with the same IDs: the IDs of the topic.
        text = re.sub(r"\ba1([.-])", rf"{name}\1", self.group.configuration) + f"{name}.monitoring.port = 0\n"
        directory = self.group.directory / name
        agent = RunningAgent(
            directory, text, "-n", name, "-c", str(directory / "agent.conf"), environment=self._environment
        )
        self.agents[name] = agent.__enter__()

    def kill(self, name: str) -> None:
        """Kill an agent and start it again."""
        self.agents[name].stop(signal.SIGKILL)
        self.start(name)

    def end_feed(self) -> None:
        """Put no more events."""
        self._enough.set()
        self._feeder.join(60)

    def __exit__(self, *_: object) -> None:
        self.end_feed()
        for agent in self.agents.values():
            agent.__exit__()

    def await_delivery(self, *names: str) -> None:
        """Wait until every sink of these agents, by default both, has delivered more."""
        for name in names or self.agents:
            agent = self.agents[name]
            before = {sink: agent.count(f"SINK.{sink}", "EventDrainSuccessCount") for sink in SINKS}

            def delivered(agent: RunningAgent = agent, before: dict[str, int] = before) -> bool:
                return all(agent.count(f"SINK.{s}", "EventDrainSuccessCount") > n for s, n in before.items())

            agent.until(delivered, f"a delivery of {name}", TIMEOUT_SECONDS)

    def await_failure(self, fault: Fault) -> None:
        """Wait until the sinks of both agents report the failure, and find it in log and `check --connect`."""
        for name, agent in self.agents.items():
            for sink in fault.sinks:

                def failing(agent: RunningAgent = agent, sink: str = sink) -> bool:
                    return bool(re.search(fault.says, agent.failing().get(f"SINK.{sink}", "")))

                agent.until(failing, f"{name}.sinks.{sink} to fail with {fault.says}", TIMEOUT_SECONDS)
            assert re.search(fault.says, agent.log)
        result = agent_command("check", "--connect", "-c", str(self.group.directory / "a1" / "agent.conf"))
        output = re.sub(r"\s+", " ", result.stdout + result.stderr)
        assert result.returncode, output
        assert re.search(fault.says, output), output
        assert "Traceback" not in output


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_thirty_lives_of_tokens_and_the_faults_of_all_who_give_them(
    tmp_path: Path,
    kdc: ClockedKdc,
    hdfs: SecureHdfs,
    httpfs: HttpFs,
    kafka_cluster: KafkaCluster,
    seed: int,
    figures: list[str],
) -> None:
    """One process works through all lives and faults. A second one is killed amid each fault."""
    chance = random.Random(seed)
    faults = Faults(kdc, hdfs, httpfs, new_clock(tmp_path / "agents-clock"), tmp_path)
    pauses: dict[str, list[float]] = {}
    with Pair(tmp_path, kafka_cluster, faults) as pair:
        try:
            pair.await_delivery()
            began = time.monotonic()

            def lives() -> float:
                return (time.monotonic() - began) / LIFE_SECONDS

            while lives() < LIVES / 3:
                pair.await_delivery()
                assert not re.search("(?i)token|ticket", "".join(agent.log for agent in pair.agents.values()))
            todo = list[str]()
            while lives() < LIVES or todo or not pauses:
                if not todo:
                    todo = chance.sample(sorted(faults.all()), len(faults.all()))
                name = todo.pop()
                if name in pauses and lives() >= LIVES:
                    break
                pauses.setdefault(name, []).append(strike(pair, faults.all()[name], name))
        finally:
            faults.heal()
        lived = lives()
        assert max(pauses["KDC away at the renewal"]) < RECOVERY_SECONDS
        pair.end_feed()
        bodies = Counter(body.decode() for body in pair.group.bodies)
        for name, agent in pair.agents.items():
            for sink in SINKS:
                delivered = Counter[str]()

                def complete(name: str = name, sink: str = sink, delivered: Counter[str] = delivered) -> bool:
                    delivered.clear()
                    delivered.update(lines_of(hdfs, f"/{pair.name}/{name}-{sink}", tmp_path))
                    return not bodies - delivered

                agent.until(complete, f"all events of {name}.sinks.{sink}", TIMEOUT_SECONDS)
                assert delivered == bodies
        for name, agent in pair.agents.items():
            assert agent.stop() == 0
            log = (tmp_path / name / "agent.log").read_text()
            assert "Traceback" not in log
            assert not re.search(r"delegation=[^…]", log)
    tokens = len(hdfs.tokens(USER))
    longest = ", ".join(f"{name} {max(pauses[name]):.0f}" for name in sorted(pauses))
    count = sum(map(len, pauses.values()))
    figures.append(
        f"seed {seed}: {len(pair.group.bodies):,} events by two agents each to a NameNode and to HttpFS, each once, "
        f"in {lived:.1f} lives of tokens, through {count} faults and {count} kills, with {tokens} "
        f"tokens of the NameNode; longest seconds from the end of a fault to the next delivery: {longest}"
    )


def strike(pair: Pair, fault: Fault, name: str) -> float:
    """Carry a fault out, kill the second agent amid it, and wait until both deliver after its end.

    Return the seconds from its end to a delivery by the first one.
    """
    pair.await_delivery()
    print(f"{time.strftime('%X')} {name}", flush=True)
    fault.begin()
    if fault.says:
        pair.await_failure(fault)
    pair.kill("a2")
    fault.end()
    ended = time.monotonic()
    pair.await_delivery("a1")
    seconds = time.monotonic() - ended
    print(f"  delivered {seconds:.1f} s after its end", flush=True)
    pair.await_delivery()
    return seconds


def lines_of(hdfs: SecureHdfs, path: str, directory: Path) -> list[str]:
    """Return the lines of the visible files in a directory, read by Hadoop's own client."""
    assert hdfs.kdc is not None
    tickets = directory / "superuser"
    hdfs.kdc.kinit("nn/localhost", tickets)
    command = hdfs.shell(["-cat", f"{path}/FlumeData.*"], find_java(), ensure("hdfs"))
    environment = {**os.environ, "KRB5CCNAME": f"FILE:{tickets}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

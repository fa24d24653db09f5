"""conf/systemd/agent.service under a real systemd, the first process of its own namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import until
from tests.system.running import ROOT

UNIT = ROOT / "conf/systemd/agent.service"
SYSTEMD = Path("/lib/systemd/systemd")
TARGETS = ("empty", "sysinit", "basic", "shutdown", "umount", "network-online", "multi-user")
"""Units that the unit or systemd requires; they are empty here."""
INIT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs {work}/layers
for place in etc opt var; do  # what is written there goes when this ends
  layer={work}/layers/$place
  mkdir -p $layer/upper $layer/work
  mount -t overlay overlay -o lowerdir=/$place,upperdir=$layer/upper,workdir=$layer/work /$place
done
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
{reachable}
# As the unit's first lines say, but for what is installed: this tree.
useradd --system --home-dir /var/lib/flafka --shell /usr/sbin/nologin flafka
install -D -m 755 {work}/agent /opt/flafka/bin/agent
install -D -m 640 -g flafka {work}/agent.conf /etc/flafka/agent.conf
install -D -m 644 {unit} /etc/systemd/system/flafka.service
mkdir /etc/systemd/system/flafka.service.d
cp {work}/here.conf /etc/systemd/system/flafka.service.d
touch {work}/prepared
exec env container=other SYSTEMD_UNIT_PATH={work}/units:/etc/systemd/system \
  {systemd} --system --unit=empty.target --log-target=console --show-status=no
"""
AGENT = """#!/bin/sh
export PYTHONPATH={tree}
exec {python} -B -m flafka "$@"
"""
HERE = """
[Service]
# No journal is here.
StandardOutput=append:{work}/log
StandardError=inherit
# It would take minutes. A busy machine may hold the agent up for seconds.
WatchdogSec=20
RestartSec=3
# It has a /tmp of its own: where this tree lies there, it is to be seen all the same.
BindReadOnlyPaths={trees}
"""
CONF = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = syslogtcp
a1.sources.s1.port = 514
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = /var/lib/flafka/out
a1.sinks.k1.sink.rollInterval = 0
"""


SEND = """
import socket, sys
with socket.create_connection(("127.0.0.1", 514)) as one:
    one.sendall(sys.argv[1].encode())
"""


class Machine:
    """systemd in its own namespaces, and commands in them."""

    def __init__(self, work: Path) -> None:
        self.log = work / "log"
        group = Path(_mounted("cgroup2"), f"flafka-{uuid.uuid4().hex[:8]}")
        group.mkdir()
        self.group, agent_log = group, (work / "systemd.log").open("wb")
        enter = f"echo 0 > {group}/cgroup.procs; exec unshare --fork --pid --mount --uts --ipc --net --cgroup"
        begin = f"{enter} --mount-proc --kill-child sh {work}/init.sh"
        self.process = subprocess.Popen(
            ["sh", "-c", begin], stdin=subprocess.DEVNULL, stdout=agent_log, stderr=agent_log
        )
        agent_log.close()

    @property
    def first(self) -> str:
        """Return the outer process id of its first process; empty while there is none."""
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children")
        return children.read_text().strip() if children.exists() else ""

    def command(self, *words: str) -> list[str]:
        """Return a command that runs in the namespaces."""
        return ["nsenter", "-t", self.first, "-m", "-p", "-u", "-i", "-n", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=120)

    def properties(self) -> dict[str, str]:
        """Return the properties of the service in systemd."""
        return dict(line.partition("=")[::2] for line in self.run("systemctl", "show", "flafka").stdout.splitlines())

    def agent_log(self) -> str:
        """Return the log of the agent."""
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        """End all processes."""
        self.process.kill()
        self.process.wait()
        until(lambda: "populated 0" in (self.group / "cgroup.events").read_text(), "the end of its processes", 60)
        for directory, _, _ in os.walk(self.group, topdown=False):
            Path(directory).rmdir()


def _mounted(kind: str) -> str:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2] == kind]
    return mounts[0] if mounts else ""


def _reachable() -> Iterator[str]:
    """Return mounts that make an interpreter or this tree reachable below a private directory such as /root."""
    needed = {str(Path(path).resolve()) for path in (sys.base_prefix, sys.prefix, ROOT)}
    closed: dict[Path, list[str]] = {}
    for path in sorted(needed):
        above = [parent for parent in reversed(Path(path).parents) if not parent.stat().st_mode & 0o001]
        if above:
            closed.setdefault(above[0], []).append(path)
    for number, (covered, places) in enumerate(closed.items()):
        kept = f"/run/{number}"
        yield f"mkdir {kept} && mount --bind {covered} {kept} && mount -t tmpfs -o mode=755 tmpfs {covered}"
        for path in places:
            yield f"mkdir -p {path} && mount --bind {kept}/{Path(path).relative_to(covered)} {path}"


@pytest.fixture
def machine(servers: None, tmp_path: Path) -> Iterator[Machine]:
    tools = [SYSTEMD.exists(), *map(shutil.which, ("unshare", "nsenter", "systemctl", "useradd"))]
    if os.geteuid() or not all(tools) or not _mounted("cgroup2"):
        pytest.skip("this needs root, a systemd that is installed, and cgroup2")
    for directory in ("layers", "units"):
        (tmp_path / directory).mkdir()
    for name in TARGETS:
        (tmp_path / f"units/{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (tmp_path / "agent").write_text(AGENT.format(tree=ROOT, python=sys.executable))
    (tmp_path / "agent.conf").write_text(CONF)
    (tmp_path / "here.conf").write_text(
        HERE.format(work=tmp_path, trees=" ".join({sys.base_prefix, sys.prefix, str(ROOT)}))
    )
    (tmp_path / "init.sh").write_text(
        INIT.format(work=tmp_path, unit=UNIT, systemd=SYSTEMD, reachable="\n".join(_reachable()))
    )
    machine = Machine(tmp_path)
    try:
        until(
            lambda: (
                machine.process.poll() is not None
                or (
                    (tmp_path / "prepared").exists()
                    and "running" in machine.run("systemctl", "is-system-running").stdout
                )
            ),
            "systemd to run",
            60,
        )
        if machine.process.poll() is not None:
            pytest.skip(f"no systemd can be run here: {(tmp_path / 'systemd.log').read_text().strip()}")
        yield machine
    finally:
        machine.close()


def test_the_service_is_started_reloaded_restarted_when_it_hangs_and_stopped(machine: Machine) -> None:
    started = machine.run("systemctl", "start", "flafka")  # returns once the service is ready
    assert started.returncode == 0, started.stderr + machine.agent_log()
    properties = machine.properties()
    assert (properties["ActiveState"], properties["SubState"], properties["StatusText"]) == (
        "active",
        "running",
        "takes events, ok",
    )
    first = properties["MainPID"]
    assert machine.run("ps", "-o", "user=", "-p", first).stdout.strip() == "flafka"
    assert machine.run("stat", "-c", "%U", "/var/lib/flafka").stdout.strip() == "flafka"
    assert send(machine, "<13>1 - - - - - - one\n") == ["one"]  # on a privileged port

    config = "/etc/flafka/agent.conf"
    machine.run("sed", "-i", "s/k1.type = file_roll/k1.type = file_rol/", config)
    refused = machine.run("systemctl", "reload", "flafka")
    assert refused.returncode != 0
    assert "did you mean 'file_roll'" in machine.log.read_text()
    machine.run("sed", "-i", "s/k1.type = file_rol$/k1.type = file_roll/; $ a a1.channels.c1.capacity = 500", config)
    assert machine.run("systemctl", "reload", "flafka").returncode == 0, machine.agent_log()
    assert "changed: channels c1" in machine.log.read_text()
    properties = machine.properties()
    assert (properties["MainPID"], properties["NRestarts"], properties["ActiveState"]) == (first, "0", "active")

    machine.run("kill", "-STOP", first)
    until(lambda: machine.properties()["Result"] == "watchdog", "the watchdog", 120)
    until(lambda: machine.properties()["NRestarts"] == "1", "another start", 120)
    until(lambda: machine.properties().get("StatusText") == "takes events, ok", "the new process", 120)
    properties = machine.properties()
    assert properties["MainPID"] != first
    assert send(machine, "<13>1 - - - - - - two\n") == ["one", "two"]

    assert machine.run("systemctl", "stop", "flafka").returncode == 0
    properties = machine.properties()
    assert (properties["ActiveState"], properties["Result"], properties["ExecMainStatus"]) == (
        "inactive",
        "success",
        "0",
    )
    assert machine.log.read_text().rstrip().endswith("stopped")


def send(machine: Machine, line: str) -> list[str]:
    """Send a line by TCP; return the contents of the sink's files once it has arrived."""
    assert machine.run(sys.executable, "-c", SEND, line).returncode == 0
    arrived: list[str] = []

    def has_arrived() -> bool:
        lines = machine.run("sh", "-c", "cat /var/lib/flafka/out/*").stdout.splitlines()
        arrived[:] = [line.split()[-1] for line in lines]
        return line.split()[-1] in arrived

    until(has_arrived, "the event", 60)
    return arrived

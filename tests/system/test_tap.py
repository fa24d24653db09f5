"""`agent tap` beside a real agent under load: fast and stalled readers lose no event."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flafka.agent.monitoring.taps import receive, socket_address
from flafka.agent.services.running import RunningAgent

EVENTS = 400_000
CONFIGURATION = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = seq
a1.sources.s1.totalEvents = {EVENTS}
a1.sources.s1.channels = c1
a1.sources.s1.interceptors = i1
a1.sources.s1.interceptors.i1.type = static
a1.channels.c1.type = memory
a1.channels.c1.capacity = 20000
a1.sinks.k1.type = file_roll
a1.sinks.k1.sink.directory = {{out}}
a1.sinks.k1.channel = c1
"""


@pytest.mark.usefixtures("servers")
def test_no_event_is_lost_or_doubled_beside_readers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with RunningAgent(tmp_path, CONFIGURATION.format(out=out)) as agent:
        taps = tmp_path / "state/flafka/taps"
        agent.until(lambda: [*taps.glob("a1-*.sock")], "the socket")
        (file,) = taps.glob("a1-*.sock")
        with socket_address(file) as address, socket.socket(socket.AF_UNIX) as stuck:
            stuck.connect(address)
            stuck.sendall(json.dumps({"component": "s1.i1"}).encode() + b"\n")
            assert receive(stuck)[0]["component"] == "a1.sources.s1.interceptors.i1"
            words = ["tap", "sources.s1", "-c", str(agent.file), "--json", "--limit", "100"]
            command = [sys.executable, "-m", "flafka", *words]
            # The tap may start too late for any event, and reports it then; in time it shows the passing events.
            reader = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == EVENTS, "all events")
            assert agent.stop() == 0
        shown, errors = reader.communicate(timeout=120)
    written = b"".join(path.read_bytes() for path in out.iterdir()).split()
    assert sorted(map(int, written)) == [*range(EVENTS)]
    events = [json.loads(line) for line in shown.splitlines()]
    assert all(event["headers"] == {"key": "value"} and int(event["body"]) < EVENTS for event in events)
    assert len(events) == 100 or b"the agent has ended" in errors or b"no agent a1" in errors

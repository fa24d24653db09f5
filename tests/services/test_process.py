import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services import ServiceError
from flafka.agent.services.process import ServerProcess, await_ready, open_files
from flafka.agent.services.running import until
from tests.fixtures.ports import free_port

FOREVER = [sys.executable, "-uc", "import time; print('up'); time.sleep(600)"]
DEAF = [sys.executable, "-uc", "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"]
BIND = """\
2026-11-22 02:23:35.324 ERROR k.s.S: [SocketServer id=1] Exiting because of an earlier one
2026-11-22 02:23:46.472 ERROR k.s.KafkaRaftServer: Fatal error during startup. Prepare to shutdown
KafkaException: Socket server failed to bind to 127.0.0.1:19092
\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:732)
Caused by: java.net.BindException: Address already in use
\t... 18 more
2026-11-22 02:23:46.473 INFO k.s.BrokerServer: [BrokerServer id=1] shutting down
"""
LISTENS_WITHOUT_ITS_FIRST_THREAD = """
import ctypes, platform, socket, threading, time
listener = socket.create_server(("127.0.0.1", int(__import__("sys").argv[1])))
threading.Thread(target=time.sleep, args=(600,)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
BROKEN = [sys.executable, "-c", "raise SystemExit('no such disk')"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess("one", tmp_path)
    yield server
    server.signal(signal.SIGKILL)
    server.wait(60)


def await_up(server: ServerProcess) -> None:
    await_ready(lambda: None if "up" in server.output.read_text() else "silent", [server], 200)


def test_a_server_runs_in_a_session_of_its_own_and_is_found_by_the_next_program(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.start(FOREVER)
    await_up(server)
    pid = server.pid
    assert pid is not None
    assert os.getsid(pid) == pid
    assert ServerProcess("one", tmp_path).pid == pid
    assert (server.rss_mb or 0) > 1
    server.start(FOREVER)
    assert server.pid == pid


def test_a_server_has_not_ended_before_all_its_threads_have(server: ServerProcess) -> None:
    port = free_port()
    server.start([sys.executable, "-c", LISTENS_WITHOUT_ITS_FIRST_THREAD, str(port)])
    await_up(server)
    pid = server.pid
    until(lambda: ") Z " in Path(f"/proc/{pid}/stat").read_text(), "its first thread to end")
    assert server.pid == pid
    server.signal(signal.SIGKILL)
    assert server.wait(60)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_server_inherits_no_descriptors_of_its_starter(server: ServerProcess, tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)  # as a shell does it: exec 9>lock
        server.start(FOREVER)
    await_up(server)
    assert str(tmp_path / "held") not in open_files(server.pid)


def test_a_server_outlives_the_program_that_started_it(server: ServerProcess, tmp_path: Path) -> None:
    program = (
        "import json, pathlib, sys; from flafka.agent.services.process import ServerProcess;"
        "ServerProcess('one', pathlib.Path(sys.argv[1])).start(json.loads(sys.argv[2]))"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path), json.dumps(FOREVER)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    await_up(server)
    assert server.stop(10)
    assert server.pid is None


def test_a_killed_child_counts_as_ended_at_once(server: ServerProcess) -> None:
    server.start(FOREVER)
    server.signal(signal.SIGKILL)
    assert server.wait(60)
    assert server.rss_mb is None


def test_a_pid_that_was_given_to_another_process_is_not_ours(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "one.pid").write_text(json.dumps({"pid": os.getpid(), "started": 1}))
    assert server.pid is None
    server.stop(1)  # a stop that trusted the file would end this test here


def test_a_pid_file_cut_short_is_no_process(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "one.pid").write_text("")
    assert server.pid is None


def test_a_server_that_ignores_sigterm_is_killed(server: ServerProcess) -> None:
    server.start(DEAF)
    await_up(server)
    assert not server.stop(0.3)
    assert server.pid is None


def test_waiting_for_a_server_that_dies_shows_the_end_of_its_log(server: ServerProcess) -> None:
    server.start(BROKEN)
    with pytest.raises(ServiceError, match=r"(?s)one ended while starting.*no such disk"):
        await_ready(lambda: "not ready", [server], 200)


def test_a_server_that_died_is_not_ready_though_another_program_answers(server: ServerProcess) -> None:
    server.start(BROKEN)
    assert server.wait(60)
    with pytest.raises(ServiceError, match="one ended while starting"):
        await_ready(lambda: None, [server], 200)


def test_the_death_of_a_server_is_reported_with_its_error(server: ServerProcess) -> None:
    server.log.parent.mkdir()
    server.log.write_text("java.io.IOException: of an earlier start\n")
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write(sys.argv[2])"
    server.start([sys.executable, "-c", program, str(server.log), BIND])
    message = (
        "one ended while starting: KafkaException: Socket server failed to bind to 127.0.0.1:19092 .*in use.*; see"
    )
    with pytest.raises(ServiceError, match=message):
        await_ready(lambda: "not ready", [server], 200)


def test_an_error_of_an_earlier_start_is_not_reported(server: ServerProcess) -> None:
    server.log.parent.mkdir()
    server.log.write_text(BIND)
    server.start(BROKEN)
    with pytest.raises(ServiceError, match=r"one ended while starting; see"):
        await_ready(lambda: "not ready", [server], 200)


def test_a_server_that_has_ended_before_its_start_was_noted_does_not_run(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = os.posix_spawn

    def spawn_and_wait(*arguments: Any, **options: Any) -> int:
        pid = spawn(*arguments, **options)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    monkeypatch.setattr(os, "posix_spawn", spawn_and_wait)
    server.start(BROKEN)
    assert server.pid is None


def test_waiting_ends_with_the_missing_condition(server: ServerProcess) -> None:
    server.start(FOREVER)
    with pytest.raises(ServiceError, match=r"not ready after 0 s: one sulks; see .*one\.log"):
        await_ready(lambda: "one sulks", [server], 0.2)

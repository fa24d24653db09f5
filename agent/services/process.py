"""A server process that outlives the program that started it, and is found again by the next one."""

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flafka.agent.jvm.logs import last_error
from flafka.agent.services import ServiceError

POLL = 0.1  # seconds between two looks at a condition


class ServerProcess:
    """One server of a cluster's directory: `run/<name>.pid`, `logs/<name>.log` its log, `logs/<name>.out` its output.

    The pid file holds the kernel's start time of the process as well, so that another process which was given the
    same pid later is never taken for the server.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / "logs" / f"{name}.log"
        self.output = directory / "logs" / f"{name}.out"
        self._pid_file = directory / "run" / f"{name}.pid"
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The pid while the server lives, else None."""
        try:
            written = json.loads(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):  # ValueError: killed between creating and filling the file
            return None
        pid = int(written["pid"])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # our own dead child stays a zombie until it is waited for
        started = _start_time(pid)
        return pid if started is not None and started == written["started"] else None

    @property
    def rss_mb(self) -> int | None:
        """Resident memory in MB, None when the server does not run."""
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024
        return None

    def start(self, command: list[str], environment: Mapping[str, str] = os.environ) -> None:
        """Start in a session of its own: neither Ctrl-C nor logging out ends it. Does nothing while it runs."""
        if self.pid is not None:
            return
        for file in (self.output, self._pid_file):
            file.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        truncate = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        # Not Popen, whose object wants the child to end before its parent does.
        pid = os.posix_spawn(
            command[0],
            command,
            environment,
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGTERM],  # the program may ignore them, as it is about to end
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.output), truncate, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()),
            ],
        )
        self._pid_file.write_text(json.dumps({"pid": pid, "started": _start_time(pid)}))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, grace: float) -> bool:
        """SIGTERM, and SIGKILL after `grace` seconds. On return it does not run; False if it had to be killed."""
        self.signal(signal.SIGTERM)
        ended = self.wait(grace)
        if not ended:
            self.signal(signal.SIGKILL)
            self.wait(grace)
        self._pid_file.unlink(missing_ok=True)
        return ended

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; False if it still runs after so long."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        return True

    def sockets(self) -> set[str]:
        """What it holds of `listeners`, among others. Raises PermissionError where it is another user's."""
        return open_files(self.pid)

    def why(self) -> str:
        """The error that it told of last, since this object started it; empty for none."""
        return last_error(self.log, self._log_start) or last_error(self.output)

    def last_words(self, lines: int = 8) -> str:
        """The end of what it wrote, for an error message."""
        words: deque[str] = deque(maxlen=lines)
        for file in (self.log, self.output):
            with contextlib.suppress(FileNotFoundError), file.open(errors="replace") as text:
                words.extend(text)
        return "".join(f"    {line.rstrip()}\n" for line in words)


def _inherited() -> list[int]:
    """Descriptors that this process was given besides the standard ones, such as a shell's of a lock."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them, too
            if (number := int(entry.name)) > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def _start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None for no process or a dead one (a zombie).

    While threads of it still end, it is not dead: what it had open is, and the ports that it listens on.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *numbers = stat.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    threads, started = int(numbers[16]), int(numbers[18])
    return None if state in "ZX" and threads <= 1 else started


def open_files(pid: int | None) -> set[str]:
    """What a process has open, sockets as `listeners` names them; PermissionError where it is another user's."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it does not run, or ends just then
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.add(str(file.readlink()))
    return found


def listeners(*, udp: bool = False) -> dict[int, set[str]]:
    """The sockets that wait for connections, or for datagrams, on this machine, whoever's they are, by port."""
    found: dict[int, set[str]] = {}
    protocol, waiting = ("udp", "07") if udp else ("tcp", "0A")
    for table in (f"/proc/net/{protocol}", f"/proc/net/{protocol}6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, address, _, state, _, _, _, _, _, inode, *_ = line.split()
                if state == waiting:
                    found.setdefault(int(address.rpartition(":")[2], 16), set()).add(f"socket:[{inode}]")
    return found


def await_ready(waiting_for: Callable[[], str | None], servers: Sequence[ServerProcess], seconds: float) -> None:
    """Wait until `waiting_for` returns None; until then it returns what is still missing, in words.

    Raises `ServiceError` with the end of the log when one of the servers ends or the time is over.
    """
    deadline = time.monotonic() + seconds
    while True:
        missing = waiting_for()
        for server in servers:  # asked last: what `waiting_for` has heard may come from another program
            if server.pid is None:
                why = f": {told}" if (told := server.why()) else ""
                raise ServiceError(
                    f"{server.name} ended while starting{why}; see {server.log}\n{server.last_words()}"
                )
        if not missing:
            return
        if time.monotonic() > deadline:
            logs = ", ".join(str(server.log) for server in servers)
            raise ServiceError(f"not ready after {seconds:.0f} s: {missing}; see {logs}")
        time.sleep(POLL)

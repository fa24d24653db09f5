"""Server processes that outlive the program that starts them, and the sockets on this host."""

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

SERVER_POLL_SECONDS = 0.1


class ServerProcess:
    """Process of one server in a cluster's directory.

    Its files are `run/<name>.pid`, `logs/<name>.log` (log) and `logs/<name>.out` (output). The pid file also has the
    start time of the process, which excludes a later process with the same pid.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / "logs" / f"{name}.log"
        self.output = directory / "logs" / f"{name}.out"
        self._pid_file = directory / "run" / f"{name}.pid"
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Pid of the running server; None if it does not run."""
        try:
            stored = json.loads(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):  # ValueError: killed between creating and filling the file
            return None
        pid = int(stored["pid"])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # reap a zombie, if the server is a child of this process
        started = _start_time(pid)
        return pid if started is not None and started == stored["started"] else None

    @property
    def rss_mb(self) -> int | None:
        """Resident memory in MB; None if the server does not run."""
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024
        return None

    def start(self, command: list[str], environment: Mapping[str, str] = os.environ) -> None:
        """Start the server in its own session, so that Ctrl-C and logout do not end it. No effect if it runs."""
        if self.pid is not None:
            return
        for file in (self.output, self._pid_file):
            file.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        truncate = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        # Popen would warn when its object is deleted before the child ends.
        pid = os.posix_spawn(
            command[0],
            command,
            environment,
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGTERM],  # this program may ignore them while it shuts down
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.output), truncate, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()),
            ],
        )
        self._pid_file.write_text(json.dumps({"pid": pid, "started": _start_time(pid)}))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server; no effect if it does not run."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, grace: float) -> bool:
        """Send SIGTERM, and SIGKILL after `grace` seconds, and block until the server has ended.

        Return True if it ended by itself, also if it did not run; False if it had to be killed.
        """
        self.signal(signal.SIGTERM)
        ended = self.wait(grace)
        if not ended:
            self.signal(signal.SIGKILL)
            self.wait(grace)
        self._pid_file.unlink(missing_ok=True)
        return ended

    def wait(self, seconds: float) -> bool:
        """Block until the server has ended, and return True; return False if it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(SERVER_POLL_SECONDS)
        return True

    def sockets(self) -> set[str]:
        """Return the server's open files and sockets, as `open_files`; empty if it does not run.

        Raises PermissionError for another user's process.
        """
        return open_files(self.pid)

    def last_error(self) -> str:
        """Return the last error in the server's log since this object started it, or in its output; empty if none."""
        return last_error(self.log, self._log_start) or last_error(self.output)

    def log_tail(self, lines: int = 8) -> str:
        """Return the last `lines` lines of the server's log and output, indented, for an error message."""
        tail: deque[str] = deque(maxlen=lines)
        for file in (self.log, self.output):
            with contextlib.suppress(FileNotFoundError), file.open(errors="replace") as text:
                tail.extend(text)
        return "".join(f"    {line.rstrip()}\n" for line in tail)


def _inherited() -> list[int]:
    """Return the inheritable file descriptors above 2, such as the one of a shell's lock."""
    descriptors = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # such as the descriptor of this listing
            if (number := int(entry.name)) > 2 and os.get_inheritable(number):
                descriptors.append(number)
    return descriptors


def _start_time(pid: int) -> int | None:
    """Return the start time in clock ticks after boot; None without process, or for a zombie.

    A zombie whose threads still end counts as running: its files and listening sockets are still open.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *numbers = stat.rpartition(")")[2].split()  # the preceding name may contain spaces and parentheses
    threads, started = int(numbers[16]), int(numbers[18])
    return None if state in "ZX" and threads <= 1 else started


def open_files(pid: int | None) -> set[str]:
    """Return the paths of a process's open files, and its sockets named as by `listeners`; empty without a process.

    Raises PermissionError for another user's process.
    """
    paths = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                paths.add(str(file.readlink()))
    return paths


def listeners(*, udp: bool = False) -> dict[int, set[str]]:
    """Return port → sockets, as `socket:[inode]`, of all users that listen on TCP, or with `udp` on UDP."""
    sockets: dict[int, set[str]] = {}
    protocol, listening = ("udp", "07") if udp else ("tcp", "0A")
    for table in (f"/proc/net/{protocol}", f"/proc/net/{protocol}6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, address, _, state, _, _, _, _, _, inode, *_ = line.split()
                if state == listening:
                    sockets.setdefault(int(address.rpartition(":")[2], 16), set()).add(f"socket:[{inode}]")
    return sockets


def await_ready(unready_reason: Callable[[], str | None], servers: Sequence[ServerProcess], seconds: float) -> None:
    """Block until `unready_reason` returns None and all servers run.

    Raises ServiceError with the end of the log if a server ends, or after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        reason = unready_reason()
        for server in servers:  # checked after it, since another program may have answered
            if server.pid is None:
                error = f": {text}" if (text := server.last_error()) else ""
                raise ServiceError(
                    f"{server.name} ended while starting{error}; see {server.log}\n{server.log_tail()}"
                )
        if not reason:
            return
        if time.monotonic() > deadline:
            logs = ", ".join(str(server.log) for server in servers)
            raise ServiceError(f"not ready after {seconds:.0f} s: {reason}; see {logs}")
        time.sleep(SERVER_POLL_SECONDS)

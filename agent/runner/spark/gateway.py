"""Start of the JVM that PySpark connects to.

PySpark's own launcher requires a Java module that the Java from PyPI lacks. This launcher works with any Java.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.jvm.logs import last_error, tail
from flafka.agent.jvm.spark import JVM_OPTIONS
from flafka.agent.onyarn import hadoop_configuration
from flafka.agent.options import YARN, is_local_master
from flafka.agent.runner.spark.scratch import lock_scratch_directory
from flafka.plugins import Retry, require

JVM_START_SECONDS = 180.0


_KILLED = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
"""Exit codes of processes that another process killed; their logs have no reason."""
_REMOVED = re.compile(r"Application has been killed\. Reason: |(?=YARN application has exited unexpectedly)")
"""Log message of Spark's schedulers when the cluster manager has ended the application."""


@dataclass(frozen=True)
class Gateway:
    """Spark's JVM, with its log file and the offset at which its log begins there."""

    process: subprocess.Popen[bytes]
    log_file: Path
    log_start: int

    def why_ended(self, seconds: float = 0) -> str | None:
        """Wait up to `seconds` for the end of the JVM, and return a sentence on its exit code and latest error.

        None if it still runs.
        """
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        error = "" if code in _KILLED else last_error(self.log_file, self.log_start)
        more = " (spark.conf.spark.driver.memory gives it more)" if "OutOfMemoryError" in error else ""
        return f"Spark's JVM {describe_exit(code)}{f': {error}{more}' if error else ''}; its log: {self.log_file}"

    def why_stopped(self) -> str:
        """Return a sentence on the end of the SparkContext, with the reason of the cluster manager, if any.

        Call it for a SparkContext that another process than the driver has stopped.
        """
        lines = [line for line in tail(self.log_file, self.log_start) if _REMOVED.search(line)]
        reason = f": {_REMOVED.split(lines[-1], maxsplit=1)[-1]}" if lines else ""
        return f"the SparkContext was stopped from outside{reason}; its log: {self.log_file}"


def start_gateway(master: str, conf: Mapping[str, str], log_file: Path) -> Gateway:
    """Start the JVM with the settings `conf`, have PySpark connect to it, and block until it accepts connections.

    On Linux the JVM is killed when the calling thread ends. Raises Retry if the JVM ends, or does not start within
    `JVM_START_SECONDS`.
    """
    home = Path(require("pyspark", "spark").__file__).resolve().parent
    settings = {"spark.master": master, **conf}
    hadoop = map(str, hadoop_configuration().directories) if master == YARN else ()  # last, as spark-submit has it
    own = settings.get("spark.driver.extraClassPath")  # like the Java options, applied by the launcher of the JVM
    defaults = [
        f"-Xmx{settings.get('spark.driver.memory', '700m')}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",  # otherwise a driver would go on without some of its threads, and hang
        *JVM_OPTIONS,
    ]
    own_options = shlex.split(settings.get("spark.driver.extraJavaOptions", ""))
    command = [
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        os.pathsep.join(filter(None, [own, *map(str, connector_jars()), f"{home}/jars/*", *hadoop])),
        "org.apache.spark.deploy.SparkSubmit",
    ]
    environment = {**os.environ, "SPARK_HOME": str(home)}
    if not is_local_master(master):
        environment.pop("PYTHONPATH", None)  # Spark would pass it to executors on other hosts
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="flafka-gateway-") as directory,
        log_file.open("ab") as log,
        lock_scratch_directory() as descriptors,
    ):
        # Files, as arguments would show passwords to all users.
        connection_file, properties = Path(directory, "connection"), Path(directory, "spark.properties")
        properties.write_text(javaproperties.dumps(settings))
        arguments = Path(directory, "arguments")
        arguments.write_text(_argument_file(own_options))
        command = [str(find_java().path), *defaults, f"@{arguments}", *command]
        process = subprocess.Popen(
            [*command, "--properties-file", str(properties), "--load-spark-defaults", "pyspark-shell"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=functools.partial(_end_with, os.getpid()),
            pass_fds=descriptors,
            env=environment | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file)},
        )
        _started.append(process)
        gateway = Gateway(process, log_file, log.tell())
        port, secret = _await_connection(gateway, connection_file)
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret, SPARK_HOME=str(home))
    return gateway


def _argument_file(arguments: Iterable[str]) -> str:
    """Return the content of a file of arguments for Java's launcher, one on each line."""
    escaped = (argument.replace("\\", "\\\\").replace('"', '\\"') for argument in arguments)
    return "".join(f'"{argument}"\n' for argument in escaped)


def describe_exit(code: int) -> str:
    """Return the description of an exit code: `ended with code 1`, `was killed by SIGTERM`."""
    if code >= 0:
        return f"ended with code {code}"
    out_of_memory = " (as the kernel does where memory runs out)" if code == -signal.SIGKILL else ""
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"was killed by {name}{out_of_memory}"


def kill_gateway() -> None:
    """Kill the JVMs that this process has started, and block until they have ended. Idempotent."""
    for process in _started:
        process.kill()
        process.wait()


_started: list[subprocess.Popen[bytes]] = []
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with(parent: int) -> None:
    """Have this new process killed with SIGKILL when its parent ends, on Linux.

    The JVM also ends at the end of its standard input, but only once it has started. Its own shutdown may hang: it
    deletes files that others delete too, and calls a driver that has ended.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)


def connector_jars() -> list[Path]:
    """Return the paths of the jars of Spark's Kafka connector, sorted. Missing ones are downloaded first."""
    return sorted(ensure("spark").glob("*.jar"))


def _await_connection(gateway: Gateway, connection_file: Path) -> tuple[int, str]:
    """Block until the JVM has written its connection file, and return port and secret.

    Raises Retry if the JVM ends, or after `JVM_START_SECONDS`.
    """
    deadline = time.monotonic() + JVM_START_SECONDS
    while not connection_file.exists():  # complete once it exists, as the JVM renames it
        if why := gateway.why_ended():
            raise Retry(why)
        if time.monotonic() > deadline:
            gateway.process.kill()
            raise Retry(f"Spark's JVM did not start within {JVM_START_SECONDS:.0f} s; its log: {gateway.log_file}")
        time.sleep(0.05)
    data = connection_file.read_bytes()
    port, length = struct.unpack_from("!ii", data)
    return port, data[8 : 8 + length].decode()

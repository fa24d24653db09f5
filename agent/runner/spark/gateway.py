"""Starting the JVM that PySpark talks to.

PySpark's own launcher insists on a Java module that the Java from PyPI lacks; started by hand, both kinds work.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.jvm.logs import last_error, tail
from flafka.agent.jvm.spark import JVM
from flafka.agent.onyarn import hadoop_configuration
from flafka.agent.options import YARN, is_local
from flafka.agent.runner.spark.workplace import used
from flafka.plugins import Retry, require

JVM_START_SECONDS = 180.0


_KILLED = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
"""Codes of what was ended from outside, whose log says nothing of it."""
_REMOVED = re.compile(r"Application has been killed\. Reason: |(?=YARN application has exited unexpectedly)")
"""What schedulers write when the cluster's manager has ended an application."""


@dataclass(frozen=True)
class Gateway:
    """Spark's JVM, and where its log begins in that file."""

    process: subprocess.Popen[bytes]
    log_file: Path
    log_start: int

    def why_ended(self, seconds: float = 0) -> str | None:
        """What ended it, in a sentence; None where it still runs after so long."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        error = "" if code in _KILLED else last_error(self.log_file, self.log_start)
        more = " (spark.conf.spark.driver.memory gives it more)" if "OutOfMemoryError" in error else ""
        return f"Spark's JVM {ended(code)}{f': {error}{more}' if error else ''}; its log: {self.log_file}"

    def why_stopped(self) -> str:
        """What stopped its SparkContext, which was not its driver, in a sentence."""
        found = [line for line in tail(self.log_file, self.log_start) if _REMOVED.search(line)]
        said = f": {_REMOVED.split(found[-1], maxsplit=1)[-1]}" if found else ""
        return f"the SparkContext was stopped from outside{said}; its log: {self.log_file}"


def start_gateway(master: str, conf: Mapping[str, str], log_file: Path) -> Gateway:
    """Start it and point PySpark at it. It is killed when this process ends, or rather the thread that calls this."""
    home = Path(require("pyspark", "spark").__file__).resolve().parent
    settings = {"spark.master": master, **conf}
    hadoop = map(str, hadoop_configuration().directories) if master == YARN else ()  # last, as spark-submit has it
    own = settings.get("spark.driver.extraClassPath")  # it and the Java options are for who starts the JVM to apply
    command = [
        str(find_java().path),
        f"-Xmx{settings.get('spark.driver.memory', '700m')}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",  # a driver without some of its threads would go on, and do nothing
        *JVM,
        *shlex.split(settings.get("spark.driver.extraJavaOptions", "")),
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        os.pathsep.join(filter(None, [own, *map(str, connector()), f"{home}/jars/*", *hadoop])),
        "org.apache.spark.deploy.SparkSubmit",
    ]
    environment = {**os.environ, "SPARK_HOME": str(home)}
    if not is_local(master):
        environment.pop("PYTHONPATH", None)  # which Spark would hand on to executors on other hosts
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="flafka-gateway-") as directory,
        log_file.open("ab") as log,
        used() as descriptors,
    ):
        told, properties = Path(directory, "connection"), Path(directory, "spark.properties")
        properties.write_text(javaproperties.dumps(settings))  # not arguments: there may be passwords among them
        process = subprocess.Popen(
            [*command, "--properties-file", str(properties), "--load-spark-defaults", "pyspark-shell"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=functools.partial(_end_with, os.getpid()),
            pass_fds=descriptors,
            env=environment | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
        )
        _started.append(process)
        gateway = Gateway(process, log_file, log.tell())
        port, secret = _await_connection(gateway, told)
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret, SPARK_HOME=str(home))
    return gateway


def ended(code: int) -> str:
    """A process's end in words, by its code: `ended with code 1`, `was killed by SIGTERM`."""
    if code >= 0:
        return f"ended with code {code}"
    out_of_memory = " (as the kernel does where memory runs out)" if code == -signal.SIGKILL else ""
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"was killed by {name}{out_of_memory}"


def kill_gateway() -> None:
    """End it at once, should there be one."""
    for process in _started:
        process.kill()
        process.wait()


_started: list[subprocess.Popen[bytes]] = []
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with(parent: int) -> None:
    """In the new process, on Linux: SIGKILL when its parent dies.

    It watches its standard input as well, but only once it is up, and its own way of ending may hang: it deletes
    files that others delete too, and asks a driver that is no more.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died just before
            os._exit(1)


def connector() -> list[Path]:
    """The jars with which Spark reads Kafka."""
    return sorted(ensure("spark").glob("*.jar"))


def _await_connection(gateway: Gateway, told: Path) -> tuple[int, str]:
    deadline = time.monotonic() + JVM_START_SECONDS
    while not told.exists():  # renamed into place, so it is whole once it is there
        if why := gateway.why_ended():
            raise Retry(why)
        if time.monotonic() > deadline:
            gateway.process.kill()
            raise Retry(f"Spark's JVM did not start within {JVM_START_SECONDS:.0f} s; its log: {gateway.log_file}")
        time.sleep(0.05)
    data = told.read_bytes()
    port, length = struct.unpack_from("!ii", data)
    return port, data[8 : 8 + length].decode()

"""Spark on this host: a standalone master and two workers, whose Python has no packages."""

import os
import shlex
import shutil
import signal
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from flafka.agent.jvm.java import Java
from flafka.agent.jvm.spark import JVM_OPTIONS, spark_home
from flafka.agent.runner.spark.master import fetch_master_status
from flafka.agent.services.cluster import HOST, Cluster, is_listening, java_command
from flafka.agent.services.logs import LOG4J2, log4j2_options

MASTER = "master"
WORKERS = ["worker-1", "worker-2"]
MASTER_HEAP_MB, WORKER_HEAP_MB = 192, 160
EXECUTOR_MB = 1024
"""Memory of a worker for executors: one with the default `spark.executor.memory`."""

EXECUTOR_JAVA = """\
#!/bin/sh
# Spark requires a module that the Java from PyPI lacks and that Flafka does not use.
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class SparkCluster(Cluster):
    """Apache Spark, standalone; servers are `master`, `worker-1` and `worker-2`, each worker with one core and 1 GB.

    The workers run Python in an empty virtual environment, so that a missing package of an application shows.
    Applications survive `kill -9` of the master, once it runs again, and of a worker, on the other one.
    """

    service: ClassVar[str] = "spark"

    @property
    def address(self) -> str:
        """Address `spark://host:port`, for `spark.master`."""
        return f"spark://{HOST}:{self.ports[MASTER]}"

    def names(self) -> list[str]:
        """Return `master`, then the workers."""
        return [MASTER, *WORKERS]

    def default_ports(self) -> Mapping[str, int]:
        """Return 17077 for the master, 17078 and 17079 for workers, 17080 to 17082 for their web pages."""
        names = self.names()
        return {name: 17077 + n for n, name in enumerate(names)} | {
            f"{name}-ui": 17080 + n for n, name in enumerate(names)
        }

    def prepare(self, java: Java, lib: Path) -> None:
        """Create directories and the workers' Python, and delete files of executors of former workers."""
        for folder in ("conf", "data/applications", "logs", "run", "tmp"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        (self.directory / "conf" / "log4j2.properties").write_text(LOG4J2)
        make_bare_java(self.directory, java)
        make_bare_python(self.directory)
        for worker in WORKERS:
            if self.server(worker).pid is None:
                shutil.rmtree(self.directory / "work" / worker, ignore_errors=True)

    @property
    def python(self) -> Path:
        """Virtual environment of the workers, named like its interpreter, such as `python3.11`."""
        return bare_python(self.directory)

    def stop(self) -> None:
        """Stop the workers before the master: it would otherwise wait for them after its next start."""
        for worker in WORKERS:
            self.kill(worker, signal.SIGTERM)
        super().stop()

    def start_blocker(self, name: str) -> str | None:
        """Return a text for a worker while the master does not listen; None if a start may proceed.

        A worker without a master would retry only after 5 to 15 s.
        """
        return None if name == MASTER or is_listening(self.ports[MASTER]) else "the master does not listen"

    def environment(self) -> Mapping[str, str]:
        """Return the environment of executors: Spark, Java and the bare Python, without settings of this process."""
        return bare_environment(self.directory) | {
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,  # also for the web pages
            "SPARK_SCALA_VERSION": "2.13",  # otherwise it searches directories of its own build
            "SPARK_LOCAL_DIRS": str(self.directory / "tmp"),
        }

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command of the master, with its state on disk, or of a worker, which removes old files."""
        settings, ports = self.directory / "conf" / "log4j2.properties", self.ports
        own = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": f"{self.directory}/data/applications",
            "spark.master.rest.enabled": "false",
            # A restarted master waits this long for known applications and workers that do not answer.
            "spark.worker.timeout": "20",
            "spark.worker.cleanup.enabled": "true",
            "spark.worker.cleanup.interval": "60",
            "spark.worker.cleanup.appDataTtl": "60",
        }
        options = [
            *JVM_OPTIONS,
            *(f"-D{option}={value}" for option, value in own.items()),
            *log4j2_options(name, self.server(name).log, settings, self.log_ports),
        ]
        main = "org.apache.spark.deploy.master.Master" if name == MASTER else "org.apache.spark.deploy.worker.Worker"
        heap = MASTER_HEAP_MB if name == MASTER else WORKER_HEAP_MB
        address = ["--host", HOST, "--port", str(ports[name]), "--webui-port", str(ports[f"{name}-ui"])]
        command = [
            *java_command(java, [spark_home() / "jars" / "*"], main, heap_mb=heap, options=options),
            *address,
        ]
        if name != MASTER:
            resources = [
                "--cores",
                "1",
                "--memory",
                f"{EXECUTOR_MB}m",
                "--work-dir",
                str(self.directory / "work" / name),
            ]
            command += [*resources, self.address]
        return command

    def unready_reason(self) -> str | None:
        """Return the reason why Spark is not ready; None if it is ready.

        The master must accept applications, and every worker be registered.
        """
        status = fetch_master_status(HOST, self.ports[f"{MASTER}-ui"])
        if status is None:
            return "the master does not answer yet"
        if status["status"] != "ALIVE":
            return f"the master is {status['status']}"
        alive = {worker["port"] for worker in status["workers"] if worker["state"] == "ALIVE"}
        missing = [worker for worker in WORKERS if self.ports[worker] not in alive]
        return f"{', '.join(missing)} not registered yet" if missing else None


def make_bare_java(directory: Path, java: Java) -> None:
    """Create the Java home of Spark's executors: `data/java` in the directory of a cluster.

    Its only file, `bin/java`, runs `java` without the option for a module that the Java from PyPI lacks. Idempotent.
    """
    launcher = directory / "data" / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(EXECUTOR_JAVA.format(java=shlex.quote(str(java.path))))
    launcher.chmod(0o755)


def make_bare_python(directory: Path) -> None:
    """Create the empty virtual environment of executors, named like its interpreter. Idempotent."""
    python = bare_python(directory)
    if not (python / "bin" / python.name).exists():
        venv.EnvBuilder(symlinks=True, clear=True, with_pip=False).create(python)


def bare_environment(directory: Path, *prefixes: str) -> dict[str, str]:
    """Return the environment of executors, with the bare Java and Python.

    Variables of Python and Spark, and those that begin with `prefixes`, are left out.
    """
    removed = ("PYTHON", "PYSPARK_", "SPARK_", "VIRTUAL_", *prefixes)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    return inherited | {
        "JAVA_HOME": str(directory / "data" / "java"),
        "PATH": f"{bare_python(directory)}/bin:/usr/local/bin:/usr/bin:/bin",
    }


def bare_python(directory: Path) -> Path:
    """Return the directory of the virtual environment of executors."""
    return directory / "data" / "python{}.{}".format(*sys.version_info)


def own_master_pages() -> dict[tuple[str, int], int]:
    """Return the port of the web page of the user's master by its address; empty before the first start."""
    ports = SparkCluster.default().state().get("ports", {})
    return {(HOST, ports[MASTER]): ports[f"{MASTER}-ui"]} if ports else {}

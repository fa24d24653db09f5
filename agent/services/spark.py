"""Spark on this machine: a standalone master and two workers, whose Python has nothing of ours."""

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
from flafka.agent.jvm.spark import JVM, spark_home
from flafka.agent.runner.spark.master import ask_master
from flafka.agent.services.cluster import HOST, Cluster, java_command, listening
from flafka.agent.services.logs import LOG4J2, log4j2_options

MASTER = "master"
WORKERS = ["worker-1", "worker-2"]
MASTER_HEAP_MB, WORKER_HEAP_MB = 192, 160
EXECUTOR_MB = 1024
"""What a worker has for executors: one with Spark's default of `spark.executor.memory`."""

EXECUTORS_JAVA = """\
#!/bin/sh
# Spark demands a module that the Java from PyPI lacks, and that Flafka's use of Spark does not need.
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class SparkCluster(Cluster):
    """Apache Spark, standalone; servers `master`, `worker-1` and `worker-2`, each worker with one core and 1 GB.

    The workers run Python in an empty virtual environment, so that what an application does not bring is missed.
    Applications go on after `kill -9` of the master, once it is back, and of a worker, on the other one.
    """

    service: ClassVar[str] = "spark"

    @property
    def address(self) -> str:
        """`spark://host:port`, for `spark.master`."""
        return f"spark://{HOST}:{self.ports[MASTER]}"

    def names(self) -> list[str]:
        """`master`, then the workers."""
        return [MASTER, *WORKERS]

    def default_ports(self) -> Mapping[str, int]:
        """17077 master, 17078 and 17079 workers; 17080 to 17082 their web pages."""
        names = self.names()
        return {name: 17077 + n for n, name in enumerate(names)} | {
            f"{name}-ui": 17080 + n for n, name in enumerate(names)
        }

    def prepare(self, java: Java, lib: Path) -> None:
        """Folders, the workers' Python, and room: what executors of former workers have left is deleted."""
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
        """The workers' virtual environment, named `python3.11` or the like as its interpreter is."""
        return bare_python(self.directory)

    def stop(self) -> None:
        """Stop the workers first: a master that sees them go does not wait for them when it is started again."""
        for worker in WORKERS:
            self.kill(worker, signal.SIGTERM)
        super().stop()

    def missing_for(self, name: str) -> str | None:
        """A worker that finds no master tries again only after 5 to 15 s."""
        return None if name == MASTER or listening(self.ports[MASTER]) else "the master does not listen"

    def environment(self) -> Mapping[str, str]:
        """What executors inherit: Spark, Java and the bare Python; none of this process's own Python settings."""
        return bare_environment(self.directory) | {
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,  # for the web pages as well
            "SPARK_SCALA_VERSION": "2.13",  # else it looks for the folders of its own build
            "SPARK_LOCAL_DIRS": str(self.directory / "tmp"),
        }

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """The master, which keeps its state on disk, or a worker, which removes what ended applications left."""
        settings, ports = self.directory / "conf" / "log4j2.properties", self.ports
        own = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": f"{self.directory}/data/applications",
            "spark.master.rest.enabled": "false",
            # An application or a worker that a restarted master remembers and does not hear of holds up the others.
            "spark.worker.timeout": "20",
            "spark.worker.cleanup.enabled": "true",
            "spark.worker.cleanup.interval": "60",
            "spark.worker.cleanup.appDataTtl": "60",
        }
        options = [
            *JVM,
            *(f"-D{option}={value}" for option, value in own.items()),
            *log4j2_options(name, self.server(name).log, settings, self.logs_to),
        ]
        main = "org.apache.spark.deploy.master.Master" if name == MASTER else "org.apache.spark.deploy.worker.Worker"
        heap = MASTER_HEAP_MB if name == MASTER else WORKER_HEAP_MB
        address = ["--host", HOST, "--port", str(ports[name]), "--webui-port", str(ports[f"{name}-ui"])]
        command = [
            *java_command(java, [spark_home() / "jars" / "*"], main, heap_mb=heap, options=options),
            *address,
        ]
        if name != MASTER:
            offers = [
                "--cores",
                "1",
                "--memory",
                f"{EXECUTOR_MB}m",
                "--work-dir",
                str(self.directory / "work" / name),
            ]
            command += [*offers, self.address]
        return command

    def waiting_for(self) -> str | None:
        """Ready is: the master takes applications, and every worker is registered."""
        status = ask_master(HOST, self.ports[f"{MASTER}-ui"])
        if status is None:
            return "the master does not answer yet"
        if status["status"] != "ALIVE":
            return f"the master is {status['status']}"
        alive = {worker["port"] for worker in status["workers"] if worker["state"] == "ALIVE"}
        missing = [worker for worker in WORKERS if self.ports[worker] not in alive]
        return f"{', '.join(missing)} not registered yet" if missing else None


def make_bare_java(directory: Path, java: Java) -> None:
    """Make the Java home that executors on servers of that directory have."""
    executors = directory / "data" / "java" / "bin" / "java"
    executors.parent.mkdir(parents=True, exist_ok=True)
    executors.write_text(EXECUTORS_JAVA.format(java=shlex.quote(str(java.path))))
    executors.chmod(0o755)


def make_bare_python(directory: Path) -> None:
    """Make, once, the empty virtual environment of executors there, named `python3.11` as its interpreter is."""
    python = bare_python(directory)
    if not (python / "bin" / python.name).exists():
        venv.EnvBuilder(symlinks=True, clear=True, with_pip=False).create(python)


def bare_environment(directory: Path, *others: str) -> dict[str, str]:
    """What executors there inherit: both; none of this process's own settings, nor those that begin with `others`."""
    own = ("PYTHON", "PYSPARK_", "SPARK_", "VIRTUAL_", *others)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {
        "JAVA_HOME": str(directory / "data" / "java"),
        "PATH": f"{bare_python(directory)}/bin:/usr/local/bin:/usr/bin:/bin",
    }


def bare_python(directory: Path) -> Path:
    """Where that virtual environment is."""
    return directory / "data" / "python{}.{}".format(*sys.version_info)


def own_pages() -> dict[tuple[str, int], int]:
    """Port of the web page of this user's own master, by the master's address; empty before its first start."""
    ports = SparkCluster.default().state().get("ports", {})
    return {(HOST, ports[MASTER]): ports[f"{MASTER}-ui"]} if ports else {}

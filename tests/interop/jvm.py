"""Java programs of the tests, compiled on demand with any Java, and run as processes."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command

SOURCES = Path(__file__).parent / "java"
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"
"""Compiler of Eclipse, a jar like others: a JRE has none."""


def java_keystore(path: Path, password: str = "changeit") -> Path:
    """Create a JKS keystore with a key for this machine; as a truststore it trusts only that key."""
    command = [
        "-m",
        "java.base/sun.security.tools.keytool.Main",
        "-genkeypair",
        "-storetype",
        "JKS",
        "-keyalg",
        "RSA",
    ]
    command += ["-keystore", str(path), "-storepass", password, "-keypass", password, "-alias", "here"]
    command += ["-dname", "CN=localhost", "-ext", "SAN=DNS:localhost,IP:127.0.0.1", "-validity", "30"]
    subprocess.run([find_java().path, *command], check=True, capture_output=True)
    return path


def interceptors(settings: Path, source: str = "logs") -> str:
    """Return the interceptors in the comment of a file of conf/log4j, for this source of the agent `a1`."""
    lines = re.findall(r"^ +agent\.sources\.logs\.(interceptors.*)$", settings.read_text(), re.MULTILINE)
    return "".join(f"a1.sources.{source}.{line}\n" for line in lines)


def compiled(source: Path, jars: str, classes: Path) -> list[Path]:
    """Return the class path of that program, whose other jars are the jars of a lock."""
    folder = ensure(jars)
    compiler = java_command(find_java(), [ensure("appenders") / "*"], COMPILER, heap_mb=128, options=[])
    names = ":".join(map(str, folder.iterdir()))
    classes.mkdir(parents=True, exist_ok=True)
    arguments = ["-17", "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", names, "-d", str(classes)]
    subprocess.run([*compiler, *arguments, str(source)], check=True)
    return [classes, folder / "*"]


class Application:
    """`java/Application.java`, controlled through its standard input; a context manager.

    A logging library without a configuration among the properties logs nothing.
    """

    name = "Application"
    jars = "appenders"
    """Lock with all jars of its class path."""

    def __init__(self, directory: Path, **properties: object) -> None:
        self._classes = directory / "classes"
        self._log = directory / "application.log"
        silent = {
            "log4j_configuration": (SOURCES / "log4j-silent.properties").as_uri(),
            "logback_configurationFile": SOURCES / "logback-silent.xml",
        }
        self._properties = [f"-D{name.replace('_', '.')}={value}" for name, value in (silent | properties).items()]
        self.process: subprocess.Popen[str]

    def __enter__(self) -> Application:
        path = compiled(SOURCES / f"{self.name}.java", self.jars, self._classes)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                java_command(find_java(), path, self.name, heap_mb=256, options=self._properties),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def log(self) -> str:
        """Output of the program and its libraries."""
        return self._log.read_text()

    def request(self, command: str) -> str:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"the application ended:\n{self.log[-4000:]}"
        return answer

    def end(self) -> None:
        """Let it end by itself."""
        assert self.request("end") == "ended"
        assert self.process.wait(60) == 0


class Log4jApplication(Application):
    """`java/Log4jApplication.java`: log4j 1 with Kafka's own appender."""

    name = "Log4jApplication"
    jars = "log4j-kafka"

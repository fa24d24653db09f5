"""How the servers log: into a file of their own and, where an agent is named, to that agent as its applications."""

from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
# In a checkout the configurations lie beside the package, in a wheel within it.
CONF = next(directory for directory in (_PACKAGE.parent / "conf", _PACKAGE / "conf") if directory.is_dir())
"""What users are given to start from; the servers use the same settings of log4j."""

LOG4J2 = """\
rootLogger.level=INFO
rootLogger.appenderRef.file.ref=file
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=${sys:flafka.log}
appender.file.filePattern=${sys:flafka.log}.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1.}: %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
"""


@dataclass(frozen=True)
class LogPorts:
    """An agent on this machine that takes log events: the ports of its sources `log4j` and `avro`."""

    log4j: int
    avro: int


def log4j2_options(name: str, log: Path, settings: Path, intake: LogPorts | None) -> list[str]:
    """Options of a JVM that logs with log4j 2: `settings` is a file with `LOG4J2`, log4j adds the agent's to it."""
    files = [settings]
    options = [f"-Dflafka.log={log}"]
    if intake is not None:
        files.append(CONF / "log4j" / "log4j2-json.xml")
        options += _agent(name, intake.log4j)
    return [f"-Dlog4j2.configurationFile={','.join(map(str, files))}", *options]


def log4j1_options(name: str, log: Path, intake: LogPorts | None) -> list[str]:
    """Options of a JVM that logs with log4j 1: where its class path says, or to the agent alone."""
    options = [f"-Dflafka.log={log}"]
    if intake is not None:
        settings = CONF / "log4j" / "log4j.xml"
        options += [f"-Dlog4j.configuration={settings.as_uri()}", *_agent(name, intake.avro)]
    return options


def _agent(name: str, port: int) -> list[str]:
    return ["-Dflafka.host=127.0.0.1", f"-Dflafka.port={port}", f"-Dflafka.application={name}"]

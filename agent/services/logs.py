"""Logging of servers: into a file, and optionally to an agent, like an application of it."""

from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
# In a checkout, `conf` is beside the package; in a wheel, inside.
CONF = next(directory for directory in (_PACKAGE.parent / "conf", _PACKAGE / "conf") if directory.is_dir())
"""Directory of example configurations, whose settings of log4j the servers use."""

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
class AgentLogPorts:
    """Ports of the sources `log4j` and `avro` of an agent on this host that receives log events."""

    log4j: int
    avro: int


def log4j2_options(name: str, log: Path, settings: Path, agent_ports: AgentLogPorts | None) -> list[str]:
    """Return the options of a JVM with log4j 2 that logs into the file `log`, and also to an agent.

    `agent_ports` None leaves the agent out. `settings` is a file with `LOG4J2`. `name` names the application in
    events.
    """
    files = [settings]
    options = [f"-Dflafka.log={log}"]
    if agent_ports is not None:
        files.append(CONF / "log4j" / "log4j2-json.xml")
        options += _appender_options(name, agent_ports.log4j)
    return [f"-Dlog4j2.configurationFile={','.join(map(str, files))}", *options]


def log4j1_options(name: str, log: Path, agent_ports: AgentLogPorts | None) -> list[str]:
    """Return the options of a JVM with log4j 1: it logs to an agent, or as its class path says.

    `agent_ports` None leaves the agent out. `name` names the application in events.
    """
    options = [f"-Dflafka.log={log}"]
    if agent_ports is not None:
        settings = CONF / "log4j" / "log4j.xml"
        options += [f"-Dlog4j.configuration={settings.as_uri()}", *_appender_options(name, agent_ports.avro)]
    return options


def _appender_options(name: str, port: int) -> list[str]:
    return ["-Dflafka.host=127.0.0.1", f"-Dflafka.port={port}", f"-Dflafka.application={name}"]

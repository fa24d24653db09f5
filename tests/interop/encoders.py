"""JSON encoders of applications, and their output in `tests/data/encoders`.

`python -m tests.interop.encoders` runs the real encoders and rewrites those files.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.interop.jvm import Application

DATA = Path(__file__).parents[1] / "data" / "encoders"
TIMES = DATA / "times.json"
"""Times in milliseconds before the first and after the last event of each encoder."""

_TEMPLATE = '<JsonTemplateLayout eventTemplateUri="classpath:{}.json"/>'
_OWN = """<JsonTemplateLayout><EventTemplate><![CDATA[{
  "when": {"$resolver": "timestamp", "epoch": {"unit": "secs"}},
  "what": {"$resolver": "message", "stringified": true},
  "where": {"logger": {"$resolver": "logger", "field": "name"}, "thread": {"$resolver": "thread", "field": "name"}},
  "severity": {"$resolver": "level", "field": "severity", "severity": {"field": "code"}},
  "context": {"$resolver": "mdc"},
  "failure": {"$resolver": "exception", "field": "stackTrace", "stackTrace": {"stringified": true}}
}]]></EventTemplate></JsonTemplateLayout>"""
_STRUCTURED = """<JsonTemplateLayout><EventTemplate><![CDATA[{
  "epoch": {"$resolver": "timestamp", "epoch": {"unit": "secs", "rounded": true}},
  "message": {"$resolver": "message"}, "level": {"$resolver": "level", "field": "name"},
  "logger": {"$resolver": "logger", "field": "name"}, "thread": {"$resolver": "thread", "field": "name"},
  "mdc": {"$resolver": "mdc", "flatten": {"prefix": "mdc."}},
  "exception": {"class": {"$resolver": "exception", "field": "className"},
                "message": {"$resolver": "exception", "field": "message"},
                "stackTrace": {"$resolver": "exception", "field": "stackTrace"}}
}]]></EventTemplate></JsonTemplateLayout>"""
_DATE = """<JsonTemplateLayout><EventTemplate><![CDATA[{
  "timestamp": {"$resolver": "timestamp", "pattern": {"format": "yyyy-MM-dd HH:mm:ss,SSS", "timeZone": "UTC"}},
  "msg": {"$resolver": "message"}, "level": {"$resolver": "level", "field": "name"},
  "logger": {"$resolver": "logger", "field": "name"}, "thread": {"$resolver": "thread", "field": "name"},
  "mdc": {"$resolver": "mdc"},
  "stacktrace": {"$resolver": "exception", "field": "stackTrace", "stackTrace": {"stringified": true}}
}]]></EventTemplate></JsonTemplateLayout>"""

LOG4J2 = {
    "ecs": '<EcsLayout serviceName="shop"/>',
    "ecs-array": '<EcsLayout serviceName="shop" stackTraceAsArray="true"/>',
    "template-EcsLayout": _TEMPLATE.format("EcsLayout"),
    "template-LogstashJsonEventLayoutV1": _TEMPLATE.format("LogstashJsonEventLayoutV1"),
    "template-GelfLayout": _TEMPLATE.format("GelfLayout"),
    "template-JsonLayout": _TEMPLATE.format("JsonLayout"),
    "template-GcpLayout": _TEMPLATE.format("GcpLayout"),
    "template-own": _OWN,
    "template-structured": _STRUCTURED,
    "template-date": _DATE,
    "gelf": '<GelfLayout compressionType="OFF" includeNewLineDelimiter="true"/>',
    "gelf-null": '<GelfLayout compressionType="OFF" includeNullDelimiter="true" threadContextPrefix="ctx."/>',
    "json": '<JsonLayout compact="true" eventEol="true" properties="true"/>',
    "json-plain": '<JsonLayout compact="true" eventEol="true"/>',
    "json-string": '<JsonLayout compact="true" eventEol="true" properties="true" stacktraceAsString="true"/>',
    "json-list": '<JsonLayout compact="true" eventEol="true" properties="true" propertiesAsList="true"'
    ' includeTimeMillis="true" locationInfo="true"/>',
    "json-pretty": '<JsonLayout properties="true"/>',
    "json-complete": '<JsonLayout complete="true" properties="true"/>',
    "json-array": '<JsonLayout compact="true" complete="true" properties="true"/>',
    "json-joined": '<JsonLayout compact="true" properties="true"/>',
}
"""Layouts of log4j 2 by a name for each."""

_LOGSTASH = "net.logstash.logback.encoder"
_COMPOSITE = f"""<encoder class="{_LOGSTASH}.LoggingEventCompositeJsonEncoder"><providers>
  <timestamp><fieldName>ts</fieldName><pattern>[UNIX_TIMESTAMP_AS_NUMBER]</pattern></timestamp>
  <logLevel><fieldName>lvl</fieldName></logLevel><loggerName><fieldName>source</fieldName></loggerName>
  <threadName><fieldName>task</fieldName></threadName><message><fieldName>text</fieldName></message>
  <mdc><fieldName>ctx</fieldName></mdc><stackTrace><fieldName>trace</fieldName></stackTrace>
</providers></encoder>"""
_PATTERN = f"""<encoder class="{_LOGSTASH}.LoggingEventCompositeJsonEncoder"><providers><pattern><pattern>
  {{"time": "%date{{ISO8601}}", "severity": "%level", "class": "%logger", "threadName": "%thread", "msg": "%message",
    "stack": "%ex", "mdc": {{"user": "%mdc{{user}}"}}}}
</pattern></pattern></providers></encoder>"""

LOGBACK = {
    "logback": '<encoder class="ch.qos.logback.classic.encoder.JsonEncoder"/>',
    "logback-formatted": '<encoder class="ch.qos.logback.classic.encoder.JsonEncoder">'
    "<withFormattedMessage>true</withFormattedMessage><withMessage>false</withMessage></encoder>",
    "logback-ecs": '<encoder class="co.elastic.logging.logback.EcsEncoder"><serviceName>shop</serviceName></encoder>',
    "logback-ecs-array": '<encoder class="co.elastic.logging.logback.EcsEncoder"><serviceName>shop</serviceName>'
    "<stackTraceAsArray>true</stackTraceAsArray><includeOrigin>true</includeOrigin></encoder>",
    "logback-gelf": '<encoder class="de.siegmar.logbackgelf.GelfEncoder"><appendNewline>true</appendNewline>'
    "</encoder>",
    "logstash": f'<encoder class="{_LOGSTASH}.LogstashEncoder"/>',
    "logstash-short": f'<encoder class="{_LOGSTASH}.LogstashEncoder">'
    '<fieldNames class="net.logstash.logback.fieldnames.ShortenedFieldNames"/></encoder>',
    "logstash-date": f'<encoder class="{_LOGSTASH}.LogstashEncoder">'
    "<timestampPattern>yyyy-MM-dd HH:mm:ss.SSS</timestampPattern></encoder>",
    "logstash-epoch": f'<encoder class="{_LOGSTASH}.LogstashEncoder">'
    "<timestampPattern>[UNIX_TIMESTAMP_AS_STRING]</timestampPattern>"
    "<fieldNames><mdc>mdc</mdc></fieldNames></encoder>",
    "composite": _COMPOSITE,
    "composite-pattern": _PATTERN,
}
"""Encoders of logback by a name for each."""


APIS = {"log4j2": LOG4J2, "logback": LOGBACK}


def log4j2(appender: str, names: list[str]) -> str:
    """Return settings with a logger and an appender for each layout. `appender`: its element without a layout."""
    kind = appender.split()[0]
    appenders = "".join(f'<{appender.format(name=name)} name="{name}">{LOG4J2[name]}</{kind}>' for name in names)
    loggers = "".join(
        f'<Logger name="{name}" level="info" additivity="false"><AppenderRef ref="{name}"/></Logger>'
        for name in names
    )
    return (
        f'<Configuration status="error" dest="err"><Appenders>{appenders}</Appenders>'
        f'<Loggers>{loggers}<Root level="off"/></Loggers></Configuration>'
    )


def logback(appender: str, names: list[str]) -> str:
    """Return settings for logback's encoders. `appender`: its class, and its other elements."""
    kind, inner = appender.split(maxsplit=1)
    text = "".join(
        f'<appender name="{name}" class="{kind}">{inner.format(name=name)}{LOGBACK[name]}</appender>'
        f'<logger name="{name}" level="info" additivity="false"><appender-ref ref="{name}"/></logger>'
        for name in names
    )
    listener = '<statusListener class="ch.qos.logback.core.status.OnErrorConsoleStatusListener"/>'
    return f"<configuration>{listener}{text}</configuration>"


class Encoders(Application):
    """`java/Encoders.java`."""

    name = "Encoders"

    def times(self, api: str, logger: str) -> tuple[int, int]:
        """Have it log its events; return the milliseconds before the first and after the last."""
        before, after = map(int, self.request(f"{api} {logger}").split())
        return before, after


def encoders(directory: Path, for_log4j2: str, for_logback: str, **properties: object) -> Encoders:
    """Run the program with every encoder in an appender of these kinds."""
    (directory / "log4j2.xml").write_text(log4j2(for_log4j2, list(LOG4J2)))
    (directory / "logback.xml").write_text(logback(for_logback, list(LOGBACK)))
    return Encoders(
        directory,
        log4j2_configurationFile=directory / "log4j2.xml",
        logback_configurationFile=directory / "logback.xml",
        **properties,
    )


def main() -> None:
    """Write `tests/data/encoders` anew."""
    DATA.mkdir(exist_ok=True, parents=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        encoders(
            Path(directory),
            f'File fileName="{DATA}/{{name}}.json" append="false"',
            f"ch.qos.logback.core.FileAppender <file>{DATA}/{{name}}.json</file><append>false</append>",
            user_timezone="UTC",
        ) as program,
    ):
        times = {name: program.times(api, name) for api, names in APIS.items() for name in names}
        program.end()
    TIMES.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Source `log4j`: JSON of log4j 2 and logback."""

from flafka.sources.log4j.source import Log4jConfig, Log4jSource

__all__ = ["Log4jConfig", "Log4jSource"]

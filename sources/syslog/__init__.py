"""Syslog over TCP, TLS and UDP, RFC 3164 and RFC 5424."""

from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.multiport import MultiportSyslogTcp
from flafka.sources.syslog.parser import parse
from flafka.sources.syslog.tcp import SyslogTcp
from flafka.sources.syslog.udp import SyslogUdp

__all__ = ["MultiportSyslogTcp", "ParserOptions", "SyslogTcp", "SyslogUdp", "parse"]

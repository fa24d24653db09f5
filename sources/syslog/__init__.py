"""Syslog over TCP, TLS and UDP, RFC 3164 and RFC 5424."""

from sources.syslog.multiport import MultiportSyslogTcp
from sources.syslog.parser import parse
from sources.syslog.reading import Reading
from sources.syslog.tcp import SyslogTcp
from sources.syslog.udp import SyslogUdp

__all__ = ["MultiportSyslogTcp", "Reading", "SyslogTcp", "SyslogUdp", "parse"]

"""Syslog over TCP and over UDP, RFC 3164 and RFC 5424."""

from sources.syslog.parser import Reading, parse
from sources.syslog.tcp import SyslogTcp
from sources.syslog.udp import SyslogUdp

__all__ = ["Reading", "SyslogTcp", "SyslogUdp", "parse"]

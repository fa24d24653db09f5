"""The source `syslogtcp`: RFC 3164 and RFC 5424, in lines or octet-counted (RFC 6587), over TCP or TLS (RFC 5425)."""

from __future__ import annotations

from sources.syslog.base import SyslogPortConfig
from sources.syslog.formats import Format
from sources.syslog.stream import SyslogStream, SyslogStreamConfig


class SyslogTcpConfig(SyslogStreamConfig, SyslogPortConfig):
    """Options of syslogtcp."""


class SyslogTcp(SyslogStream[SyslogTcpConfig]):
    """Receives syslog over TCP: what it has read is never dropped, and while channels are full it does not read.

    Plain syslog has no acknowledgement: what is on its way when the sender, the network or the agent dies is lost.
    """

    type_name = "syslogtcp"
    aliases = ("org.apache.flume.source.SyslogTcpSource",)

    def __init__(self, config: SyslogTcpConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._format = Format(config.format, self._reading.zone) if config.format else None

    @property
    def wanted_ports(self) -> list[int]:
        """The one port configured."""
        return [self.config.port]

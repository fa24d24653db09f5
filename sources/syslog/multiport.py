"""Source `multiport_syslogtcp`: several ports, and the header names of Flume's source of this name."""

from __future__ import annotations

import codecs
from types import MappingProxyType

import pydantic

from flafka.plugins import cross_field_validator, option
from flafka.sources.syslog import compatibility
from flafka.sources.syslog.config import SyslogStreamConfig
from flafka.sources.syslog.decoder import Decoder
from flafka.sources.syslog.dialects import MULTIPORT
from flafka.sources.syslog.tcp import SyslogStream

_ASCII = bytes(range(128))


def _codec(charset: str) -> str:
    """Return Python's name of a character set. Raises ValueError if it is unknown, or no superset of ASCII."""
    try:
        codec = codecs.lookup(charset)
        if codec.decode(_ASCII)[0].encode("ascii") == _ASCII:
            return codec.name
    except (LookupError, UnicodeError, TypeError, AttributeError):
        pass
    raise ValueError(f"must be a character set that has ASCII in it, such as UTF-8 or ISO-8859-1, not {charset!r}")


class MultiportSyslogTcpConfig(SyslogStreamConfig):
    """Options of the source `multiport_syslogtcp`."""

    options_without_effect = MappingProxyType(
        {
            "batchSize": "messages are batched as they arrive",
            "numProcessors": "one thread reads all ports",
            "readBufferBytes": "a read takes 64 KiB or more",
            "readBufferSize": "a read takes 64 KiB or more",
        }
    )
    ports: list[str] = option(
        name="ports", description="TCP ports to listen on, separated by blanks; 0 takes a free one.", min_length=1
    )
    port_header: str | None = option(
        None,
        name="portHeader",
        description="Header for the port that the event was sent to. If unset, there is none.",
        min_length=1,
    )
    charset: str = option(
        "UTF-8",
        name="charset.default",
        description="Character set of messages. A message that is not valid in it is marked Invalid and kept "
        "unchanged.",
    )
    port_charsets: dict[str, str] = option(
        {},
        name="charset.port.",
        description="`charset.port.<port>` is the character set of messages sent to that port, instead of "
        "`charset.default`.",
    )

    @pydantic.field_validator("ports")
    @classmethod
    def _check_ports(cls, ports: list[str]) -> list[str]:
        for port in ports:
            if not (port.isascii() and port.isdigit() and int(port) <= 65535):
                raise ValueError(f"must be numbers from 0 to 65535, not {port!r}")
        if len(named := [port for port in map(int, ports) if port]) != len(set(named)):
            raise ValueError("names a port twice")
        return ports

    _check_charset = pydantic.field_validator("charset")(_codec)

    @pydantic.field_validator("port_charsets")
    @classmethod
    def _check_port_charsets(cls, charsets: dict[str, str]) -> dict[str, str]:
        checked = {}
        for port, charset in charsets.items():
            try:
                checked[port] = _codec(charset)
            except ValueError as e:
                raise ValueError(f"{port}: {e}") from None
        return checked

    @cross_field_validator("port_charsets", "ports")
    def _names_its_ports(self) -> None:
        for port in self.port_charsets:
            if port not in self.ports:
                raise ValueError(f"{port}: is not one of ports")


class MultiportSyslogTcp(SyslogStream[MultiportSyslogTcpConfig]):
    """Receive syslog over TCP on several ports: a message once read is never dropped, as with `syslogtcp`.

    Plain syslog has no acknowledgement: messages in flight when the sender, the network or the agent fails are lost.
    """

    type_name = "multiport_syslogtcp"
    aliases = ("org.apache.flume.source.MultiportSyslogTCPSource",)
    compatibility_notes = (*compatibility.SYSLOG, *compatibility.STREAMS, *compatibility.MULTIPORT)

    def __init__(self, config: MultiportSyslogTcpConfig, name: str = "") -> None:
        decoder = Decoder(
            config,
            dialect=MULTIPORT,
            charset=config.charset,
            charsets={int(port): charset for port, charset in config.port_charsets.items()},
            port_header=config.port_header,
        )
        super().__init__(config, name, [int(port) for port in config.ports], decoder)

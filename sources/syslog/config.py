"""Options that the syslog sources share."""

from __future__ import annotations

import pydantic

from flafka.plugins import option
from flafka.sources.connections import ConnectionsConfig
from flafka.sources.listening import HandshakeConfig
from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.formats import CustomFormat
from flafka.sources.timezone import TimeZoneConfig


class SyslogConfig(TimeZoneConfig):
    """Options of all syslog sources."""

    host: str = option(
        "0.0.0.0",  # noqa: S104  # as in Flume
        name="host",
        description="Address or name to listen on; 0.0.0.0 or :: for all addresses.",
    )
    keep_fields: str = option(
        "none",
        name="keepFields",
        description="Fields of the message head that stay in the body: `none`, `all`, or some of `priority "
        "version timestamp hostname`.",
    )
    client_ip_header: str | None = option(
        None,
        name="clientIPHeader",
        description="Header for the sender's IP address. If unset, there is none.",
        min_length=1,
    )
    client_hostname_header: str | None = option(
        None,
        name="clientHostnameHeader",
        description="Header for the sender's host name, from a reverse lookup. If the lookup finds no name or "
        "takes longer than a second, it holds the IP address.",
        min_length=1,
    )
    raw_timestamp_header: str | None = option(
        None,
        name="rawTimestampHeader",
        description="Header for the timestamp as it was sent, with its zone and all its digits.",
        min_length=1,
    )
    rfc5424_headers: bool = option(
        False,
        name="rfc5424Headers",
        description="Turn the fields that RFC 5424 puts before the message into headers: `appName`, `procId`, "
        "`msgId`, and `sd.<SD-ID>.<name>` for structured data; the body is the message, which may be empty. "
        "Otherwise they stay in the body, as in Flume.",
    )

    @pydantic.field_validator("keep_fields")
    @classmethod
    def _known_fields(cls, value: str) -> str:
        ParserOptions.from_keep_fields(value)
        return value


class SyslogPortConfig(SyslogConfig):
    """Options of syslog sources that listen on one port."""

    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)
    format: dict[str, str] = option(
        {},
        name="format.",
        description="A custom format, tried before RFC 5424 and RFC 3164. `format.regex` matches a whole "
        "message; its groups are priority, version, timestamp, host and body. `format.dateFormat` is "
        "the pattern of the timestamp in the letters of Java's SimpleDateFormat, such as yyyy-MM-dd HH:mm:ss; any "
        "text may follow it. Without a year in it, the nearest year is taken. `format.search` and "
        "`format.replace` change the timestamp before it is read.",
    )

    @pydantic.field_validator("format")
    @classmethod
    def _known_format(cls, value: dict[str, str]) -> dict[str, str]:
        if value:
            CustomFormat(value, None)
        return value


class SyslogStreamConfig(SyslogConfig, HandshakeConfig, ConnectionsConfig):
    """Options of syslog sources over TCP, with optional TLS (RFC 5425)."""

    event_size: int = option(
        2500,
        name="eventSize",
        description="A line that reaches this size is cut there: its first part is marked Incomplete, other parts "
        "Invalid. For octet-counted messages the limit is 64 KiB, or this if larger. A value below 10 "
        "counts as 10.",
        unit="bytes",
        ge=0,
        le=9_999_999,
    )
    max_connections_per_address: int = option(
        0,
        name="maxConnectionsPerAddress",
        description="Most connections open at a time from one IP address; further ones are refused. 0 sets no limit.",
        ge=0,
    )
    frame_timeout: float = option(
        300.0,
        name="frameTimeout",
        description="A connection that leaves a message unfinished for this long is closed; the part received "
        "becomes an event marked Incomplete.",
        unit="s",
        gt=0,
    )
    idle_timeout: float = option(
        0.0,
        name="idleTimeout",
        description="A connection that sends nothing for this long is closed; 0 never closes one. A sender that "
        "expects the connection to stay open may lose its next message.",
        unit="s",
        ge=0,
    )

"""Flume's RPC by Thrift: the service ThriftSourceProtocol, in frames, by the protocols compact and binary.

A frame is its size, a big-endian int32, and a message. The service has two calls, whose arguments are one event or a
list of events; an event is a struct of a map of headers and a body, both required. It has been the same since Flume
1.4, and whoever writes a struct writes its fields in their order, so that no other way to write them is read.

Thrift's libraries for Python make an object of each event, of each that a damaged request claims to have too:
thriftpy2 takes 80 µs for an event of the compact protocol, and 34 s and 400 MB for 4 MB of nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from plugins.options import ANY_CASE, Config, option
from plugins.shared.thriftrpc.binary import Binary
from plugins.shared.thriftrpc.compact import Compact
from plugins.shared.thriftrpc.frames import ThriftFrames, frame
from plugins.shared.thriftrpc.protocol import PROTOCOLS, UNKNOWN_METHOD, Kind, Protocol, ThriftStatus

__all__ = ["PROTOCOLS", "UNKNOWN_METHOD", "Kind", "Protocol", "ThriftConfig", "ThriftFrames", "ThriftStatus", "frame"]

PROTOCOLS.update({protocol.name: protocol for protocol in (Compact(), Binary())})


class ThriftConfig(Config):
    """The options of both ends of a connection."""

    protocol: Annotated[Literal["compact", "binary"], ANY_CASE] = option(
        "compact",
        name="protocol",
        description="Thrift's protocol. It must be the same for client and source.",
    )
    kerberos: bool = option(False, name="kerberos", description="Must be `false`: Kerberos is not spoken.")

    @pydantic.field_validator("kerberos")
    @classmethod
    def _not_spoken(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "is not built yet: write ssl = true instead; with a truststore, a source asks for certificates"
            )
        return value

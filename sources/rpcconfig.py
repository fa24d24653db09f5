"""Options of the sources of Flume's RPCs, and what these do otherwise than Flume's."""

from __future__ import annotations

from types import MappingProxyType

from plugins import Difference, option
from sources.serving import ServingConfig

DIFFERENCES = (
    Difference(
        flume="the answer is FAILED as soon as the channel is full",
        here="the source waits `request-timeout` (15 s) for the channel, then answers FAILED; the client "
        "sends again, what was stored late is there twice",
    ),
    Difference(
        flume="any client that speaks TLS is admitted",
        here="`truststore` asks clients for a certificate that one of its authorities signed",
        option="ssl",
    ),
    Difference(
        flume="TLS 1.0 and 1.1 are spoken",
        here="1.2 and 1.3, unless `include-protocols` says otherwise",
        option="ssl",
    ),
)
"""What sources do otherwise than Flume's, whose clients speak Avro or Thrift."""


class RpcConfig(ServingConfig):
    """Options of a source that is called."""

    ignored = MappingProxyType({"threads": "one thread serves all connections"})
    max_request_bytes: int = option(
        32 * 1024 * 1024,
        name="maxRequestBytes",
        description="Maximum size of a request. After a larger one the connection is closed.",
        unit="bytes",
        ge=1024,
    )
    request_timeout: int = option(
        15_000,
        name="request-timeout",
        description="A request whose events are not stored within this time is answered with FAILED. Set it below "
        "the timeout of the clients, which is 20,000 ms by default.",
        unit="ms",
        ge=100,
    )
    frame_timeout: float = option(
        30.0,
        name="frameTimeout",
        description="A connection that leaves a request or a TLS handshake unfinished for this long is closed.",
        unit="s",
        gt=0,
    )
    idle_timeout: float = option(
        0.0,
        name="idleTimeout",
        description="A connection that is silent for this long is closed; 0 never closes one. Appenders may log "
        "nothing for days, and report a closed connection as a failure.",
        unit="s",
        ge=0,
    )

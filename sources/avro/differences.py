"""What the source `avro` does otherwise than Flume's."""

from __future__ import annotations

from plugins import Difference
from sources.rpcconfig import DIFFERENCES

AVRO = (
    Difference(
        flume="a request of any size is read",
        here="`maxRequestBytes`, `frameTimeout`",
    ),
    *DIFFERENCES,
    Difference(
        flume="ssl and deflate together deflate what is encrypted already, from version 1.11 on",
        here="what is encrypted was deflated before, as Flume did up to 1.10; beside a Flume 1.11, switch "
        "compression off where TLS is on",
        option="compression-type",
    ),
)

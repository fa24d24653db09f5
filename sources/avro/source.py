"""The avro source."""

from __future__ import annotations

from plugins.shared.avrorpc import scan
from plugins.shared.rpcevents import RpcBatchBuilder
from sources.avro.config import AvroConfig
from sources.avro.differences import AVRO
from sources.avro.server import AvroServerProtocol, IpFilter
from sources.listening import Endpoint
from sources.rpc import RpcServer, RpcSource


class AvroSource(RpcSource[AvroConfig]):
    """Receives events by Flume's Avro RPC at least once: OK is answered when every required channel has stored them.

    A client that gets FAILED, or no answer, sends its events again; those stored already are then there twice.
    """

    type_name = "avro"
    aliases = ("org.apache.flume.source.AvroSource",)
    differences = AVRO

    def _serve(self, endpoint: Endpoint) -> RpcServer[AvroConfig]:
        config = self.config
        return RpcServer(
            self,
            endpoint,
            lambda: AvroServerProtocol(config.max_request_bytes),
            deflate=config.compression_type == "deflate",
            admission=IpFilter(config.rules()),
        )

    def _events(self) -> RpcBatchBuilder:
        return RpcBatchBuilder(scan)

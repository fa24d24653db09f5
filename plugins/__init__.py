"""What a component is made of. Built-ins and plugin authors alike write `from plugins import Source`.

A plugin is a module with a `components()` hook, named by an entry point of the group `flafka`:

    from plugins import Batch, Config, Event, Source, hookimpl, option

    class Ticks(Source[TicksConfig]):
        type_name = "ticks"
        def batches(self): ...

    @hookimpl
    def components(): return [Ticks]
"""

from plugins.batch import Batch
from plugins.channel import (
    Channel,
    FlumeDirectories,
    LastRecord,
    PartitionClaim,
    Reader,
    RebalanceListener,
    Record,
    Taken,
    Undecodable,
    Whereabouts,
    replay_group,
)
from plugins.columns import MAX_HEADER_COLUMNS
from plugins.component import Caution, Component, PortTaken, require
from plugins.declared import Option
from plugins.differences import Difference
from plugins.errors import Conflict, FlafkaError, MissingExtra, NotCommitted, Rejected, Retry, Unreachable, Unwritable
from plugins.event import Event, EventId
from plugins.interceptor import Interceptor
from plugins.kafkachannel import (
    Backlog,
    Broker,
    ClusterLook,
    KafkaBackedChannel,
    KafkaStream,
    Onlooker,
    OverflowConfig,
)
from plugins.manager import Components, UnknownType, UnusableType, hookimpl
from plugins.metrics import Metrics
from plugins.options import Config, agreement, option, with_default
from plugins.origin import Origin
from plugins.problems import Problem
from plugins.sink import CommittingSink, PlainSink, Receipt, Resumed, Sink
from plugins.source import FollowedFile, Source
from plugins.streaming import StreamingSink

__all__ = [
    "MAX_HEADER_COLUMNS",
    "Backlog",
    "Batch",
    "Broker",
    "Caution",
    "Channel",
    "ClusterLook",
    "CommittingSink",
    "Component",
    "Components",
    "Config",
    "Conflict",
    "Difference",
    "Event",
    "EventId",
    "FlafkaError",
    "FlumeDirectories",
    "FollowedFile",
    "Interceptor",
    "KafkaBackedChannel",
    "KafkaStream",
    "LastRecord",
    "Metrics",
    "MissingExtra",
    "NotCommitted",
    "Onlooker",
    "Option",
    "Origin",
    "OverflowConfig",
    "PartitionClaim",
    "PlainSink",
    "PortTaken",
    "Problem",
    "Reader",
    "RebalanceListener",
    "Receipt",
    "Record",
    "Rejected",
    "Resumed",
    "Retry",
    "Sink",
    "Source",
    "StreamingSink",
    "Taken",
    "Undecodable",
    "UnknownType",
    "Unreachable",
    "UnusableType",
    "Unwritable",
    "Whereabouts",
    "agreement",
    "hookimpl",
    "option",
    "replay_group",
    "require",
    "with_default",
]

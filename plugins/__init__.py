"""What a component is made of. Built-ins and plugin authors alike write `from flafka import Source`.

A plugin is a module with a `components()` hook, named by an entry point of the group `flafka`:

    from flafka import Batch, Config, Event, Source, hookimpl, option

    class Ticks(Source[TicksConfig]):
        type_name = "ticks"
        def batches(self): ...

    @hookimpl
    def components(): return [Ticks]
"""

from flafka.plugins.batch import Batch
from flafka.plugins.channel import (
    Channel,
    FlumeDirectories,
    OverflowConfig,
    PolledBatch,
    Reader,
    RebalanceListener,
    Record,
    Undecodable,
    Whereabouts,
)
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.component import Caution, Component, PortTaken, require
from flafka.plugins.declared import Option
from flafka.plugins.differences import Difference
from flafka.plugins.errors import (
    Conflict,
    FlafkaError,
    MissingExtra,
    NotCommitted,
    OutcomeUnknown,
    Rejected,
    Retry,
    Unreachable,
    Unwritable,
)
from flafka.plugins.event import Event, EventId
from flafka.plugins.interceptor import Interceptor
from flafka.plugins.manager import Components, UnknownType, UnusableType, hookimpl
from flafka.plugins.metrics import Metric, Metrics
from flafka.plugins.options import Config, agreement, option, with_default
from flafka.plugins.origin import Origin
from flafka.plugins.partitions import (
    Assignment,
    Generation,
    LastRecord,
    OffsetRange,
    TopicPartition,
    next_epoch,
    replay_group,
)
from flafka.plugins.problems import Problem
from flafka.plugins.sink import CommittingSink, PlainSink, Receipt, Sink
from flafka.plugins.source import FollowedFile, Source
from flafka.plugins.streaming import KafkaStream, StreamingSink

__all__ = [
    "MAX_HEADER_COLUMNS",
    "Assignment",
    "Batch",
    "Caution",
    "Channel",
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
    "Generation",
    "Interceptor",
    "KafkaStream",
    "LastRecord",
    "Metric",
    "Metrics",
    "MissingExtra",
    "NotCommitted",
    "OffsetRange",
    "Option",
    "Origin",
    "OutcomeUnknown",
    "OverflowConfig",
    "PlainSink",
    "PolledBatch",
    "PortTaken",
    "Problem",
    "Reader",
    "RebalanceListener",
    "Receipt",
    "Record",
    "Rejected",
    "Retry",
    "Sink",
    "Source",
    "StreamingSink",
    "TopicPartition",
    "Undecodable",
    "UnknownType",
    "Unreachable",
    "UnusableType",
    "Unwritable",
    "Whereabouts",
    "agreement",
    "hookimpl",
    "next_epoch",
    "option",
    "replay_group",
    "require",
    "with_default",
]

if __name__ != "flafka.plugins":  # past `flafka` every class would be there twice
    raise ImportError("import flafka.plugins: this folder is a part of the package flafka")

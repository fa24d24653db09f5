"""Contract of plugins. Built-in components and plugins use the same names, as in `from flafka import Source`.

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
    EventLocation,
    FlumeDirectories,
    OverflowConfig,
    PolledBatch,
    Reader,
    RebalanceListener,
    Record,
    UndecodableRecord,
)
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.compatibility import CompatibilityNote
from flafka.plugins.component import Component, ConnectivityWarning, PortOccupied, require
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
from flafka.plugins.optioninfo import Option
from flafka.plugins.options import Config, cross_field_validator, option, with_default
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
from flafka.plugins.sink import AtLeastOnceSink, CommittingSink, Receipt, Sink
from flafka.plugins.source import Source, TailedFile
from flafka.plugins.streaming import KafkaStream, StreamingSink

__all__ = [
    "MAX_HEADER_COLUMNS",
    "Assignment",
    "AtLeastOnceSink",
    "Batch",
    "Channel",
    "CommittingSink",
    "CompatibilityNote",
    "Component",
    "Components",
    "Config",
    "Conflict",
    "ConnectivityWarning",
    "Event",
    "EventId",
    "EventLocation",
    "FlafkaError",
    "FlumeDirectories",
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
    "PolledBatch",
    "PortOccupied",
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
    "TailedFile",
    "TopicPartition",
    "UndecodableRecord",
    "UnknownType",
    "Unreachable",
    "UnusableType",
    "Unwritable",
    "cross_field_validator",
    "hookimpl",
    "next_epoch",
    "option",
    "replay_group",
    "require",
    "with_default",
]

if __name__ != "flafka.plugins":  # a second import under another name would define every class twice
    raise ImportError("import flafka.plugins: this directory is part of the package flafka")

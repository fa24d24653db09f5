"""What a component is made of. Built-ins and plugin authors alike write `from plugins import Source`.

A plugin is a module with a `components()` hook, named by an entry point of the group `flafka`:

    from plugins import Batch, Config, Event, Source, hookimpl, option

    class Ticks(Source[TicksConfig]):
        type_name = "ticks"
        def batches(self): ...

    @hookimpl
    def components(): return [Ticks]
"""

from plugins.batch import MAX_HEADER_COLUMNS, Batch, Origin
from plugins.components import (
    CONTRACT,
    Caution,
    Channel,
    Claim,
    CommittingSink,
    Component,
    Interceptor,
    KafkaStream,
    Owner,
    Reader,
    Receipt,
    Record,
    Resumed,
    Sink,
    Source,
    StreamingSink,
    Taken,
    Undecodable,
    require,
)
from plugins.errors import Conflict, FlafkaError, MissingExtra, Rejected, Retry
from plugins.event import Event, EventId
from plugins.manager import Components, UnknownType, hookimpl
from plugins.metrics import Metrics
from plugins.options import Config, Option, Problem, option

__all__ = [
    "CONTRACT",
    "MAX_HEADER_COLUMNS",
    "Batch",
    "Caution",
    "Channel",
    "Claim",
    "CommittingSink",
    "Component",
    "Components",
    "Config",
    "Conflict",
    "Event",
    "EventId",
    "FlafkaError",
    "Interceptor",
    "KafkaStream",
    "Metrics",
    "MissingExtra",
    "Option",
    "Origin",
    "Owner",
    "Problem",
    "Reader",
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
    "hookimpl",
    "option",
    "require",
]

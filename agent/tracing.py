"""Where an event came from and where it went, as channels, stores and dead letters say it themselves."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from flafka.agent.runner.deadletters.letters import dead_letters_of
from flafka.agent.runner.deadletters.stored import Owned, StoredDeadLetter, read
from flafka.agent.runner.delivery import by_id, intercepted, opened
from flafka.agent.runner.retries import told
from flafka.agent.topology import AgentSpec, ChannelSpec, SinkSpec
from flafka.plugins import (
    Assignment,
    Batch,
    Event,
    EventId,
    EventLocation,
    FlafkaError,
    PolledBatch,
    Sink,
)
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.kafka.topic import KafkaBackedChannel

_REST = r"(~[0-9a-f]{10})?-\d+-\d+-\d+(?![\w-])"

State = Literal["delivered", "waiting", "dead letter", "filtered", "elsewhere", "missing", "unknown"]
DECIDED = ("delivered", "dead letter")


@dataclass(frozen=True)
class SinkTrace:
    """An event at one sink."""

    sink: str
    type: str
    state: State
    why: str = ""
    """A sentence, where the state does not say all."""
    places: tuple[Mapping[str, Any], ...] = ()
    """Where the store has it: see `Sink.trace`."""


@dataclass(frozen=True)
class Trace:
    """All that is known of one event."""

    id: EventId
    channel: str
    """Path of the channel; empty where the id is of none of the configuration."""
    place: Mapping[str, str | int] = field(default_factory=dict)
    """Where in the channel it lies, or lay."""
    event: Event | None = None
    """As the channel holds it."""
    arrival: int | None = None
    """When it came into the channel, in milliseconds since the epoch."""
    missing: str = ""
    """Why the channel does not have it."""
    sources: tuple[str, ...] = ()
    """Those that put into the channel."""
    sinks: tuple[SinkTrace, ...] = ()
    letters: tuple[StoredDeadLetter, ...] = ()

    @property
    def found(self) -> bool:
        """Whether it is anywhere."""
        return self.event is not None or bool(self.letters) or any(one.state == "delivered" for one in self.sinks)

    def data(self) -> dict[str, Any]:
        """As JSON has it; the body in base64."""
        event = self.event
        return {
            "id": str(self.id),
            "channel": self.channel or None,
            "place": dict(self.place),
            "arrival": self.arrival,
            "missing": self.missing or None,
            "headers": event.headers if event is not None else None,
            "body": base64.b64encode(event.body).decode() if event is not None else None,
            "sources": list(self.sources),
            "sinks": [{**asdict(one), "why": one.why or None} for one in self.sinks],
            "dead_letters": [
                {"component": one.component, "time": one.time, "reason": one.reason, "replayed": one.replayed}
                for one in self.letters
            ],
        }


def id_in(spec: AgentSpec, text: str) -> EventId:
    """The id that a text is, or that the key of a row holds. Raises FlafkaError where there is none."""
    names = [getattr(channel.config, "topic", "") or channel.name for channel in spec.channels]
    for name in sorted(names, key=len, reverse=True):
        if match := re.search(rf"(?<!\w){re.escape(name)}{_REST}", text, re.ASCII):
            return EventId.parse(match[0])
    if match := re.fullmatch(rf"\S+?{_REST}", text.strip(), re.ASCII):
        return EventId.parse(match[0])
    raise FlafkaError(
        f"{text!r} is no event's id: one ends with partition, record and place in it, as in events~0a1b2c3d4e-0-17-3"
    )


def trace(spec: AgentSpec, id: EventId) -> Trace:
    """Follow it through that agent. Raises Retry where its channel's brokers do not answer; a store that does not is
    `unknown`."""
    for channel in spec.channels:
        sinks = [sink for sink in spec.sinks if sink.channel == channel.name]
        made = channel.make()
        if (found := made.find(id, {sink.group for sink in sinks})) is not None:
            return _traced(spec, channel, sinks, id, found)
    letters = tuple(kept for channel in spec.channels for kept in _letters(spec, channel, id))
    return Trace(id, "", missing=_foreign(spec, id), letters=letters)


def _traced(spec: AgentSpec, channel: ChannelSpec, sinks: list[SinkSpec], id: EventId, found: EventLocation) -> Trace:
    letters = tuple(_letters(spec, channel, id))
    batch = _alone(found.polled, id)
    event, arrival = None, None
    if batch is not None and batch.origin is not None:
        event, arrival = next(iter(batch)), int(batch.origin.timestamps[0])
    elif found.polled is not None and not found.missing and found.polled.undecodable:
        record = found.polled.undecodable[0].record
        headers = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
        event, arrival = Event(record.value or b"", headers), record.timestamp
    never = bool(found.missing) and not _was_there(found, id)
    return Trace(
        id,
        channel.path,
        found.place,
        event,
        arrival,
        found.missing,
        tuple(source.path for source in spec.sources if channel.name in source.channels),
        () if never else tuple(_once_a_group(sinks, [_at(sink, id, found, batch, letters) for sink in sinks])),
        letters,
    )


def _was_there(found: EventLocation, id: EventId) -> bool:
    """Whether the event may have been in the channel: its record is no longer there, rather than not yet."""
    if found.polled is not None:
        return False
    return any((committed.next_offset or 0) > id.offset for committed in found.committed.values())


def _alone(polled: PolledBatch | None, id: EventId) -> Batch | None:
    rows = [row for row, one in enumerate(polled.batch.ids()) if one == id] if polled is not None else []
    return polled.batch.slice(rows[0], 1) if polled is not None and rows else None


def _letters(spec: AgentSpec, channel: ChannelSpec, id: EventId) -> Iterator[StoredDeadLetter]:
    letters = dead_letters_of(spec.name, channel, channel.make(), spec.options, spec.file)
    owned = Owned(spec, channel, letters, None)
    for kept in read(letters):
        if kept.id == id and kept in owned:
            yield kept


def _foreign(spec: AgentSpec, id: EventId) -> str:
    name = id.topic.partition("~")[0]
    for channel in spec.channels:
        made = channel.make()
        if isinstance(made, KafkaBackedChannel) and made.kafka.stream(None).topic == name:
            return (
                f"{channel.path} reads a topic {name}, though not the one that this id is of: that is of another "
                "cluster, was deleted and made again, or has fewer partitions now"
            )
    return (
        "no channel of this configuration has ids of that kind; those of a channel in memory end with the agent's run"
    )


def _at(
    spec: SinkSpec, id: EventId, found: EventLocation, batch: Batch | None, letters: tuple[StoredDeadLetter, ...]
) -> SinkTrace:
    """What became of it at one sink: first what the store says, then what the group's offset lets expect."""
    committed = found.committed[spec.group]
    offset = committed.next_offset or 0
    type_name = spec.cls.type_name
    if not issubclass(spec.cls, Sink):
        why = "its queries read the topic without a group, and what they make of events has no ids"
        return SinkTrace(spec.path, type_name, "unknown", why)
    refused = next((one for one in letters if one.component == spec.path), None)
    rejected: dict[EventId, str] = {}
    if batch is not None:
        try:
            with opened(spec.interceptors) as interceptors:
                batch = intercepted(batch, interceptors, rejected=by_id(rejected))
        except FlafkaError as e:
            return SinkTrace(spec.path, type_name, "unknown", f"its interceptors do not work here: {e}")
        if not (len(batch) or rejected or refused):
            return SinkTrace(spec.path, type_name, "filtered", "the sink's interceptors drop it, as they are now")
    told = _asked(spec, committed, id, batch) if batch is None or len(batch) else []
    places = tuple(one for one in told if not one.keys() & {"missing", "unknown"})
    said = next((str(one[word]) for word in ("unknown", "missing") for one in told if word in one), "")
    if rejected:
        said = f"the sink's interceptors reject it: {rejected[id]}"
    if refused is not None and all("first" in one for one in places):
        # A place of records has those that were rejected in its range, too; a replay's has it, or another letter.
        again = ", and replayed since" if refused.replayed else ""
        replays = tuple(one for one in places if one.get("replay"))
        return SinkTrace(spec.path, type_name, "dead letter", f"{refused.reason}{again}", replays)
    if places:
        late = "" if offset > id.offset else "it is there ahead of the group's position"
        return SinkTrace(spec.path, type_name, "delivered", said or late, places)
    if offset <= id.offset:
        behind = f"group {committed.group} is at record {offset}, {id.offset - offset} before it"
        return SinkTrace(spec.path, type_name, "waiting", behind)
    passed = f"group {committed.group} is past it, at record {offset}"
    if any("unknown" in one for one in told):
        left = {word: value for one in told for word, value in one.items() if word != "unknown"}
        return SinkTrace(spec.path, type_name, "unknown", f"{passed}; {said}", (left,) if left else ())
    return SinkTrace(spec.path, type_name, "missing", f"{passed}; {said}")


def _once_a_group(sinks: list[SinkSpec], found: list[SinkTrace]) -> Iterator[SinkTrace]:
    """Sinks of one consumer group compete for events: what one has, the others do not get."""
    has = {spec.group: one.sink for spec, one in zip(sinks, found, strict=True) if one.state in DECIDED}
    for spec, one in zip(sinks, found, strict=True):
        if one.state not in DECIDED and (other := has.get(spec.group)) is not None:
            yield replace(one, state="elsewhere", why=f"{other}, of the same consumer group, got it", places=())
        else:
            yield one


def _asked(spec: SinkSpec, committed: Assignment, id: EventId, batch: Batch | None) -> list[Mapping[str, Any]]:
    sink: Sink[Any] = spec.make()
    try:
        return list(sink.trace(committed, id, batch))
    except ANY_FAILURE as e:  # a plugin's own, too: other sinks can still be asked
        return [{"unknown": told(e)}]

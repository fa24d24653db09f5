"""Trace of an event: its sources, its location in a channel, and the outcome at each sink.

Channels, stores and dead letters are queried directly.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from flafka.agent.runner.deadletters.reading import OwnedDeadLetters, StoredDeadLetter, read_dead_letters
from flafka.agent.runner.deadletters.store import dead_letter_store
from flafka.agent.runner.delivery import collect_reasons, intercept, open_interceptors
from flafka.agent.runner.retries import describe_error
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

_ID_SUFFIX = r"(~[0-9a-f]{10})?-\d+-\d+-\d+(?![\w-])"

State = Literal["delivered", "waiting", "dead letter", "filtered", "elsewhere", "missing", "unknown"]
DECIDED = ("delivered", "dead letter")


@dataclass(frozen=True)
class SinkTrace:
    """State of an event at one sink."""

    sink: str
    type: str
    state: State
    why: str = ""
    """Explanation of the state; may be empty."""
    places: tuple[Mapping[str, Any], ...] = ()
    """Locations of the event in the store, as `Sink.trace` returns them."""


@dataclass(frozen=True)
class Trace:
    """Trace of one event."""

    id: EventId
    channel: str
    """Path of the channel; empty if no channel of the configuration has IDs of that kind."""
    place: Mapping[str, str | int] = field(default_factory=dict)
    """Location of the event in the channel, past or present."""
    event: Event | None = None
    """Event as the channel holds it; None if the channel does not have it."""
    arrival: int | None = None
    """Time at which the channel took the event, in milliseconds since the epoch."""
    missing: str = ""
    """Reason why the channel does not have the event; empty if it has."""
    sources: tuple[str, ...] = ()
    """Paths of the sources that put into the channel."""
    sinks: tuple[SinkTrace, ...] = ()
    """States of the event at the sinks of the channel."""
    dead_letters: tuple[StoredDeadLetter, ...] = ()
    """Dead letters of the event."""

    @property
    def is_found(self) -> bool:
        """True if the event is in the channel, was delivered to a sink's store, or is a dead letter."""
        is_delivered = any(sink.state == "delivered" for sink in self.sinks)
        return self.event is not None or bool(self.dead_letters) or is_delivered

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `agent trace --json` prints, with the body in base64."""
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
            "sinks": [{**asdict(sink), "why": sink.why or None} for sink in self.sinks],
            "dead_letters": [
                {
                    "component": dead_letter.component,
                    "time": dead_letter.time,
                    "reason": dead_letter.reason,
                    "replayed": dead_letter.replayed,
                }
                for dead_letter in self.dead_letters
            ],
        }


def parse_event_id(spec: AgentSpec, text: str) -> EventId:
    """Return the event ID in a text, such as the row key of a store. Raises FlafkaError if there is none.

    IDs of a channel or topic of the configuration are found anywhere in the text, other IDs only alone.
    """
    names = [getattr(channel.config, "topic", "") or channel.name for channel in spec.channels]
    for name in sorted(names, key=len, reverse=True):
        if match := re.search(rf"(?<!\w){re.escape(name)}{_ID_SUFFIX}", text, re.ASCII):
            return EventId.parse(match[0])
    if match := re.fullmatch(rf"\S+?{_ID_SUFFIX}", text.strip(), re.ASCII):
        return EventId.parse(match[0])
    raise FlafkaError(
        f"{text!r} is no event ID: an ID ends with partition, record and index in the record, as in "
        "events~0a1b2c3d4e-0-17-3"
    )


def trace(spec: AgentSpec, id: EventId) -> Trace:
    """Return the trace of an event through an agent. Reads only, and does not join any group.

    The state at a sink whose store does not answer is `unknown`. Raises Retry if brokers do not answer.
    """
    for channel in spec.channels:
        sinks = [sink for sink in spec.sinks if sink.channel == channel.name]
        if (location := channel.make().find_event(id, {sink.group for sink in sinks})) is not None:
            return _trace_in_channel(spec, channel, sinks, id, location)
    dead_letters = tuple(one for channel in spec.channels for one in _dead_letters(spec, channel, id))
    return Trace(id, "", missing=_unknown_channel(spec, id), dead_letters=dead_letters)


def _trace_in_channel(
    spec: AgentSpec, channel: ChannelSpec, sinks: list[SinkSpec], id: EventId, location: EventLocation
) -> Trace:
    """Return the trace of an event whose `location` is in this channel; without states if the ID never existed."""
    dead_letters = tuple(_dead_letters(spec, channel, id))
    batch = _batch_of(location.polled, id)
    event, arrival = None, None
    if batch is not None and batch.origin is not None:
        event, arrival = next(iter(batch)), int(batch.origin.timestamps[0])
    elif location.polled is not None and not location.missing and location.polled.undecodable:
        record = location.polled.undecodable[0].record
        headers = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
        event, arrival = Event(record.value or b"", headers), record.timestamp
    is_unknown = bool(location.missing) and not _may_have_been_removed(location, id)
    states = [] if is_unknown else [_trace_at_sink(sink, id, location, batch, dead_letters) for sink in sinks]
    return Trace(
        id,
        channel.path,
        location.coordinates,
        event,
        arrival,
        location.missing,
        tuple(source.path for source in spec.sources if channel.name in source.channels),
        tuple(_resolve_groups(sinks, states)) if states else (),
        dead_letters,
    )


def _may_have_been_removed(location: EventLocation, id: EventId) -> bool:
    """Return True if a committed offset shows that the missing record was in the channel, and was removed."""
    if location.polled is not None:
        return False
    return any((committed.next_offset or 0) > id.offset for committed in location.committed.values())


def _batch_of(polled: PolledBatch | None, id: EventId) -> Batch | None:
    """Return a batch with the event of this ID only; None if the polled batch does not have it."""
    if polled is None:
        return None
    rows = [row for row, id_of_row in enumerate(polled.batch.ids()) if id_of_row == id]
    return polled.batch.slice(rows[0], 1) if rows else None


def _dead_letters(spec: AgentSpec, channel: ChannelSpec, id: EventId) -> Iterator[StoredDeadLetter]:
    """Yield the dead letters of this event that belong to this configuration."""
    store = dead_letter_store(spec.name, channel, channel.make(), spec.options, spec.file)
    owned = OwnedDeadLetters(spec, channel, store, None)
    for dead_letter in read_dead_letters(store):
        if dead_letter.id == id and dead_letter in owned:
            yield dead_letter


def _unknown_channel(spec: AgentSpec, id: EventId) -> str:
    """Return the reason why no channel of the configuration has this ID."""
    name = id.topic.partition("~")[0]
    for channel_spec in spec.channels:
        channel = channel_spec.make()
        if isinstance(channel, KafkaBackedChannel) and channel.kafka.stream(None).topic == name:
            return (
                f"{channel_spec.path} reads a topic {name}, but not the topic of this ID, which is in another "
                "cluster, was deleted and recreated, or has fewer partitions now"
            )
    return "no channel of this configuration has such IDs; IDs of a channel in memory are valid until the agent ends"


def _trace_at_sink(
    spec: SinkSpec,
    id: EventId,
    location: EventLocation,
    batch: Batch | None,
    dead_letters: tuple[StoredDeadLetter, ...],
) -> SinkTrace:
    """Return the state of an event at one sink: by its interceptors, dead letters, store, and the group's offset.

    `batch` has only this event; None if the channel does not have it any more.
    """
    committed = location.committed[spec.group]
    offset = committed.next_offset or 0
    type_name = spec.cls.type_name
    if not issubclass(spec.cls, Sink):
        why = "its queries read the topic without a group, and their results have no event IDs"
        return SinkTrace(spec.path, type_name, "unknown", why)
    dead_letter = next((one for one in dead_letters if one.component == spec.path), None)
    rejected: dict[EventId, str] = {}
    if batch is not None:
        try:
            with open_interceptors(spec.interceptors) as interceptors:
                batch = intercept(batch, interceptors, rejected=collect_reasons(rejected))
        except FlafkaError as e:
            return SinkTrace(spec.path, type_name, "unknown", f"its interceptors do not work here: {e}")
        if not (len(batch) or rejected or dead_letter):
            return SinkTrace(spec.path, type_name, "filtered", "the sink's present interceptors drop it")
    answers = _query_sink(spec, committed, id, batch) if batch is None or len(batch) else []
    places = tuple(answer for answer in answers if not answer.keys() & {"missing", "unknown"})
    why = next((str(answer[word]) for word in ("unknown", "missing") for answer in answers if word in answer), "")
    if rejected:
        why = f"the sink's interceptors reject it: {rejected[id]}"
    if dead_letter is not None and all("first" in place for place in places):
        # A place that is a range of records includes rejected ones; only the range of a replay may have the event.
        replayed = ", and replayed since" if dead_letter.replayed else ""
        replays = tuple(place for place in places if place.get("replay"))
        return SinkTrace(spec.path, type_name, "dead letter", f"{dead_letter.reason}{replayed}", replays)
    if places:
        ahead = "" if offset > id.offset else "it is there ahead of the group's committed offset"
        return SinkTrace(spec.path, type_name, "delivered", why or ahead, places)
    if offset <= id.offset:
        behind = f"group {committed.group} is at record {offset}, {id.offset - offset} before it"
        return SinkTrace(spec.path, type_name, "waiting", behind)
    passed = f"group {committed.group} is past it, at record {offset}"
    if any("unknown" in answer for answer in answers):
        details = {word: value for answer in answers for word, value in answer.items() if word != "unknown"}
        return SinkTrace(spec.path, type_name, "unknown", f"{passed}; {why}", (details,) if details else ())
    return SinkTrace(spec.path, type_name, "missing", f"{passed}; {why}")


def _resolve_groups(sinks: list[SinkSpec], states: list[SinkTrace]) -> Iterator[SinkTrace]:
    """Yield the states in order. A sink whose consumer group delivered the event to another sink gets `elsewhere`."""
    recipients = {spec.group: state.sink for spec, state in zip(sinks, states, strict=True) if state.state in DECIDED}
    for spec, state in zip(sinks, states, strict=True):
        if state.state not in DECIDED and (other := recipients.get(spec.group)) is not None:
            yield replace(state, state="elsewhere", why=f"{other}, of the same consumer group, got it", places=())
        else:
            yield state


def _query_sink(spec: SinkSpec, committed: Assignment, id: EventId, batch: Batch | None) -> list[Mapping[str, Any]]:
    """Return the answers of the sink's store about an event; an error becomes an answer with the key `unknown`."""
    sink: Sink[Any] = spec.make()
    try:
        return list(sink.trace(committed, id, batch))
    except ANY_FAILURE as e:  # an unexpected error of one plugin must not hide the other sinks
        return [{"unknown": describe_error(e)}]

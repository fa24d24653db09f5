"""Interceptor `json`: columns give the same results as single events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flafka.interceptors.json import JsonConfig, JsonInterceptor
from flafka.plugins import Batch, Event, Origin, conformance

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c", "b.c", "b.c.d", "é"]), VALUES, max_size=5)
BODIES = st.one_of(
    st.builds(lambda value, indent: json.dumps(value, indent=indent).encode(), OBJECTS, st.sampled_from([None, 1])),
    st.builds(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), OBJECTS | VALUES),
    st.binary(max_size=4),
    st.sampled_from([b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": 1} {"a": 2}', b"", b" \n", b'{"a": 1, "a": 2}']),
)
EVENTS = st.lists(st.builds(Event, BODIES, st.dictionaries(st.sampled_from(["a", "b.c", "x"]), st.text(max_size=3))))
FIELDS = {"a": "a", "b": "b", "b.c": "b.c", "b.c.d": "b.c.d", "é": "é", "x": "c"}


class Number(str):
    """Number as it is written."""


def parse_alone(event: Event) -> Event:
    """Return one event, by the library that comes with Python."""
    try:
        document = json.loads(event.body.decode(), parse_int=Number, parse_float=Number)
    except ValueError:
        return event
    if not isinstance(document, dict):
        return event
    headers = {header: value for header, path in FIELDS.items() if (value := value_at(document, path)) is not None}
    try:
        "".join(json.dumps(value, ensure_ascii=False) for value in headers.values()).encode()
    except UnicodeEncodeError:
        return event
    return Event(event.body, {**event.headers, **headers})


def value_at(document: Any, path: str) -> Any:
    """Return the value at a path: of that name itself, or in the object of the first names."""
    if not isinstance(document, dict):
        return None
    if path in document:
        return document[path]
    parts = path.split(".")
    for end in range(1, len(parts)):
        outer = ".".join(parts[:end])
        if outer in document and (inner := value_at(document[outer], ".".join(parts[end:]))) is not None:
            return inner
    return None


def comparable(event: Event) -> dict[str, Any]:
    """Return its headers, with objects and lists parsed: these may be written in several ways."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            if value[:1] not in ("{", "["):
                return str(value)
            try:
                return json.loads(value, parse_int=Number, parse_float=Number)
            except ValueError:
                return value
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else value

    return {name: read(value) for name, value in event.headers.items()}


def make(**properties: str) -> JsonInterceptor:
    return conformance.make(JsonInterceptor, {name.replace("__", "."): value for name, value in properties.items()})


@given(EVENTS)
def test_columns_have_the_same_results_as_single_events(events: list[Event]) -> None:
    config = JsonConfig.model_validate({"fields": list(FIELDS)[:-1], "fields.": {"x": "c"}})
    after = list(JsonInterceptor(config).intercept(Batch.of(events)))
    assert [event.body for event in after] == [event.body for event in events]
    assert [comparable(event) for event in after] == [comparable(parse_alone(event)) for event in events]


def test_an_object_that_is_nested_too_deep_is_rejected() -> None:
    interceptor = make(fields="user", onError="reject")
    batch = Batch.of([Event(b'{"user": ' + b"[" * 100_000)], Origin.of_record("t", 0, 5, 0, 1))
    assert len(interceptor.intercept(batch)) == 0
    assert len(interceptor.take_rejected()) == 1


def test_fields_are_required_and_unique() -> None:
    for properties, message in (
        ({}, "is required: fields = user status, or fields.<header> = <field>"),
        ({"fields": "a a"}, "the header a is named twice"),
        ({"fields": "a", "fields.a": "b"}, "the header a is named twice"),
        ({"fields.a": ""}, "must name a field, without"),
        ({"fields": 'a"'}, "must name a field, without backslashes, quotes"),
        ({"fields": "a", "onError": "maybe"}, "must be 'pass', 'drop' or 'reject'"),
    ):
        _, (problem,) = JsonConfig.parse(properties)
        assert problem.message.startswith(message)

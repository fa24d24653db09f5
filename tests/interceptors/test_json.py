"""The interceptor `json`: what it makes of columns is what anyone would make of each event."""

from __future__ import annotations

import json
from typing import Any

import pytest
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
    """A number as it is written."""


def alone(event: Event) -> Event:
    """One event, by the library that comes with Python."""
    try:
        found = json.loads(event.body.decode(), parse_int=Number, parse_float=Number)
    except ValueError:
        return event
    if not isinstance(found, dict):
        return event
    headers = {header: value for header, path in FIELDS.items() if (value := at(found, path)) is not None}
    try:
        "".join(json.dumps(value, ensure_ascii=False) for value in headers.values()).encode()
    except UnicodeEncodeError:
        return event
    return Event(event.body, {**event.headers, **headers})


def at(found: Any, path: str) -> Any:
    """The value at a path: of that name itself, or in the object of the first names."""
    if not isinstance(found, dict):
        return None
    if path in found:
        return found[path]
    parts = path.split(".")
    for end in range(1, len(parts)):
        outer = ".".join(parts[:end])
        if outer in found and (inner := at(found[outer], ".".join(parts[end:]))) is not None:
            return inner
    return None


def comparable(event: Event) -> dict[str, Any]:
    """Its headers, where those that hold objects or lists are read: these may be written in several ways."""

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
def test_columns_give_what_each_event_gives_alone(events: list[Event]) -> None:
    config = JsonConfig.model_validate({"fields": list(FIELDS)[:-1], "fields.": {"x": "c"}})
    after = list(JsonInterceptor(config).intercept(Batch.of(events)))
    assert [event.body for event in after] == [event.body for event in events]
    assert [comparable(event) for event in after] == [comparable(alone(event)) for event in events]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"user": "amy", "n": 1.50, "big": 123456789012345678901234567890}', {"user": "amy", "n": "1.50"}),
        (b'{"user": "a\\u00e9\\n", "n": -0}', {"user": "aé\n", "n": "-0"}),
        (b'{"user": {"id": 7, "tags": [1, "x"]}}', {"user": '{"id": 7, "tags": [1, "x"]}', "user.id": "7"}),
        (b'{"user": true, "n": null}', {"user": "true"}),
        (b'{"user.id": "flat", "user": {"id": 7}}', {"user": '{"id": 7}', "user.id": "flat"}),
        (b'{"user": ""}', {"user": ""}),
        (b'{"other": "\xff", "n": 2}', {"n": "2"}),
    ],
)
def test_a_header_is_the_text_or_what_json_says(body: bytes, headers: dict[str, str]) -> None:
    (event,) = make(fields="user n user.id").intercept(Batch.of([Event(body)]))
    assert event == Event(body, headers)


@pytest.mark.parametrize(("preserve", "expected"), [("false", "new"), ("true", "old")])
def test_what_the_event_has_already(preserve: str, expected: str) -> None:
    events = [Event(b'{"user": "new"}', {"user": "old"}), Event(b'{"user": null}', {"user": "old"}), Event(b"{}")]
    after = make(fields__user="user", preserveExisting=preserve).intercept(Batch.of(events))
    assert [event.headers for event in after] == [{"user": expected}, {"user": "old"}, {}]


TEXTS = [b'{"user": "\\ud800"}', b'{"user": "\xff"}']
WRONG = [b"", b"no", b"[1]", b"7", b'{"user": 1', *TEXTS, b'{"user": NaN}', b"\xef{}"]


@pytest.mark.parametrize("policy", ["pass", "drop", "reject"])
def test_what_is_no_object_is_counted_and_goes_where_it_is_told(policy: str) -> None:
    deep = b'{"user": ' + b"[" * 100_000
    events = [Event(body) for body in (b'{"user": "first"}', *WRONG, deep, b'{"user": "last"}')]
    interceptor = make(fields="user", onError=policy)
    after = interceptor.intercept(Batch.of(events, Origin.of_record("t", 0, 5, 0, len(events))))
    assert interceptor.metrics.get("JsonFailedCount") == len(WRONG) + 1
    passed = events if policy == "pass" else [events[0], events[-1]]
    assert [event.body for event in after] == [event.body for event in passed]
    assert [event.headers for event in after if event.headers] == [{"user": "first"}, {"user": "last"}]
    rejected = interceptor.take_rejected()
    if policy != "reject":
        assert not rejected
        return
    ((rows, reasons),) = rejected
    assert [id.index for id in rows.ids()] == [*range(1, len(events) - 1)]
    assert reasons[2] == "the body is no JSON object: Expected `object`, got `array`"
    assert reasons[WRONG.index(TEXTS[1])] == "a field of the body's JSON is no UTF-8"


def test_some_field_is_to_be_named_and_none_twice() -> None:
    for given_, said in (
        ({}, "is required: fields = user status, or fields.<header> = <field>"),
        ({"fields": "a a"}, "the header a is named twice"),
        ({"fields": "a", "fields.a": "b"}, "the header a is named twice"),
        ({"fields.a": ""}, "must name a field, without"),
        ({"fields": 'a"'}, "must name a field, without backslashes, quotes"),
        ({"fields": "a", "onError": "maybe"}, "must be 'pass', 'drop' or 'reject'"),
    ):
        _, (problem,) = JsonConfig.parse(given_)
        assert problem.message.startswith(said)

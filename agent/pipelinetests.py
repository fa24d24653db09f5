"""Pipeline tests: TOML files with sample events and the expected outputs of components."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from flafka.agent.config import load
from flafka.agent.pipeline import ARRIVAL_MILLISECONDS, PipelineOutput, find_source, run_pipeline
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components, Event, FlafkaError
from flafka.plugins.problems import suggest

SUFFIX = ".test.toml"
TABLES = list[dict[str, Any]]
FILE_KEYS = {"configuration": str, "agent": str, "test": TABLES}
TEST_KEYS = {
    "name": str,
    "source": str,
    "arrival": datetime,
    "lines": list,
    "file": str,
    "event": TABLES,
    "expect": TABLES,
}
EVENT_KEYS = {"body": str, "body_base64": str, "headers": dict, "repeat": int}
EXPECT_KEYS = {"at": str, "count": int, "each": dict, "event": TABLES}
PATTERN_KEYS = {
    "body": str,
    "body_base64": str,
    "body_matches": str,
    "headers": dict,
    "headers_match": dict,
    "without": list,
}
"""Keys of an expected event; the keys of a sink's destination are valid, too."""


@dataclass(frozen=True)
class PipelineTestResult:
    """Result of one test."""

    file: str
    name: str
    differences: tuple[str, ...]
    """Differences from what is expected; empty if the test passes."""


def run_tests(file: Path) -> Iterator[PipelineTestResult]:
    """Run the tests of a file in order, and yield the result of each. Raises FlafkaError for an invalid file."""
    table = _read(file)
    _check_keys(table, FILE_KEYS, str(file))
    configuration = file.parent / str(table.get("configuration", file.name.removesuffix(SUFFIX) + ".conf"))
    spec, diagnostics = load(configuration, table.get("agent"), components=Components())
    if spec is None:
        raise FlafkaError("; ".join(str(d) for d in diagnostics if d.severity == "error"))
    tests = table.get("test", [])
    if not tests:
        raise FlafkaError(f"{file}: the file has no [[test]]")
    for number, test in enumerate(tests, 1):
        name = str(test.get("name", f"test {number}"))
        yield PipelineTestResult(str(file), name, tuple(_differences(spec, test, f"{file}: {name}", file.parent)))


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises FlafkaError if it cannot be read or parsed."""
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as e:
        raise FlafkaError(f"{file} cannot be read: {e.strerror}") from e
    except ValueError as e:
        raise FlafkaError(f"{file} is no TOML: {e}") from e


_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "a table", datetime: "a time with its zone"}


def _check_keys(
    table: Mapping[str, Any], keys: Mapping[str, Any], location: str, *, allow_unknown: bool = False
) -> None:
    """Raise FlafkaError for unknown keys, unless `allow_unknown`, and for values of the wrong type.

    `location` is the file and test, for the text.
    """
    for key, value in table.items():
        kind = keys.get(key)
        if kind is None:
            if allow_unknown:
                continue
            raise FlafkaError(f"{location}: unknown key {key!r}{suggest(key, [*keys])}")
        if kind is TABLES:
            if not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
                raise FlafkaError(f"{location}: {key} must be a list of tables")
        elif not isinstance(value, kind) or (kind is datetime and value.tzinfo is None):
            raise FlafkaError(f"{location}: {key} must be {_KINDS[kind]}")
    if "body_base64" in table:
        try:
            base64.b64decode(table["body_base64"], validate=True)
        except ValueError as e:
            raise FlafkaError(f"{location}: body_base64: {e}") from e


def _check_patterns(expected: Mapping[str, Any], location: str) -> None:
    """Raise FlafkaError for invalid keys, types or regular expressions in the expected events."""
    for pattern in (expected.get("each", {}), *expected.get("event", [])):
        _check_keys(pattern, PATTERN_KEYS, location, allow_unknown=True)
        regexes = pattern.get("body_matches", ""), pattern.get("rejected", "")
        for regex in (*regexes, *pattern.get("headers_match", {}).values()):
            try:
                re.compile(str(regex))
            except re.error as e:
                raise FlafkaError(f"{location}: {regex!r} is no regular expression: {e}") from e


def _differences(spec: AgentSpec, test: Mapping[str, Any], location: str, directory: Path) -> Iterator[str]:
    """Run one test, and yield its differences. Raises FlafkaError for an invalid test."""
    _check_keys(test, TEST_KEYS, location)
    source = find_source(spec, test.get("source"))
    arrival = test.get("arrival")
    millis = ARRIVAL_MILLISECONDS if arrival is None else int(arrival.timestamp() * 1000)
    outputs = run_pipeline(spec, source, list(_events(test, location, directory)), millis)
    expected = test.get("expect", [])
    if not expected:
        raise FlafkaError(f"{location}: the test has no [[test.expect]]")
    for expectation in expected:
        _check_keys(expectation, EXPECT_KEYS, location)
        _check_patterns(expectation, location)
        component = str(expectation.get("at", ""))
        if component not in outputs:
            names = f"{', '.join(outputs)}{suggest(component, [*outputs])}"
            raise FlafkaError(f"{location}: at = {component!r} is none of {names}")
        yield from _compare(expectation, component, outputs[component])


def _events(test: Mapping[str, Any], location: str, directory: Path) -> Iterator[Event]:
    """Yield the events of a test: tables, then lines, then the lines of its file. Raises FlafkaError."""
    for table in test.get("event", []):
        _check_keys(table, EVENT_KEYS, location)
        headers = {name: str(value) for name, value in table.get("headers", {}).items()}
        for _ in range(int(table.get("repeat", 1))):
            yield Event(_body(table) or b"", headers)
    yield from (Event(str(line).encode()) for line in test.get("lines", []))
    if "file" in test:
        try:
            text = (directory / str(test["file"])).read_bytes()
        except OSError as e:
            raise FlafkaError(f"{location}: {e.filename} cannot be read: {e.strerror}") from e
        yield from (Event(line) for line in text.splitlines())


def _body(table: Mapping[str, Any]) -> bytes | None:
    """Return the body in `body_base64` or `body`; None without both."""
    if "body_base64" in table:
        return base64.b64decode(str(table["body_base64"]))
    return str(table["body"]).encode() if "body" in table else None


# --- comparison


def _compare(expected: Mapping[str, Any], component: str, outputs: Sequence[PipelineOutput]) -> Iterator[str]:
    """Yield the differences between an expectation and the events at a component: their number, then each event."""
    count = expected.get("count", len(expected["event"]) if "event" in expected else None)
    if count is not None and count != len(outputs):
        yield f"at {component}: {count} events expected, got {len(outputs)}: {_listed(outputs)}"
    for number, output in enumerate(outputs, 1):
        for difference in _compare_output(expected.get("each", {}), output):
            yield f"at {component}, event {number}: {difference}"
    for number, (pattern, output) in enumerate(zip(expected.get("event", []), outputs, strict=False), 1):
        for difference in _compare_output(pattern, output):
            yield f"at {component}, event {number}: {difference}"


def _listed(outputs: Sequence[PipelineOutput]) -> str:
    """Return the bodies of the first five events, or "none"."""
    bodies = [_text(output.event.body) for output in outputs[:5]]
    return ", ".join([*bodies, "…"] if len(outputs) > 5 else bodies) or "none"


def _compare_output(pattern: Mapping[str, Any], output: PipelineOutput) -> Iterator[str]:
    """Yield the differences of one event and its destination from a pattern."""
    destination = output.destination
    yield from _compare_event(pattern, output.event)
    if "rejected" in destination and "rejected" not in pattern and pattern:
        yield f"the sink rejects the event: {destination['rejected']}"
        return
    for key in (key for key in pattern if key not in PATTERN_KEYS):
        value = pattern[key]
        if key not in destination:
            keys = ", ".join(destination) or "none"
            hint = suggest(key, [*destination, *PATTERN_KEYS])
            yield f"{key}: this component has no such value; it has: {keys}{hint}"
        elif key == "rejected":
            if not re.search(str(value), str(destination[key])):
                yield _difference(key, f"a match of {value!r}", repr(destination[key]))
        elif not _contains(destination[key], value):
            expected_text = json.dumps(value, ensure_ascii=False)
            yield _difference(key, expected_text, json.dumps(destination[key], ensure_ascii=False))


def _compare_event(pattern: Mapping[str, Any], event: Event) -> Iterator[str]:
    """Yield the differences of an event's body and headers from a pattern."""
    text, headers, body = event.body.decode(errors="backslashreplace"), event.headers, _body(pattern)
    if body is not None and body != event.body:
        yield _difference("the body", _text(body), repr(text))
    if "body_matches" in pattern and not re.search(str(pattern["body_matches"]), text):
        yield _difference("the body", f"a match of {pattern['body_matches']!r}", repr(text))
    wrong = [(name, repr(str(v))) for name, v in pattern.get("headers", {}).items() if headers.get(name) != str(v)]
    for name, regex in pattern.get("headers_match", {}).items():
        if name not in headers or not re.search(str(regex), headers[name]):
            wrong.append((name, f"a match of {regex!r}"))
    wrong += ((name, "none") for name in pattern.get("without", []) if name in headers)
    for name, expected in wrong:
        yield _difference(f"header {name}", expected, repr(headers[name]) if name in headers else "none")


def _contains(actual: Any, expected: Any) -> bool:
    """Return True if the values are equal; of a table, only the keys of `expected` are compared, recursively."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return all(key in actual and _contains(actual[key], value) for key, value in expected.items())
    return bool(expected == actual)


def _difference(subject: str, expected: str, got: str) -> str:
    return f"{subject}\n      expected {expected}\n      got      {got}"


def _text(body: bytes) -> str:
    return repr(body.decode(errors="backslashreplace"))


# --- generation


def generate_test(spec: AgentSpec, name: str, source: str | None, events: Sequence[Event], configuration: str) -> str:
    """Return the TOML of a test that expects the present outputs for `events`.

    The pipeline runs twice: values that differ between both runs are left out. Raises FlafkaError for an unknown
    source.
    """
    chosen = find_source(spec, source)
    first, second = run_pipeline(spec, chosen, events), run_pipeline(spec, chosen, events)
    lines = [
        "# Generated from present outputs: review the expectations, and delete those that are not required.",
        f"configuration = {_quoted(configuration)}",
        f"agent = {_quoted(spec.name)}",
        "",
        "[[test]]",
        f"name = {_quoted(name)}",
        f"source = {_quoted(chosen.name)}",
    ]
    for event in events:
        lines += ["", "[[test.event]]", *_as_toml(event.body, event.headers)]
    for component, outputs in first.items():
        lines += ["", "[[test.expect]]", f"at = {_quoted(component)}", f"count = {len(outputs)}"]
        repeated = second[component]
        for output, other in zip(outputs, repeated, strict=len(outputs) == len(repeated)):
            stable = {k: v for k, v in output.event.headers.items() if other.event.headers.get(k) == v}
            body = output.event.body if output.event.body == other.event.body else None
            lines += ["", "[[test.expect.event]]", *_as_toml(body, stable)]
            for key, value in output.destination.items():
                if value is not None and other.destination.get(key) == value:
                    lines.append(f"{key} = {_value(re.escape(value) if key == 'rejected' else value)}")
    return "\n".join(lines) + "\n"


def _as_toml(body: bytes | None, headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of TOML for a body, unless it is None, and for headers."""
    if body is not None:
        try:
            yield f"body = {_quoted(body.decode())}"
        except UnicodeDecodeError:
            yield f"body_base64 = {_quoted(base64.b64encode(body).decode())}"
    if headers:
        yield f"headers = {_value(dict(headers))}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_quoted(str(k))} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def parse_events(lines: Sequence[str]) -> list[Event]:
    """Return the events in lines: each line is a body, or an object from `agent tap --json`.

    Empty lines, and events after an interceptor, are left out.
    """
    events = []
    for line in filter(None, lines):
        try:
            table = json.loads(line)
        except ValueError:
            table = None
        if not isinstance(table, dict) or not table.keys() & {"body", "body_base64"}:
            events.append(Event(line.encode()))
        elif table.get("stage") != "after":
            headers = {str(name): str(value) for name, value in (table.get("headers") or {}).items()}
            events.append(Event(_body(table) or b"", headers))
    return events

"""Pipeline tests: files in TOML that say which events come, and what becomes of them."""

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
from flafka.agent.pipeline import ARRIVAL, Outcomes, PipelineOutput, run, source_named
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components, Event, FlafkaError
from flafka.plugins.problems import suggestion

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
"""Of an expected event; what sinks tell may be named as well."""


@dataclass(frozen=True)
class PipelineTestResult:
    """One test."""

    file: str
    name: str
    differences: tuple[str, ...]
    """Empty where all is as expected."""


def tests_of(file: Path) -> Iterator[PipelineTestResult]:
    """Yield the results of a file's tests. Raises FlafkaError, which says where, if the file is no test."""
    said = _read(file)
    _known(said, FILE_KEYS, str(file))
    configuration = file.parent / str(said.get("configuration", file.name.removesuffix(SUFFIX) + ".conf"))
    spec, found = load(configuration, said.get("agent"), components=Components())
    if spec is None:
        raise FlafkaError("; ".join(str(one) for one in found if one.severity == "error"))
    tests = said.get("test", [])
    if not tests:
        raise FlafkaError(f"{file}: it has no [[test]]")
    for number, test in enumerate(tests, 1):
        name = str(test.get("name", f"test {number}"))
        yield PipelineTestResult(str(file), name, tuple(_differences(spec, test, f"{file}: {name}", file.parent)))


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as e:
        raise FlafkaError(f"{file} cannot be read: {e.strerror}") from e
    except ValueError as e:
        raise FlafkaError(f"{file} is no TOML: {e}") from e


_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "a table", datetime: "a time with its zone"}


def _known(said: Mapping[str, Any], keys: Mapping[str, Any], where: str, *, more: bool = False) -> None:
    """Raise FlafkaError for what is none of these keys, but for `more`, or of another kind."""
    for key, value in said.items():
        kind = keys.get(key)
        if kind is None:
            if more:
                continue
            raise FlafkaError(f"{where}: unknown key {key!r}{suggestion(key, [*keys])}")
        if kind is TABLES:
            if not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
                raise FlafkaError(f"{where}: {key} must be a list of tables")
        elif not isinstance(value, kind) or (kind is datetime and value.tzinfo is None):
            raise FlafkaError(f"{where}: {key} must be {_KINDS[kind]}")
    if "body_base64" in said:
        try:
            base64.b64decode(said["body_base64"], validate=True)
        except ValueError as e:
            raise FlafkaError(f"{where}: body_base64: {e}") from e


def _patterns(expected: Mapping[str, Any], where: str) -> None:
    """Raise FlafkaError for patterns that cannot be compared."""
    for one in (expected.get("each", {}), *expected.get("event", [])):
        _known(one, PATTERN_KEYS, where, more=True)
        for regex in (one.get("body_matches", ""), one.get("rejected", ""), *one.get("headers_match", {}).values()):
            try:
                re.compile(str(regex))
            except re.error as e:
                raise FlafkaError(f"{where}: {regex!r} is no regular expression: {e}") from e


def _differences(spec: AgentSpec, test: Mapping[str, Any], where: str, directory: Path) -> Iterator[str]:
    _known(test, TEST_KEYS, where)
    source = source_named(spec, test.get("source"))
    arrival = test.get("arrival")
    millis = ARRIVAL if arrival is None else int(arrival.timestamp() * 1000)
    outcomes = run(spec, source, list(_events(test, where, directory)), millis)
    expected = test.get("expect", [])
    if not expected:
        raise FlafkaError(f"{where}: it expects nothing: [[test.expect]]")
    for one in expected:
        _known(one, EXPECT_KEYS, where)
        _patterns(one, where)
        at = str(one.get("at", ""))
        if at not in outcomes:
            raise FlafkaError(f"{where}: at = {at!r} is none of {', '.join(outcomes)}{suggestion(at, [*outcomes])}")
        yield from _compared(one, outcomes, at)


def _events(test: Mapping[str, Any], where: str, directory: Path) -> Iterator[Event]:
    for one in test.get("event", []):
        _known(one, EVENT_KEYS, where)
        headers = {name: str(value) for name, value in one.get("headers", {}).items()}
        for _ in range(int(one.get("repeat", 1))):
            yield Event(_body(one) or b"", headers)
    yield from (Event(str(line).encode()) for line in test.get("lines", []))
    if "file" in test:
        try:
            text = (directory / str(test["file"])).read_bytes()
        except OSError as e:
            raise FlafkaError(f"{where}: {e.filename} cannot be read: {e.strerror}") from e
        yield from (Event(line) for line in text.splitlines())


def _body(said: Mapping[str, Any]) -> bytes | None:
    if "body_base64" in said:
        return base64.b64decode(str(said["body_base64"]))
    return str(said["body"]).encode() if "body" in said else None


# --- comparing


def _compared(expected: Mapping[str, Any], outcomes: Outcomes, at: str) -> Iterator[str]:
    came = outcomes[at]
    count = expected.get("count", len(expected["event"]) if "event" in expected else None)
    if count is not None and count != len(came):
        yield f"at {at}: {count} events expected, {len(came)} came: {_listed(came)}"
    for number, one in enumerate(came, 1):
        for different in _against(expected.get("each", {}), one):
            yield f"at {at}, event {number}: {different}"
    for number, (pattern, one) in enumerate(zip(expected.get("event", []), came, strict=False), 1):
        for different in _against(pattern, one):
            yield f"at {at}, event {number}: {different}"


def _listed(came: Sequence[PipelineOutput]) -> str:
    shown = [_text(one.event.body) for one in came[:5]]
    return ", ".join([*shown, "…"] if len(came) > 5 else shown) or "none"


def _against(pattern: Mapping[str, Any], outcome: PipelineOutput) -> Iterator[str]:
    told = outcome.told
    yield from _against_event(pattern, outcome.event)
    if "rejected" in told and "rejected" not in pattern and pattern:
        yield f"the sink rejects it: {told['rejected']}"
        return
    for word in (one for one in pattern if one not in PATTERN_KEYS):
        value = pattern[word]
        if word not in told:
            words = ", ".join(told) or "nothing"
            yield f"{word}: nobody tells it here; what is told: {words}{suggestion(word, [*told, *PATTERN_KEYS])}"
        elif word == "rejected":
            if not re.search(str(value), str(told[word])):
                yield _apart(word, f"what matches {value!r}", repr(told[word]))
        elif not _holds(value, told[word]):
            yield _apart(word, json.dumps(value, ensure_ascii=False), json.dumps(told[word], ensure_ascii=False))


def _against_event(pattern: Mapping[str, Any], event: Event) -> Iterator[str]:
    text, headers, body = event.body.decode(errors="backslashreplace"), event.headers, _body(pattern)
    if body is not None and body != event.body:
        yield _apart("the body", _text(body), repr(text))
    if "body_matches" in pattern and not re.search(str(pattern["body_matches"]), text):
        yield _apart("the body", f"what matches {pattern['body_matches']!r}", repr(text))
    wrong = [(name, repr(str(v))) for name, v in pattern.get("headers", {}).items() if headers.get(name) != str(v)]
    for name, regex in pattern.get("headers_match", {}).items():
        if name not in headers or not re.search(str(regex), headers[name]):
            wrong.append((name, f"what matches {regex!r}"))
    wrong += ((name, "none") for name in pattern.get("without", []) if name in headers)
    for name, expected in wrong:
        yield _apart(f"header {name}", expected, repr(headers[name]) if name in headers else "none")


def _holds(expected: Any, found: Any) -> bool:
    """Of tables, those keys that are expected."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(key in found and _holds(value, found[key]) for key, value in expected.items())
    return bool(expected == found)


def _apart(what: str, expected: str, got: str) -> str:
    return f"{what}\n      expected {expected}\n      got      {got}"


def _text(body: bytes) -> str:
    return repr(body.decode(errors="backslashreplace"))


# --- writing one


def written(spec: AgentSpec, name: str, source: str | None, events: Sequence[Event], configuration: str) -> str:
    """A test with these events that expects what comes out now, but for what differs from one run to the next."""
    chosen = source_named(spec, source)
    first, second = run(spec, chosen, events), run(spec, chosen, events)
    lines = [
        "# What is expected is what came out when this was written: read it, and take away what is no promise.",
        f"configuration = {_quoted(configuration)}",
        f"agent = {_quoted(spec.name)}",
        "",
        "[[test]]",
        f"name = {_quoted(name)}",
        f"source = {_quoted(chosen.name)}",
    ]
    for event in events:
        lines += ["", "[[test.event]]", *_as_toml(event.body, event.headers)]
    for at, outcomes in first.items():
        lines += ["", "[[test.expect]]", f"at = {_quoted(at)}", f"count = {len(outcomes)}"]
        again = second[at]
        for one, other in zip(outcomes, again, strict=len(outcomes) == len(again)):
            stable = {k: v for k, v in one.event.headers.items() if other.event.headers.get(k) == v}
            body = one.event.body if one.event.body == other.event.body else None
            lines += ["", "[[test.expect.event]]", *_as_toml(body, stable)]
            for word, value in one.told.items():
                if value is not None and other.told.get(word) == value:
                    lines.append(f"{word} = {_value(re.escape(value) if word == 'rejected' else value)}")
    return "\n".join(lines) + "\n"


def _as_toml(body: bytes | None, headers: Mapping[str, str]) -> Iterator[str]:
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
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def events_of_lines(lines: Sequence[str]) -> list[Event]:
    """Of what `agent tap --json` printed, or of plain lines. Of an interceptor, the events before it."""
    events = []
    for line in filter(None, lines):
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict) or not said.keys() & {"body", "body_base64"}:
            events.append(Event(line.encode()))
        elif said.get("stage") != "after":
            headers = {str(name): str(value) for name, value in (said.get("headers") or {}).items()}
            events.append(Event(_body(said) or b"", headers))
    return events

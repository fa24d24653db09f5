"""Output of real encoders, recorded by `tests/interop/encoders.py`: the same events for each encoder."""

import json
import re
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.plugins import Event
from flafka.sources.http import handlers
from flafka.sources.log4j import Log4jConfig
from flafka.sources.log4j.framing import Log4jFramer, TruncatedEvent
from flafka.sources.log4j.parser import LogEventParser
from flafka.sources.log4j.times import epoch_millis
from tests.fixtures.examples import examples
from tests.interop.encoders import DATA, LOG4J2, LOGBACK, TIMES

ROUNDED = {"template-structured": 1000}
"""Milliseconds to which an encoder rounds down."""
TRACE = """java.lang.IllegalStateException: no: really
	at Encoders.outer(Encoders.java:92)
	at Encoders.failure(Encoders.java:81)
	at Encoders.tell(Encoders.java:73)
	at Encoders.lambda$0(Encoders.java:42)
	at java.lang.Thread.run(Thread.java:840)
	Suppressed: java.io.IOException: not closed
		at Encoders.outer(Encoders.java:93)
		... 4 more
	Caused by: java.lang.RuntimeException: why not
		... 5 more
Caused by: java.lang.IllegalArgumentException: two
lines
	at Encoders.inner(Encoders.java:99)
	at Encoders.outer(Encoders.java:90)
	... 4 more"""
SHALLOW = TRACE[: TRACE.index("\n\tSuppressed")]
CLASHING = {
    "user": "jane",
    "exception": "none",
    "message": "other",
    "mdc.level": "42",
    "mdc.logger": "mine",
    "mdc.thread": "pool-x",
    "mdc.timestamp": "never",
}
FIELDS = {
    "message": "what",
    "timestamp": "when",
    "logger": "where.logger source class",
    "thread": "where.thread task",
    "stackTrace": "failure",
}
"""Configuration for templates and composites whose names no table can have."""
OWN = {"service.name", "event.dataset", "host", "HOSTNAME", "source", "source_host", "log", "arguments"}
"""Headers with metadata of the encoders."""


def recorded(name, reader=None):
    framer, reader = Log4jFramer(1 << 20), reader or LogEventParser(FIELDS, UTC)
    objects = framer.feed((DATA / f"{name}.json").read_bytes()) + framer.end()
    batch, invalid = reader.batch(objects)
    assert not invalid
    return list(batch)


def plain(body):
    """Return a trace without the parts that encoders show in different ways."""
    for pattern, text in (
        (r" ~?\[[^]]*\]$", ""),
        (r" common frames omitted$", " more"),
        (r"\bat java\.base/", "at "),
        (r"(?<=^java\.lang\.Error): null$", ""),
        # Frames of suppressed exceptions, where they are repeated instead of counted.
        (r"(?<=Encoders.java:93\)\n)(?:\t\tat .*\n){4}(?=\tCaused)", "\t\t... 4 more\n"),
        (r"(?<=why not\n)(?:\t\tat .*\n)+", "\t\t... 5 more\n"),
    ):
        body = re.sub(pattern, text, body, flags=re.MULTILINE)
    return body.replace("\t\t... 5 more\n\t\t... 5 more\n", "\t\t... 5 more\n")


@pytest.mark.parametrize("name", [*LOG4J2, *LOGBACK])
def test_every_encoder_gives_the_same_events(name):
    greeting, clash, failed, silent, arguments = events = recorded(name)
    before, after = json.loads(TIMES.read_text())[name]
    for event, level in zip(events, ("WARN", "WARN", "ERROR", "ERROR", "WARN"), strict=True):
        assert event.headers["level"] == level
        assert event.headers["logger"] == name
        assert event.headers["thread"] == "worker 1"
        assert before - ROUNDED.get(name, 1) < int(event.headers["timestamp"]) <= after
    assert greeting.body.decode() == 'grüße\n"世界"'
    assert clash.body == b"clash"
    assert plain(failed.body.decode()) == "failed\n" + (
        # These templates have neither causes nor suppressed exceptions.
        SHALLOW if name in ("template-JsonLayout", "template-structured") else TRACE
    )
    first, *frames = plain(silent.body.decode()).splitlines()[-4:]
    assert first == "java.lang.Error"
    assert frames[0] == "\tat Encoders.tell(Encoders.java:74)"
    assert arguments.body == b"two of 3"


@pytest.mark.parametrize("name", sorted({*LOG4J2, *LOGBACK} - {"json-plain"}))
def test_the_thread_context_neither_overwrites_nor_vanishes(name):
    greeting, clash, *_, arguments = recorded(name)
    standard = {"level", "logger", "thread", "timestamp"}
    context = {header for header in greeting.headers.keys() - standard - OWN if "googleapis" not in header}
    prefix = {"template-structured": "mdc.", "gelf-null": "ctx."}.get(name, "")
    assert context == {f"{prefix}user"}
    wanted = {"user": "jane"} if name == "composite-pattern" else CLASHING
    wanted = {prefix + header.removeprefix("mdc.") if prefix else header: value for header, value in wanted.items()}
    assert {header: clash.headers.get(header) for header in wanted} == wanted
    if name in LOGBACK and not name.startswith(("composite", "logback-ecs")):
        assert arguments.headers["order"] == "7"


def test_empty_fields_make_no_headers():
    for name in ("logback", "logstash-short", "json", "template-JsonLayout", "gelf", "template-EcsLayout"):
        headers = recorded(name)[-1].headers.keys() - {"order", "host", "HOSTNAME"}
        assert headers == {"level", "logger", "thread", "timestamp"}, name


def test_names_outside_of_the_tables():
    event = recorded("template-own", LogEventParser())[2]
    assert json.loads(event.body)["what"] == "failed"  # better than nothing
    assert event.headers["what"] == "failed"


def event(reader=None, /, **fields):
    return (reader or LogEventParser(zone=UTC)).event(json.dumps(fields).encode())


def test_the_options():
    properties = {"bind": "127.0.0.1", "port": "0", "field.level": "lvl", "timeZone": "Europe/Berlin"}
    _, problems = Log4jConfig.parse(properties | {"field.levle": "lvl", "timeZone": "Nowhere"})
    assert {problem.option for problem in problems} == {"field.levle", "timeZone"}
    assert "did you mean 'level'" in " ".join(problem.message for problem in problems)


@pytest.mark.parametrize(
    "number",
    ["1" + "0" * 5000],
)
def test_numbers_keep_their_digits(number):
    text = '{"message":#,"x":#,"y":[1,{"a":#}],"half":["\\ud83d",#],"mdc":{"z":#}}'.replace("#", number)
    headers = {"x": number, "y": f'[1,{{"a":{number}}}]', "half": f'["?",{number}]', "z": number}
    assert LogEventParser().event(text.encode()) == Event(number.encode(), headers)
    (event,) = handlers.log4j(text.encode(), LogEventParser())
    assert event.headers == headers


def test_a_time_without_zone():
    text = "2023-11-14 23:13:20"
    assert epoch_millis(text, None) == datetime.fromisoformat(text).timestamp() * 1000


# --- framing


@pytest.mark.parametrize(
    "name", ["ecs-array", "gelf-null", "json", "json-pretty", "json-complete", "json-joined", "json-array"]
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_events_in_any_pieces(name, step):
    data, framer, objects = (DATA / f"{name}.json").read_bytes(), Log4jFramer(1 << 20), []
    for start in range(0, len(data), step):
        objects += framer.feed(data[start : start + step])
    objects += framer.end()
    assert list(LogEventParser(zone=UTC).batch(objects)[0]) == recorded(name)


@pytest.mark.parametrize("name", ["gelf-null", "json-joined", "json-array"])
def test_the_last_event_waits_for_nothing(name):
    data = (DATA / f"{name}.json").read_bytes().rstrip(b"\r\n\0]")
    assert len(Log4jFramer(1 << 20).feed(data)) == 5


def frames(*pieces, limit=1024):
    framer = Log4jFramer(limit)
    return [frame for piece in pieces for frame in framer.feed(piece)] + framer.end()


def test_an_unfinished_event_costs_no_other_event():
    assert frames(b'{"a": [\n\t1,\n{"b": 2}\n') == [b'{"a": [', b"\t1,", b'{"b": 2}']
    assert frames(b'{"a": {\n', b" 1\n") == [b'{"a": {', b" 1"]
    assert frames(b'{"a": "}{"}\n') == [b'{"a": "}{"}']
    assert frames(b'{"a": "x}') == [b'{"a": "x}']


def test_long_events_are_cut():
    pretty = b"{\n" + b'  "a": 1,\n' * 200 + b'  "b": 2\n}\n'
    cut, after = frames(pretty, b'{"c": 3}\n')
    assert isinstance(cut, TruncatedEvent)
    assert cut == pretty[:1024]
    assert after == b'{"c": 3}'
    line, after = frames(b"x" * 5000 + b"\n", b"y\n")
    assert (type(line), len(line), after) == (TruncatedEvent, 1024, b"y")
    assert frames(b'[{"a":[{},{}]}, {"b":2}]\n[main] text\n[{"c"\n') == [
        b'{"a":[{},{}]}',
        b'{"b":2}',
        b"[main] text",
        b'[{"c"',
    ]
    assert frames(b'{"a":1}' * 1000, b"\n") == [b'{"a":1}'] * 1000


def test_a_line_that_is_nested_deep_is_kept_as_it_is():
    line = b'{"a": ' + b"[" * 100_000
    batch, invalid = LogEventParser().batch([line, b"{}"])
    assert list(batch) == [Event(line, {"log4j.status": "Invalid"}), Event(b"{}")]
    assert invalid == 1


@pytest.mark.parametrize("beginning", [b'{"a": {', b'{"a": "', b"{}"])
def test_endless_braces_take_little_time(beginning):
    data = beginning + b"}{" * 200_000 + b"\n"
    assert b"".join(frames(data, limit=1 << 20)) == data.rstrip()


@pytest.mark.parametrize("repeated", [b'{"a":{},', b"{} , ", b'{"message":"text'])
def test_small_pieces_of_a_long_line_take_time_in_proportion(repeated):
    data, start = repeated * 150_000, time.process_time()
    pieces = [data[offset : offset + 64] for offset in range(0, len(data), 64)]
    assert len(b"".join(frames(*pieces, limit=16 << 20))) >= len(data) - 6
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        b'{"message":"m","timestamp":"2026-%bx"}' % (b" " * 50_000),
        b'{"message":"m","timestamp":"2026-%bx"}' % (b"[" * 100_000),
        b'{"message":"m",%b"b":1}' % (b'"a":1,' * 5_000),
        b'{"message":"m","sequenceNumber":1,"kvpList":[%b{}]}' % (b'{"a":1},' * 5_000),
    ],
    ids=["blanks in a time", "brackets in a time", "a repeated name", "a repeated key"],
)
def test_an_object_made_to_be_slow_takes_time_in_proportion(text):
    start = time.process_time()
    batch, _ = LogEventParser().batch([text])
    assert len(batch) == 1
    assert time.process_time() - start < 5


WORDS = st.sampled_from(["message", "level", "timestamp", "mdc", "thrown", "short_message", "ecs.version", "_level"])
TEXT = st.text(st.characters(categories=None), max_size=5) | WORDS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=examples(30))
@given(st.dictionaries(TEXT, JSON, max_size=6))
def test_any_object_is_an_event(fields):
    batch, invalid = LogEventParser().batch([json.dumps(fields).encode()])
    assert (len(list(batch)), invalid) == (1, 0)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_line_without_json_stays_unchanged(lines):
    batch, invalid = LogEventParser().batch(lines)
    assert len(batch) == len(lines)
    assert invalid <= len(lines)


@given(st.binary(max_size=200), st.integers(1, 20))
def test_no_byte_outside_of_json_is_dropped(data, step):
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    joined = b"".join(frames(*pieces, limit=1 << 20))
    assert re.sub(rb"[\s\0,\[\]]", b"", joined) == re.sub(rb"[\s\0,\[\]]", b"", data)

"""What real encoders wrote, as `tests/interop/encoders.py` recorded it, becomes the same events whichever it was."""

import json
import re
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.plugins import Event
from flafka.sources.http import handlers
from flafka.sources.log4j import Log4jConfig
from flafka.sources.log4j.framing import Cut, Log4jFramer
from flafka.sources.log4j.reading import LogEventParser
from flafka.sources.log4j.times import millis
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
"""What a configuration has to say of templates and composites whose names no table can know."""
OWN = {"service.name", "event.dataset", "host", "HOSTNAME", "source", "source_host", "log", "arguments"}
"""Headers of what encoders say of themselves."""


def recorded(name, reader=None):
    framer, reader = Log4jFramer(1 << 20), reader or LogEventParser(FIELDS, UTC)
    objects = framer.feed((DATA / f"{name}.json").read_bytes()) + framer.end()
    batch, invalid = reader.batch(objects)
    assert not invalid
    return list(batch)


def plain(body):
    """A trace without what encoders show of it in different ways."""
    for pattern, text in (
        (r" ~?\[[^]]*\]$", ""),
        (r" common frames omitted$", " more"),
        (r"\bat java\.base/", "at "),
        (r"(?<=^java\.lang\.Error): null$", ""),
        # The frames of what was suppressed, where they are not counted but repeated.
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
    known = {"level", "logger", "thread", "timestamp"}
    shown = {header for header in greeting.headers.keys() - known - OWN if "googleapis" not in header}
    prefix = {"template-structured": "mdc.", "gelf-null": "ctx."}.get(name, "")
    assert shown == {f"{prefix}user"}
    wanted = {"user": "jane"} if name == "composite-pattern" else CLASHING
    wanted = {prefix + header.removeprefix("mdc.") if prefix else header: value for header, value in wanted.items()}
    assert {header: clash.headers.get(header) for header in wanted} == wanted
    if name in LOGBACK and not name.startswith(("composite", "logback-ecs")):
        assert arguments.headers["order"] == "7"


def test_what_says_nothing_makes_no_headers():
    for name in ("logback", "logstash-short", "json", "template-JsonLayout", "gelf", "template-EcsLayout"):
        headers = recorded(name)[-1].headers.keys() - {"order", "host", "HOSTNAME"}
        assert headers == {"level", "logger", "thread", "timestamp"}, name


def test_names_that_no_table_knows():
    event = recorded("template-own", LogEventParser())[2]
    assert json.loads(event.body)["what"] == "failed"  # better than nothing
    assert event.headers["what"] == "failed"


def event(reader=None, /, **fields):
    return (reader or LogEventParser(zone=UTC)).event(json.dumps(fields).encode())


def test_fields_of_the_configuration_come_first():
    reader = LogEventParser({"message": "event.text", "level": "lvl prio", "mdc": "tags", "ignored": "build"})
    fields = {"event": {"text": "hello", "id": 7}, "message": "no", "prio": "INFO", "tags": {"a": "b"}, "build": 1}
    assert event(reader, **fields) == Event(
        b"hello", {"level": "INFO", "event": '{"id":7}', "message": "no", "a": "b"}
    )


def test_the_options():
    properties = {"bind": "127.0.0.1", "port": "0", "field.level": "lvl", "timeZone": "Europe/Berlin"}
    config, problems = Log4jConfig.parse(properties)
    assert not problems
    headers = event(config.reader(), lvl="INFO", time="2023-11-14 23:13:20").headers
    assert headers == {"level": "INFO", "timestamp": "1700000000000"}
    _, problems = Log4jConfig.parse(properties | {"field.levle": "lvl", "timeZone": "Nowhere"})
    assert {problem.option for problem in problems} == {"field.levle", "timeZone"}
    assert "did you mean 'level'" in " ".join(problem.message for problem in problems)


@pytest.mark.parametrize(
    "fields",
    [
        {
            "version": "1.1",
            "short_message": "failed",
            "level": 7,
            "_level_name": "TRACE",
            "_process_pid": 1,
            "_process_thread_name": "main",
            "_log_logger": "a.B",
            "full_message": "failed\n\nE: x\n\tat y\n",
            "_error_stack_trace": "E: x\n\tat y\n",
        },
        {
            "ecs": {"version": "8.11"},
            "message": "failed",
            "log": {"level": "TRACE", "logger": "a.B"},
            "process": {"pid": 1, "thread": {"name": "main"}},
            "error": {"stack_trace": "E: x\n\tat y\n"},
        },
    ],
    ids=["GELF", "ECS"],
)
def test_names_of_spring_boot(fields):
    found = event(**fields)
    assert found.body == b"failed\nE: x\n\tat y"
    headers = {"level": "TRACE", "logger": "a.B", "thread": "main"}
    assert found.headers in ({**headers, "process_pid": "1"}, {**headers, "process": '{"pid":1}'})


def test_objects_in_objects():
    """Spring Boot nests what the Elastic Common Schema names with dots."""
    assert event(
        **{
            "@timestamp": "2023-11-14T22:13:20.123Z",
            "log": {"level": "WARN", "logger": "app.Main"},
            "process": {"pid": 7, "thread": {"name": "main"}},
            "error": {"type": "E", "stack_trace": "E: no\n\tat app.Main.run(Main.java:7)\n"},
            "message": "hello",
            "ecs": {"version": "8.11"},
        }
    ) == Event(
        b"hello\nE: no\n\tat app.Main.run(Main.java:7)",
        {
            "level": "WARN",
            "logger": "app.Main",
            "thread": "main",
            "timestamp": "1700000000123",
            "process": '{"pid":7}',
            "error": '{"type":"E"}',
        },
    )


def test_a_composite_with_usual_names():
    fields = {"@version": "1", "severity": "INFO", "msg": "hello", "time": 1700000000123, "context": {"user": "jane"}}
    assert event(**fields) == Event(b"hello", {"level": "INFO", "timestamp": "1700000000123", "user": "jane"})


def test_a_thread_context_among_own_names_is_not_taken_for_the_level():
    """A template or composite that names the level itself, and puts the thread context beside it."""
    flat = {"level": "gold", "lvl": "WARN", "message": "x"}
    assert event(**flat) == Event(b"x", {"level": "WARN", "mdc.level": "gold"})
    nested = {"level": "gold", "log": {"level": "ERROR", "logger": "app.Main"}, "message": "x"}
    assert event(**nested).headers == {"level": "ERROR", "logger": "app.Main", "mdc.level": "gold"}
    # A level of one's own is one where no other is, and what the configuration names counts before any.
    assert event(level="AUDIT", message="x").headers == {"level": "AUDIT"}
    assert event(LogEventParser({"level": "stage"}), stage="late", level="INFO").headers == {
        "level": "late",
        "mdc.level": "INFO",
    }


def test_a_thread_context_with_the_marks_of_another_encoder():
    own = {"message": "x", "level": "INFO", "logger": "app.Main", "thread": "main", "timestamp": 1700000000123}
    parts = {"level": "INFO", "logger": "app.Main", "thread": "main", "timestamp": "1700000000123"}
    for mark in ("sequenceNumber", "loggerFqcn", "@version", "ecs.version"):
        headers = event(**own, **{mark: "7"}).headers
        assert {name: headers.get(name) for name in parts} == parts, mark
    logstash = {"@version": "1", "message": "x", "level": "INFO", "stack_trace": "E: no\n\tat a.B.c(B.java:1)"}
    assert event(**logstash, ecs="cluster") == Event(
        b"x\nE: no\n\tat a.B.c(B.java:1)", {"level": "INFO", "ecs": "cluster"}
    )


def test_a_message_within_an_object():
    """`fallbackKey` of JsonTemplateLayout's resolver of messages."""
    assert event(message={"formattedMessage": "hello"}) == Event(b"hello")
    assert event(message={"text": "hello", "order": 7}) == Event(b"hello", {"message": '{"order":7}'})


def test_odd_fields():
    assert event(message={"a": 1}, level=3, mdc={"level": "mine", "n": None}, x=[1.5], y=True) == Event(
        b'{"a":1}', {"level": "ERROR", "x": "[1.5]", "y": "true", "mdc.level": "mine"}
    )
    assert event(message="half \ud83d", half="\ud83d") == Event(b"half ?", {"half": "?"})
    assert event(**{"message": "x", "half\ud83d": 1, "stack_trace": "\ud83d\n\tat x\n"}) == (
        Event(b"x\n?\n\tat x", {"half?": "1"})
    )
    assert event() == Event(b"{}")
    assert event(message="") == Event(b"")
    assert event(thrown={"name": "E", "cause": {"name": "F"}}) == Event(b"E\nCaused by: F")
    assert event(message="{} \\{} {} {}", arguments=["a", 1], sequenceNumber=0).body == b"a {} 1 {}"
    assert event(message="x", arguments=["a"], nanoseconds=0) == Event(b"x", {"arguments": '["a"]'})
    assert event(level="INFO", message="x", mdc={"level": "a", "mdc.level": "b", "log4j.status": "c"}) == (
        Event(b"x", {"level": "INFO", "mdc.level": "a", "mdc.mdc.level": "b", "mdc.log4j.status": "c"})
    )


@pytest.mark.parametrize(
    "number",
    ["1234567890.123456789", "1.10", "1E5", "-0.0", "1e999", "1" + "0" * 5000, "12345678901234567890123", "NaN"],
)
def test_numbers_keep_their_digits(number):
    text = '{"message":#,"x":#,"y":[1,{"a":#}],"half":["\\ud83d",#],"mdc":{"z":#}}'.replace("#", number)
    headers = {"x": number, "y": f'[1,{{"a":{number}}}]', "half": f'["?",{number}]', "z": number}
    assert LogEventParser().event(text.encode()) == Event(number.encode(), headers)
    (same,) = handlers.log4j(text.encode(), LogEventParser())
    assert same.headers == headers


@pytest.mark.parametrize(
    ("written", "when"),
    [
        (1700000000, 1700000000000),  # rounded seconds
        ("1700000000", 1700000000000),
        (1700000000.123456, 1700000000123),
        (1.700000000123e9, 1700000000123),
        ("1700000000.123", 1700000000123),
        (1700000000123, 1700000000123),
        ("1700000000123", 1700000000123),
        (1700000000123456, 1700000000123),
        (1700000000123456789, 1700000000123),
        ("20231114221320123", 1700000000123),
        ("2023-11-14T22:13:20.123Z", 1700000000123),
        ("2023-11-14T23:13:20.123456789+01:00[Europe/Berlin]", 1700000000123),
        ("2023-11-14T23:13:20.123+0100", 1700000000123),
        ("2023-11-14 23:13:20.123 +0100", 1700000000123),
        ("2023-11-14 22:13:20.123 UTC", 1700000000123),
        ("2023-11-14 22:13:20,123", 1700000000123),
        ("2023-11-14 22:13:20", 1700000000000),
        ("2023/11/14 22:13:20.123", 1700000000123),
        ("14 Nov 2023 22:13:20,123", 1700000000123),
        ("14/Nov/2023:23:13:20 +0100", 1700000000000),
        ("Tue, 14 Nov 2023 22:13:20 GMT", 1700000000000),
        ("Tue Nov 14 22:13:20 UTC 2023", 1700000000000),
        ("Nov 14, 2023 10:13:20 PM", 1700000000000),
        ("Nov 14, 2023, 10:13:20\u202fPM", 1700000000000),  # Java 20 and later
        ("14-Nov-2023 22:13:20.123", 1700000000123),  # Tomcat's
        ("2023-11-14T22:13:20.123 UTC", 1700000000123),
        ("20231114221320", 1700000000000),
        (20231114221320, 1700000000000),
        ("202311142213", 1699999980000),
        ("1.700000000123E9", 1700000000123),  # Java's Double
        ({"epochSecond": 1700000000, "nanoOfSecond": 123456789}, 1700000000123),
    ],
)
def test_times(written, when):
    assert millis(written, UTC) == when
    assert event(timestamp=written, message="").headers == {"timestamp": str(when)}


def test_a_time_without_zone():
    text = "2023-11-14 23:13:20"
    assert millis(text, ZoneInfo("Europe/Berlin")) == 1700000000000
    assert millis(text, None) == datetime.fromisoformat(text).timestamp() * 1000


def test_names_of_zones_are_those_of_the_zone():
    """As Java's Date writes them; elsewhere they may mean another one."""
    berlin = ZoneInfo("Europe/Berlin")
    assert millis("Tue Nov 14 23:13:20 CET 2023", berlin) == 1700000000000
    assert millis("2023-07-14 23:13:20.123 CEST", berlin) == 1689369200123
    assert millis("Tue Nov 14 23:13:20 IST 2023", berlin) is None


@pytest.mark.parametrize("written", ["yesterday", "22:13:20,123", "2023-13-14 22:13:20", 7, "7", True, [1], {"a": 1}])
def test_a_time_that_is_not_understood_is_kept(written):
    kept = written if isinstance(written, str) else json.dumps(written, separators=(",", ":"))
    assert event(message="", timestamp=written).headers == {"log4j.timestamp": kept}
    assert event(**{"message": "", "@timestamp": written, "@version": 1}).headers == {"@timestamp": kept}
    assert event(message="", timestamp=written, time=1700000000).headers["timestamp"] == "1700000000000"


# --- framing


@pytest.mark.parametrize(
    "name", ["ecs-array", "gelf-null", "json", "json-pretty", "json-complete", "json-joined", "json-array"]
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_events_however_they_come(name, step):
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


def test_what_was_never_finished_costs_no_other_event():
    assert frames(b'{"a": [\n\t1,\n{"b": 2}\n') == [b'{"a": [', b"\t1,", b'{"b": 2}']
    assert frames(b'{"a": {\n', b" 1\n") == [b'{"a": {', b" 1"]
    assert frames(b'{"a": "}{"}\n') == [b'{"a": "}{"}']
    assert frames(b'{"a": "x}') == [b'{"a": "x}']


def test_what_is_too_long_is_cut():
    pretty = b"{\n" + b'  "a": 1,\n' * 200 + b'  "b": 2\n}\n'
    cut, after = frames(pretty, b'{"c": 3}\n')
    assert isinstance(cut, Cut)
    assert cut == pretty[:1024]
    assert after == b'{"c": 3}'
    line, after = frames(b"x" * 5000 + b"\n", b"y\n")
    assert (type(line), len(line), after) == (Cut, 1024, b"y")
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
def test_braces_without_end_take_no_time_to_speak_of(beginning):
    data = beginning + b"}{" * 200_000 + b"\n"
    assert b"".join(frames(data, limit=1 << 20)) == data.rstrip()


@pytest.mark.parametrize("repeated", [b'{"a":{},', b"{} , ", b'{"message":"text'])
def test_small_pieces_of_a_long_line_take_time_in_proportion(repeated):
    data, start = repeated * 150_000, time.process_time()
    pieces = [data[at : at + 64] for at in range(0, len(data), 64)]
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
def test_what_is_no_json_stays_as_it_is(lines):
    batch, invalid = LogEventParser().batch(lines)
    assert len(batch) == len(lines)
    assert invalid <= len(lines)


@given(st.binary(max_size=200), st.integers(1, 20))
def test_no_byte_of_what_is_no_json_is_dropped(data, step):
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    kept = b"".join(frames(*pieces, limit=1 << 20))
    assert re.sub(rb"[\s\0,\[\]]", b"", kept) == re.sub(rb"[\s\0,\[\]]", b"", data)

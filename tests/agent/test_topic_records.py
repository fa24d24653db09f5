"""Records as text and JSON: what `agent topic consume` prints, and what `agent topic produce` refuses."""

from __future__ import annotations

import pytest

from flafka.agent.cli.topic_records import NewRecord, StoredRecord, parse_json
from flafka.plugins import Event, Record

RECORD = Record(7, 1_700_000_000_123, b"key", b"va\tlue", [("a", b"1"), ("b", b"\xff"), ("a", None)])
BINARY = Record(8, -1, b"\xfe", b"\x00\xff", [])
TOMBSTONE = Record(9, 0, None, None, [])


@pytest.mark.parametrize("record", [RECORD, BINARY, TOMBSTONE])
def test_a_record_in_json_is_read_back_unchanged(record: Record) -> None:
    line = StoredRecord("logs", 2, record, None).json()
    timestamp = record.timestamp if record.timestamp >= 0 else None
    assert parse_json(line.encode()) == NewRecord(record.value, record.key, [*record.headers], 2, timestamp)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (RECORD, "2\t7\t2023-11-14T22:13:20.123+00:00\ta=1,b=base64:/w==,a=null\tkey\tva\tlue"),
        (BINARY, "2\t8\t-\t-\tbase64:/g==\tbase64:AP8="),
        (TOMBSTONE, "2\t9\t1970-01-01T00:00:00.000+00:00\t-\tnull\tnull"),
    ],
)
def test_a_record_in_columns(record: Record, line: str) -> None:
    stored = StoredRecord("logs", 2, record, None)
    assert [*stored.lines(offsets=True, keys=True, headers=True, escape=False)] == [line]
    assert [*stored.lines(offsets=False, keys=False, headers=False, escape=False)] == [line.split("\t", 5)[-1]]


def test_control_characters_are_escaped_for_a_terminal_alone() -> None:
    stored = StoredRecord("logs", 0, RECORD._replace(value=b"\x1b[31mred\nline"), None)
    columns = {"offsets": False, "keys": False, "headers": False}
    assert [*stored.lines(**columns, escape=True)] == ["\\x1b[31mred\\nline"]
    assert [*stored.lines(**columns, escape=False)] == ["\x1b[31mred\nline"]


def test_events_of_a_channel_have_a_line_each() -> None:
    stored = StoredRecord("logs", 0, RECORD, [Event(b"one", {"host": "h"}), Event(b"two")])
    assert [*stored.lines(offsets=False, keys=False, headers=True, escape=False)] == ["host=h\tone", "-\ttwo"]


def test_headers_may_be_an_object() -> None:
    record = parse_json(b'{"value": "v", "headers": {"a": "1"}, "topic": "ignored", "offset": 1}')
    assert record == NewRecord(b"v", headers=[("a", b"1")])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is no JSON"),
        ("\xff", "is no JSON"),
        ("[]", "is no JSON object"),
        ("{}", "has neither value nor value_base64"),
        ('{"value": 1}', "has a value that is neither text nor null: 1"),
        ('{"value_base64": "?"}', "has a value_base64 that is no base64"),
        ('{"vlaue": "v"}', "has the field 'vlaue'"),
        ('{"value": "v", "headers": "a"}', "has headers that are neither"),
        ('{"value": "v", "headers": [{"value": "1"}]}', "has headers that are neither"),
        ('{"value": "v", "partition": "0"}', "has the partition '0'"),
        ('{"value": "v", "partition": true}', "has the partition True"),
        ('{"value": "v", "timestamp": "now"}', "has the timestamp 'now'"),
        ('{"events": []}', "has events of a channel: consume with --raw"),
    ],
)
def test_a_wrong_line_is_refused_with_the_reason(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("?", r"\?")):
        parse_json(line.encode("latin-1"))

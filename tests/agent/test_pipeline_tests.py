"""`agent test`: sample events through a configuration, and its output compared; `agent new test` writes one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main

CONFIGURATION = """\
a1.sources = s1
a1.channels = logs alerts
a1.sinks = archive rows out search
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = logs alerts
a1.sources.s1.interceptors = private level now
a1.sources.s1.interceptors.private.type = mask
a1.sources.s1.interceptors.private.patterns.word = secret
a1.sources.s1.interceptors.level.type = regex_extractor
a1.sources.s1.interceptors.level.regex = ^(\\\\w+):
a1.sources.s1.interceptors.level.serializers = a
a1.sources.s1.interceptors.level.serializers.a.name = level
a1.sources.s1.interceptors.now.type = timestamp
a1.sources.s1.interceptors.now.preserveExisting = true
a1.sources.s1.selector.type = multiplexing
a1.sources.s1.selector.header = level
a1.sources.s1.selector.mapping.ERROR = logs alerts
a1.sources.s1.selector.default = logs
a1.channels.logs.type = memory
a1.channels.alerts.type = memory
a1.sinks.archive.type = hdfs
a1.sinks.archive.hdfs.path = hdfs://namenode:8020/logs/%{level}/%Y-%m-%d
a1.sinks.archive.hdfs.timeZone = UTC
a1.sinks.archive.hdfs.webhdfs = namenode:9870
a1.sinks.archive.channel = logs
a1.sinks.rows.type = hbase
a1.sinks.rows.table = t
a1.sinks.rows.columnFamily = f
a1.sinks.rows.rowKey = %{level}
a1.sinks.rows.channel = alerts
a1.sinks.out.type = kafka
a1.sinks.out.kafka.bootstrap.servers = localhost:1
a1.sinks.out.kafka.topic = t-%{level}
a1.sinks.out.channel = alerts
a1.sinks.search.type = elasticsearch
a1.sinks.search.hostNames = localhost:1
a1.sinks.search.indexName = i
a1.sinks.search.channel = alerts
"""

TEST = """\
[[test]]
name = "errors are alerts"
[[test.event]]
body = "ERROR: a secret"
headers = { timestamp = "1767225600000" }
[[test.event]]
body = "INFO: fine"
headers = { timestamp = "1767225600000" }
repeat = 2

[[test.expect]]
at = "s1"
count = 3
each = { headers_match = { level = "^[A-Z]+$", timestamp = '^\\d+$' }, without = ["other"] }
[[test.expect]]
at = "logs"
count = 3
[[test.expect]]
at = "alerts"
event = [{ body_matches = "^ERROR: a (?!secret)", headers = { level = "ERROR" } }]
[[test.expect]]
at = "archive"
event = [{ path = "/logs/ERROR/2026-01-01" }, { path = "/logs/INFO/2026-01-01" }, {}]
[[test.expect]]
at = "rows"
event = [{ table = "t", row = "ERROR" }]
[[test.expect]]
at = "out"
event = [{ topic = "t-ERROR" }]
[[test.expect]]
at = "search"
event = [{ document = { "@fields" = { level = "ERROR" } } }]
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "agent.conf").write_text(CONFIGURATION)
    return tmp_path


def run(directory: Path, text: str, *words: str) -> Any:
    file = directory / "agent.test.toml"
    file.write_text(text)
    return CliRunner().invoke(main, ["test", str(file), *words])


def test_expected_output_passes(directory: Path) -> None:
    result = run(directory, TEST)
    assert result.exit_code == 0, result.output
    assert "1 test, 0 failed" in result.output


def test_unexpected_output_is_shown_side_by_side(directory: Path) -> None:
    wrong = TEST.replace('row = "ERROR"', 'row = "error"').replace("/logs/INFO/2026-01-01", "/logs/INFO")
    result = run(
        directory,
        wrong.replace('at = "alerts"\n', 'at = "alerts"\ncount = 2\n'),
        "--junit",
        str(directory / "out.xml"),
    )
    assert result.exit_code == 1
    lines = [line.strip() for line in result.output.splitlines()]
    index = lines.index("at rows, event 1: row")
    assert lines[index + 1 : index + 3] == ['expected "error"', 'got      "ERROR"']
    assert "at archive, event 2: path" in lines
    assert any(line.startswith("at alerts: 2 events expected, got 1: 'ERROR: a ") for line in lines)
    suite = ET.parse(directory / "out.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "event 1: row" in (failure.text or "")


def test_rejections_of_an_interceptor_are_reported(directory: Path) -> None:
    private = "a1.sources.s1.interceptors.private."
    lines = [line for line in CONFIGURATION.splitlines() if not line.startswith(private)]
    lines += [f"{private}{option}" for option in ("type = json", "fields = level", "onError = reject")]
    (directory / "agent.conf").write_text("\n".join(lines) + "\n")
    result = run(
        directory,
        """[[test]]
lines = ['{"level": "ERROR"}', "no JSON"]
[[test.expect]]
at = "s1"
event = [{ headers = { level = "ERROR" } }, { body = "no JSON", rejected = "^the body is not a JSON object" }]
[[test.expect]]
at = "logs"
count = 1
""",
    )
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('headers = { level = "ERROR" }', 'headers = { level = "WARN" }', "header level expected 'WARN' got 'ERROR'"),
        ("^ERROR: a (?!secret)", "^WARN", "the body expected a match of"),
        ('without = ["other"]', 'without = ["level"]', "header level expected none got 'ERROR'"),
        ("topic =", "topik =", "topik: this component has no such value; it has: topic, key, did you mean 'topic'?"),
        ('"@fields" = { level = "ERROR" }', '"@fields" = { level = "x" }', 'expected {"@fields": {"level": "x"}}'),
    ],
)
def test_every_difference_is_reported(directory: Path, old: str, new: str, message: str) -> None:
    assert old in TEST
    result = run(directory, TEST.replace(old, new))
    assert result.exit_code == 1, result.output
    assert message in " ".join(result.output.split())


def test_a_rejection_can_be_expected(directory: Path) -> None:
    text = """\
[[test]]
lines = ["ERROR: x"]
event = [{ body = "y", headers = { timestamp = "soon" } }]
expect = [{ at = "archive", event = [{ rejected = "timestamp" }, { path = "/logs/ERROR/2026-01-01" }] }]
"""
    result = run(directory, text)
    assert [line.strip() for line in result.output.splitlines() if " at " in line] == ["at archive, event 2: path"]


def test_an_unexpected_rejection_is_a_difference(directory: Path) -> None:
    event = '{ body = "y", headers = { timestamp = "soon" } }'
    result = run(
        directory, f"[[test]]\nevent = [{event}]\nexpect = [{{ at = 'archive', event = [{{ body = 'y' }}] }}]"
    )
    assert "at archive, event 1: the sink rejects the event: " in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file has no [[test]]"),
        ("[[test]]\nlines = ['x']", "the test has no [[test.expect]]"),
        ("[[test]]\nevnt = []", "unknown key 'evnt', did you mean 'event'?"),
        (
            "[[test]]\nlines = ['x']\nexpect = [{ at = 'alert' }]",
            "none of s1, logs, alerts, archive, rows, out, search, did",
        ),
        ("configuration = 'x.conf'\n[[test]]", "x.conf"),
        ("test = 3", "test must be a list of tables"),
        ("[[test]]\nevent = [{ headers = 3 }]\nexpect = [{ at = 's1' }]", "headers must be a table"),
        ("[[test]]\narrival = 2026-01-01T00:00:00\nexpect = [{ at = 's1' }]", "arrival must be a time with its zone"),
        ("[[test]]\nevent = [{ body_base64 = '?' }]\nexpect = [{ at = 's1' }]", "body_base64: "),
        ("[[test]]\nexpect = [{ at = 's1', each = { body_matches = '(' } }]", "'(' is no regular expression"),
        ("agent = [", "is no TOML"),
        ("[[test]]\nfile = 'none'\nexpect = [{ at = 's1' }]", "none cannot be read: No such file"),
    ],
)
def test_mistakes_of_the_file_are_reported(directory: Path, text: str, message: str) -> None:
    result = run(directory, text, "--json")
    assert result.exit_code == 2
    (mistake,) = json.loads(result.output)["mistakes"]
    assert message in mistake


def test_events_may_be_lines_of_a_file(directory: Path) -> None:
    (directory / "sample.log").write_text("ERROR: x\nfine\n")
    result = run(directory, "[[test]]\nfile = 'sample.log'\nexpect = [{ at = 'logs', count = 2 }]")
    assert result.exit_code == 0, result.output


def test_a_test_is_written_of_a_tap_and_passes(directory: Path) -> None:
    tapped = [
        {"stage": "before", "headers": {"a.b": '\x7f "x"'}, "body": "ERROR: a secret"},
        {"stage": "after", "headers": {}, "body": "ERROR: a ******"},
        {"stage": "before", "headers": {}, "body_base64": "/w=="},
    ]
    conf = str(directory / "agent.conf")
    lines = "".join(json.dumps(event) + "\n" for event in tapped)
    made = CliRunner().invoke(main, ["new", "test", "mine", "-", "-c", conf], input=lines)
    assert made.exit_code == 0, made.output
    file = directory / "mine.test.toml"
    document = tomllib.loads(file.read_text())
    (test,) = document["test"]
    assert [event["headers"] for event in test["event"] if "headers" in event] == [{"a.b": '\x7f "x"'}]
    expected = {expectation["at"]: expectation for expectation in test["expect"]}
    assert [*expected] == ["s1", "logs", "alerts", "archive", "rows", "out", "search"]
    assert "timestamp" not in expected["s1"]["event"][0]["headers"]  # another value at each run
    assert expected["out"]["event"][0]["topic"] == "t-ERROR"
    result = CliRunner().invoke(main, ["test", str(file)])
    assert result.exit_code == 0, result.output
    second = CliRunner().invoke(main, ["new", "test", "mine", "-c", conf])
    assert "exists: choose another NAME" in second.output


def test_a_name_of_two_components_is_shown_with_its_kind(tmp_path: Path) -> None:
    (tmp_path / "agent.conf").write_text(
        "a.sources = x\na.channels = c\na.sinks = x\na.sources.x.type = seq\na.sources.x.channels = c\n"
        "a.channels.c.type = memory\na.sinks.x.type = null\na.sinks.x.channel = c\n"
    )
    expect = "".join(f"[[test.expect]]\nat = '{point}'\ncount = 1\n" for point in ("sources.x", "c", "sinks.x"))
    result = run(tmp_path, f"[[test]]\nlines = ['x']\n{expect}")
    assert result.exit_code == 0, result.output


def test_the_example_of_the_documentation_is_shipped_and_passes() -> None:
    root = Path(__file__).parents[2]
    example = root / "conf/quickstart.test.toml"
    result = CliRunner().invoke(main, ["test", str(example)])
    assert result.exit_code == 0, result.output
    assert example.read_text() in (root / "docs/command-line.md").read_text()

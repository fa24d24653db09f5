# ruff: noqa: E501  # a case reads best in one line
"""Morphlines beside Kite's own library: the same file and the same records give the same result."""

from __future__ import annotations

import base64
import json
import logging
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.plugins.morphline.morphline import Morphline
from flafka.plugins.morphline.record import BODY, JsonNode, MorphlineRecord, MorphlineRuntimeError, to_java_string
from tests.interop.jvm import SOURCES, compiled

Fields = dict[str, list[Any]]


class Kite:
    """`java/Morphlines.java`, a process that runs repeatedly."""

    def __init__(self, directory: Path) -> None:
        path = compiled(SOURCES / "Morphlines.java", "morphlines", directory / "classes")
        command = java_command(find_java(), path, "Morphlines", heap_mb=128, options=[])
        self._log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8"
        )

    def runs(self, file: Path, records: list[Fields]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        encoded = [
            {
                name: [
                    {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
                    for value in values
                ]
                for name, values in record.items()
            }
            for record in records
        ]
        self.process.stdin.write(json.dumps({"file": str(file), "records": encoded}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, Path(self._log.name).read_text()[-2000:]
        reply = json.loads(answer)
        return reply.get("error") or reply["results"]


@pytest.fixture(scope="module")
def kite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kite]:
    running = Kite(tmp_path_factory.mktemp("kite"))
    yield running
    running.process.stdin.close()
    assert running.process.wait(60) == 0


def ours(file: Path, records: list[Fields]) -> Any:
    arrived: list[MorphlineRecord] = []

    def keep(record: MorphlineRecord) -> bool:
        arrived.append(record)
        return True

    try:
        morphline = Morphline(str(file), None, {}, keep, logging.getLogger("test"))
    except ValueError as e:
        return f"error: {e}"
    results = []
    for record in records:
        arrived.clear()
        success: bool | str
        try:
            success = morphline.process(MorphlineRecord({name: list(values) for name, values in record.items()}))
        except MorphlineRuntimeError:
            success = "failed"
        outputs = [{name: [describe(value) for value in output[name]] for name in output} for output in arrived]
        results.append({"success": success, "records": outputs})
    return results


def describe(value: Any) -> list[str]:
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    kinds = {str: "text", bool: "truth", float: "fraction", int: "whole", JsonNode: "json"}
    return [kinds[type(value)], to_java_string(value)]


def file_of(directory: Path, commands: str) -> Path:
    file = directory / "morphline.conf"
    file.write_text(f'morphlines : [{{ id : m, importCommands : ["org.kitesdk.**"], commands : [{commands}] }}]')
    return file


def body(content: bytes, **fields: list[Any]) -> Fields:
    return {BODY: [content], **fields}


LINES = [
    body(b"a\nb\r\n\r\nc\rd"),
    body(b""),
    {},
    body(b"\xff\xe9 caf\xc3\xa9\n#x\n"),
    body(b"one", message=["old"], h=["1"]),
]
GROK = [
    {"message": [m]}
    for m in ("Feb  4 10:46:14 syslog sshd[607]: listening on 0.0.0.0 port 22.", "x", "a=1 b=22 a=3", "")
]
TIMES = [
    "2012-09-06T07:14:34.123Z", "2012-09-06T07:14:34Z", "2012-09-06", "2012-02-31", "2012-13-45 25:61:61",
    "2012-09-06 07:14:34", "Thu Sep 6 07:14:34 2012", "Thu, 06 Sep 2012 07:14:34 GMT", "Thursday, 06-Sep-12 07:14:34 GMT",
    "6/Sep/2012:07:14:34 -0700", "Feb  4 10:46:14", "20120906", "201296", "1346915674", "1346915674000", "-5", "+7", "x", "",
    "12-9-6", "2012-11-04 01:30:00", "2012-03-11 02:30:00", "Thu Sep 6 07:14:34 PST 2012", "Thu Sep 6 07:14:34 PDT 2012",
    "2012-09-06T07:14:34+02:00", "07:14 PM", "12:14 am", "2012-250", "jan 3 99", "JANUARY 3 00", "2012-09-06 24:00:00",
    "Thu Sep 6 07:14:34 CET 2012", "Thu Sep 6 07:14:34 UTC 2012", "Thu Sep 6 07:14:34 GMT+01:00 2012", " 2012-09-06", "2012-09-06 ",
    "9999-12-31", "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.5Z", "2012-1-1T1:1:1.1234Z",
]  # fmt: skip
SPLITS = [
    {"f": [v]}
    for v in ("a,b,,c", " a , b ", "", ",", "a", ",,a", "a, ,b", "k=v", "k = v = w", "=v", "k=", "\u2003x\u00a0,y")
]
FORMATS = [
    "yyyy-MM-dd", "dd/MMM/yyyy:HH:mm:ss Z", "MMM d HH:mm:ss", "yyyyMMdd", "yy-M-d", "unixTimeInSeconds", "unixTimeInMillis",
    "yyyy-MM-dd HH:mm:ss", "EEE MMM d HH:mm:ss z yyyy", "yyyy-MM-dd'T'HH:mm:ssXXX", "hh:mm a", "yyyy-DDD", "MMM d yy",
    "kk:mm", "KK:mm a", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "'it''s' yyyy", "EEEE, dd-MMM-yy HH:mm:ss zzz", "[yyyy",
]  # fmt: skip
JSON = [
    body(content)
    for content in (
        b'{"a":{"b":[1,2.5,{"c":"x"}],"d":null,"e":true},"n":12345678901234567890,"f":1e10,"s":"\\u00e9\\n"}',
        b'{"a":1}{"a":2} {"a":[3]}', b'[{"a":1},{"a":2}]', b"", b"{", b'{"a":1} x', b"5", b'{"a":[{"b":1},{"b":[2,3]}]}',
        b'[[{"a":1}],{"a":2}]', b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff", b'{"a":0.001,"b":1.0,"c":100000000.5,"d":-0.0}',
    )
]  # fmt: skip
ANY = [{"a": ["1", "x"], "b": ["y"], "id": ["i"], "timestamp": ["2012-09-06"]}, {"a": ["x"]}, {}, {"b": [b"bytes"]}]

CASES: dict[str, tuple[str, list[Fields]]] = {
    "readLine": ("{ readLine { charset : UTF-8 } }", LINES),
    "readLine latin": ("{ readLine { charset : ISO-8859-1, ignoreFirstLine : true, commentPrefix : \"#\" } }", LINES),
    "readLine charset of the record": ("{ readLine {} }", [*LINES, body(b"a\xe9", _attachment_charset=["latin1"])]),
    "readLine twice": ("{ readLine { charset : UTF-8 } }, { readLine { charset : UTF-8 } }", LINES),
    "readLine of types": (
        "{ readLine { charset : UTF-8, supportedMimeTypes : [\"text/*\"] } }",
        [*LINES, body(b"x", _attachment_mimetype=["text/plain; charset=x"]), body(b"x", _attachment_mimetype=["a/b"])],
    ),
    "readMultiLine": (
        '{ readMultiLine { regex : """^\\s.*""", charset : UTF-8 } }',
        [*LINES, body(b"\n\n"), body(b"e\n at x\n at y\n\nf\n  g")],
    ),
    "readMultiLine next": (
        '{ readMultiLine { regex : """.*\\\\$""", what : next, negate : true, charset : UTF-8 } }',
        [*LINES, body(b"a\\\nb\nc\\\n")],
    ),
    "readClob": ("{ readClob { charset : UTF-8, outputField : text } }", LINES),
    "readBlob": ("{ readBlob { outputField : out } }", LINES),
    "readJson": ("{ readJson {} }", JSON),
    "extractJsonPaths": (
        "{ readJson {} }, { extractJsonPaths { paths : { a : /a, ab : /a/b, ab2 : \"/a/b[]\", abc : \"/a/b[]/c\","
        ' "x y" : /n, "p.q" : /s, f : f, all : "/a[]/b[]", b : /b, c : /c, d : /d } } }',
        JSON,
    ),
    "extractJsonPaths whole": (
        "{ readJson : {} }, { extractJsonPaths { flatten : false, paths { a : /a, ab : \"/a/b[]\", e : /a/e, n : /n } } }",
        JSON,
    ),
    "extractJsonPaths without readJson": ("{ extractJsonPaths { paths { a : /a } } }", [{}]),
    "readCSV": (
        '{ readCSV { separator : ",", columns : [a, "", c], charset : UTF-8 } }',
        [body(b"1,2,3,4\n\n # x\n,,\n a , b \nx"), body(b'"a,b",c\n')],
    ),
    "readCSV quoted": (
        '{ readCSV { separator : " ", columns : [ip, x], quoteChar : "\\"", commentPrefix : "#", trim : false,'
        " addEmptyStrings : false, charset : UTF-8, ignoreFirstLine : true } }",
        [
            body(b'head\n1.2.3.4 "GET / HTTP/1.1" 200\n#no\n"a ""b"" c" "d\ne" f\n""\n'), body(b'h\n"open'),
            body(b'h\na"b"c d""e "\n"'), body(b"h\n \n"),
        ],
    ),
    "readCSV too long": (
        "{ readCSV { columns : [a], maxCharactersPerRecord : 3, onMaxCharactersPerRecord : ignoreRecord, charset : UTF-8 } }",
        [body(b"abcd\nabc\nx")],
    ),
    "readCSV too long throws": (
        "{ readCSV { columns : [a], maxCharactersPerRecord : 3, charset : UTF-8 } }", [body(b"abc\nabcd\nx")]
    ),
    "grok": (
        '{ grok { dictionaryString : """\nPOSINT \\b(?:[1-9][0-9]*)\\b\nDATA .*?\nGREEDYDATA .*\n# c\nMONTH \\b(?:Jan|Feb)\\b\n'
        'TS %{MONTH} +%{DAY} %{TIME}\nDAY (?:[0-2]?[1-9]|3[01])\nTIME (?!<[0-9])[0-9:]+(?![0-9])\n'
        'NUM (?<![0-9.+-])(?>[+-]?(?:(?:[0-9]+(?:\\.[0-9]+)?)|(?:\\.[0-9]+)))""", expressions : { message : '
        '"""%{TS:timestamp} %{DATA:host} %{DATA:program}(?:\\[%{POSINT:pid}\\])?: %{GREEDYDATA:msg:x}""" } } }',
        GROK,
    ),
    "grok substrings": (
        '{ grok { findSubstrings : true, addEmptyStrings : true, extract : inplace, expressions : { message : '
        '"""(?<key>[a-z])=(?<value>\\d*)(?<none>z)?""" } } }',
        GROK,
    ),
    "grok once": (
        '{ grok { numRequiredMatches : once, extract : false, expressions : { a : """(?<v>.)""" } } }',
        [{"a": ["x", "y"]}, {"a": ["x", "yy"]}, {"a": []}, {}],
    ),
    "grok all": (
        '{ grok { numRequiredMatches : all, expressions : { a : "(?<v>.)(?<v>.)?", b : "(?<w>.+)" } } }',
        [{"a": ["x", "yz"], "b": ["1"]}, {"a": ["x", "yyy"], "b": ["1"]}, {"a": ["x"]}, {"b": ["x"]}],
    ),
    "grok two": (
        '{ grok { expressions : { a : "(?<out>.)", b : "(?<out>.+)" } } }', [{"a": ["x"], "b": ["1", "2"]}, {"a": ["x"]}]
    ),
    "split": ('{ split { inputField : f, outputField : o, separator : "," } }', SPLITS),
    "split columns": ('{ split { inputField : f, outputFields : [a, "", c], separator : "," } }', SPLITS),
    "split limit": ('{ split { inputField : f, outputField : o, separator : ",", limit : 2 } }', SPLITS),
    "split limit columns": (
        '{ split { inputField : f, outputFields : [a, b], separator : ",", limit : 2, addEmptyStrings : true, trim : false } }',
        SPLITS,
    ),
    "split regex": (
        '{ split { inputField : f, outputField : o, separator : """\\s*,\\s*""", isRegex : true, addEmptyStrings : true } }',
        SPLITS,
    ),
    "split slash": ('{ split { inputField : f, outputFields : ["", app, sub], separator : "\\/" } }', [{"f": ["/a/b/c"]}]),
    "split long": ('{ split { inputField : f, outputField : o, separator : ", " } }', SPLITS),
    "splitKeyValue": ('{ splitKeyValue { inputField : f, outputFieldPrefix : p_ } }', SPLITS),
    "splitKeyValue regex": (
        '{ splitKeyValue { inputField : f, separator : """[=,]""", isRegex : true, addEmptyStrings : true, trim : false } }',
        SPLITS,
    ),
    "addValues": (
        '{ addValues { c : "@{a}-@{b}", d : [1, 2.0, yes, true, 2.5], e : "@{a}", n : 10, m : 1.50, x.y : z, "q.r" : "@{}",'
        ' big : 1e3, huge : 12345678901234, w : "@{none}", "@timestamp" : "@{timestamp}", nothing : [] } }',
        ANY[:3],
    ),
    "addValuesIfAbsent": ('{ addValuesIfAbsent { a : [x, y, y], b : "@{a}", c : [1, 1.0, 1] } }', ANY),
    "setValues": ('{ setValues { a : "@{a}", b : "@{a}", c : [], id : [1, "1"], z : "@{b}" } }', ANY),
    "setValues in the order of a hash map": (
        '{ setValues { _attachment_body : "@{bodybak}", bodybak : [], _attachment_mimetype : [], my_offset : [] } }',
        [body(b"old", bodybak=["kept"], my_offset=["7"])],
    ),
    "values of many": (
        "{ setValues { " + ", ".join(f'{name} : "@{{{other}}}x"' for name, other in zip(string.ascii_letters, string.ascii_letters[1:], strict=False)) + " } }",
        [{name: [name] for name in string.ascii_letters}],
    ),
    "equals": ('{ equals { a : [x], b : [] } }', ANY),
    "equals field": ('{ equals { a : "@{a}", id : i } }', ANY),
    "equals numbers": ('{ addValues { n : [1, 1.5, true] } }, { equals { n : [1, 1.5, true] } }', ANY),
    "contains": ('{ contains { a : [x, 7] } }', ANY),
    "removeFields": ('{ removeFields { blacklist : ["literal:a", "regex:i.*", "glob:{b,c}*"], whitelist : ["literal:id"] } }', ANY),
    "removeFields all but": ('{ removeFields { whitelist : ["literal:a", "glob:i[!a]"] } }', ANY),
    "removeValues": ('{ removeValues { nameBlacklist : ["literal:a"], valueBlacklist : ["regex:x|y"] } }', ANY),
    "removeValues everywhere": ('{ removeValues { valueBlacklist : ["glob:?"], valueWhitelist : ["literal:y"] } }', ANY[:3]),
    "replaceValues": ('{ replaceValues { valueBlacklist : ["literal:x"], replacement : z } }', ANY[:3]),
    "toString": ("{ addValues { n : [1, 2.5, true] } }, { toString { field : n } }, { toString { field : a, trim : true } }", ANY),
    "toByteArray": ("{ toByteArray { field : a } }, { toByteArray { field : b, charset : UTF-16BE } }", ANY),
    "decodeBase64": ("{ decodeBase64 { field : a } }", [{"a": ["aGVsbG8=", "aGVsbG8", "a-_b", "x", "", "!a G V s"]}]),
    "findReplace": ('{ findReplace { field : a, pattern : x, replacement : yy } }', [{"a": ["xax", "", "b"]}, {}]),
    "findReplace regex": (
        '{ findReplace { field : a, pattern : "(?<l>[a-z])(%{D:d})", isRegex : true, replacement : "${d}$1\\\\$", replaceFirst : true,'
        ' dictionaryString : "D [0-9]" } }',
        [{"a": ["a1b2", "", "b"]}],
    ),
    "findReplace all": ('{ findReplace { field : a, pattern : "b*", isRegex : true, replacement : "-" } }', [{"a": ["abbc", ""]}]),
    "translate": ('{ translate { field : a, dictionary : { x : 1, y : z } } }', ANY),
    "translate fallback": ('{ translate { field : a, dictionary : { x : 1.5 }, fallback : "?" } }', ANY),
    "if": ('{ if { conditions : [{ equals { a : [x] } }], then : [{ addValues { t : 1 } }], else : [{ dropRecord {} }] } }, { addValues { after : 1 } }', ANY),
    "if then": ('{ if { conditions : [{ contains { a : [x] } }, { not { equals { b : [y] } } }], then : [{ logInfo { format : "x {}", args : ["@{}"] } }, { setValues { a : 0 } }] } }', ANY),
    "if grok": ('{ if { conditions : [{ not { grok { expressions : { message : """^x.*""" } } } }], then : [{ dropRecord {} }] } }', [{"message": ["xy"]}, {"message": ["y"]}]),
    "tryRules": ('{ tryRules { rules : [{ commands : [{ addValues { n : 1 } }, { equals { a : [x] } }] }, { commands : [{ equals { b : [y] } }] }] } }', ANY),
    "tryRules catches": (
        "{ tryRules { catchExceptions : true, throwExceptionIfAllRulesFailed : false, copyRecords : false, rules : ["
        "{ commands : [{ addValues { n : 1 } }, { extractJsonPaths { paths { a : /a } } }] }, { commands : [{ equals { b : [y] } }] }] } }",
        ANY,
    ),
    "pipe": ("{ pipe { id : p, commands : [{ addValues { n : 1 } }] } }, { addValues { m : 1 } }", ANY),
    "dropRecord": ("{ dropRecord {} }", ANY),
    "head": ("{ head { limit : 2 } }", ANY),
    "separateAttachments": ("{ separateAttachments {} }", [body(b"x"), {BODY: [b"a", b"b"], "_attachment_name": ["n"]}, {}]),
    "generateUUID kept": ("{ generateUUID { field : id } }", ANY[:1]),
    "addCurrentTime kept": ("{ addCurrentTime {} }", ANY[:1]),
    "a command in a row that fails": ('{ readLine { charset : UTF-8 } }, { equals { message : [a] } }', LINES),
    **{
        f"convertTimestamp {format} in {zone}": (
            f'{{ convertTimestamp {{ field : t, inputFormats : [{json.dumps(format)}], inputTimezone : {zone if format[:4] != "unix" else "UTC"}, inputLocale : en_US }} }}',
            [{"t": [time]} for time in TIMES if format != "yyyyMMdd" or len(time) < 13],
        )
        for zone, formats in (("UTC", FORMATS), ("America/Los_Angeles", ("yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ssXXX")))
        for format in formats
    },
    "convertTimestamp of all": ("{ convertTimestamp { field : t, inputLocale : en_US } }", [{"t": [time]} for time in TIMES]),
    **{
        f"convertTimestamp into {format}": (
            f'{{ convertTimestamp {{ field : t, inputFormats : [unixTimeInMillis], outputFormat : {json.dumps(format)},'
            f' outputTimezone : {"UTC" if format[:4] == "unix" else "Asia/Kolkata"}, outputLocale : en_US }} }}',
            [{"t": [time]} for time in ("0", "1346915674123", "1330473599999", "-1", "-1999", "1346915674000000")],
        )
        for format in (*FORMATS, "EEEE d MMMM yyyy", "EEE, d MMM yyyy hh:mm:ss.SSS a", "X XX XXX", "y yy yyyyy M d H k K D")
        if "z" not in format
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_command_agrees_with_kites(kite: Kite, name: str, tmp_path: Path) -> None:
    commands, records = CASES[name]
    file = file_of(tmp_path, commands)
    theirs = kite.runs(file, records)
    assert not isinstance(theirs, str), theirs
    results = ours(file, records)
    assert not isinstance(results, str), results
    for record, result, expected in zip(records, results, theirs, strict=True):
        assert result == expected, record


PIECES = st.lists(
    st.sampled_from(["a", "b1", '"', ",", "=", " ", "\n", "\r\n", "\t", "\u00e9", "\U0001f600", "[", "2012", "x=y"])
)
TEXTS = PIECES.map("".join)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {BODY: st.one_of(TEXTS.map(str.encode), st.binary(max_size=20)).map(lambda body: [body])},
        optional={name: st.lists(TEXTS, max_size=3) for name in ("message", "a", "f", "t")},
    ),
    min_size=1,
    max_size=20,
)
GENERATED = {
    "readLine": "{ readLine { charset : UTF-8 } }",
    "readMultiLine": '{ readMultiLine { regex : """^[\\s,].*$""", charset : UTF-8 } }',
    "readCSV": '{ readCSV { separator : ",", columns : [a, b], quoteChar : "\\"", charset : UTF-8 } }',
    "readCSV plain": "{ readCSV { columns : [a, b], charset : latin1, trim : false } }",
    "grok": '{ grok { extract : inplace, findSubstrings : true, expressions : { f : """(?<k>\\w+)=(?<v>[^,]*)""", a : "(?<all>.*)" } } }',
    "split": '{ split { inputField : f, outputField : o, separator : ",", limit : 3 } }',
    "split regex": '{ split { inputField : f, outputFields : [x, y], separator : """[,=]+""", isRegex : true } }',
    "splitKeyValue": "{ splitKeyValue { inputField : f } }",
    "setValues": '{ removeFields { blacklist : ["literal:_attachment_body"] } }, { setValues { f : "@{a}-@{t}", o : "@{f}", t : "@{}" } }',
    "findReplace": '{ findReplace { field : f, pattern : """(?<![a-z])([a-z])|$""", isRegex : true, replacement : "<$1>" } }',
    "toString": "{ toString { field : f, trim : true } }, { toByteArray { field : a, charset : UTF-16LE } }",
    "tryRules": (
        "{ tryRules { throwExceptionIfAllRulesFailed : false, rules : [{ commands : [{ readCSV { columns : [p], charset : UTF-8,"
        ' quoteChar : "=" } }] }, { commands : [{ contains { f : [a, ","] } }] }], catchExceptions : true } }'
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
def test_a_command_agrees_with_kites_on_any_input(kite: Kite, name: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, GENERATED[name])

    @settings(max_examples=8, deadline=None, database=None)
    @given(RECORDS)
    def check(records: list[Fields]) -> None:
        for record, result, expected in zip(records, ours(file, records), kite.runs(file, records), strict=True):
            assert result == expected, record

    check()


@settings(max_examples=10, deadline=None, database=None)
@given(st.data())
def test_times_are_read_and_written_as_in_java(
    kite: Kite, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    zones = st.sampled_from(
        ["UTC", "America/Los_Angeles", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "PST"]
    )
    number = st.integers(0, 70).map(str)
    times = st.lists(st.tuples(st.integers(1900, 2100).map(str), *[number] * 5), min_size=1, max_size=20)
    records = [{"t": ["{}-{}-{} {}:{}:{}".format(*time)]} for time in data.draw(times)]
    file = file_of(
        tmp_path_factory.mktemp("times"),
        f'{{ convertTimestamp {{ field : t, inputFormats : ["yyyy-M-d H:m:s"], inputTimezone : {data.draw(zones)},'
        f" outputFormat : \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX D EEE\", outputTimezone : {data.draw(zones)}, outputLocale : en_US }} }}",
    )
    for record, result, expected in zip(records, ours(file, records), kite.runs(file, records), strict=True):
        assert result == expected, record

"""`regex_filter`, `regex_extractor`, `search_replace`, `remove_header`: a column gives the results of its single
events, in Java's meaning of the pattern, for any bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.interceptors.regex_extractor import RegexExtractorInterceptor
from flafka.interceptors.regex_filter import RegexFilterInterceptor
from flafka.interceptors.remove_header import RemoveHeaderInterceptor
from flafka.interceptors.search_replace import SearchReplaceInterceptor
from flafka.plugins import Batch, Event, Interceptor, Origin
from flafka.plugins.java import regex

MILLIS = "org.apache.flume.interceptor.RegexExtractorInterceptorMillisSerializer"

PATTERNS = ["a", "é+", "(a)|(b)", "(a*)(b)?", "^([ab]+)(é)?$", "[^a]b", "(.)b(.)", r"\W", "(a(b)?)+c?"]
"""Patterns with the same meaning for RE2, for Java and for Python's `re`."""
PIECES = st.sampled_from([b"a", b"b", "é".encode(), b"\xff", b"\n", b"abc", b"\xc3", b" "])
BODIES = st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=8)
BACKTRACKING = st.sampled_from(["true", "false"])


def make(cls: type[Interceptor[Any]], properties: dict[str, str]) -> Any:
    config, problems = cls.config_class.parse(properties)
    assert problems == []
    return cls(config)


def through(interceptor: Any, *events: Event) -> list[Event]:
    return list(interceptor.intercept(Batch.of(events)))


def text_of(body: bytes) -> str:
    return body.decode("utf-8", "surrogateescape")


# --- one event, many events


@given(BODIES, st.sampled_from(PATTERNS), BACKTRACKING, st.booleans())
def test_filter_agrees_with_single_events(bodies: list[bytes], pattern: str, backtracking: str, drop: bool) -> None:
    interceptor = make(
        RegexFilterInterceptor,
        {"regex": pattern, "allowBacktracking": backtracking, "excludeEvents": str(drop).lower()},
    )
    batch = Batch.of([Event(body) for body in bodies], Origin.of_record("t", 0, 0, 0, len(bodies)))
    expected = [row for row, body in enumerate(bodies) if bool(re.search(pattern, text_of(body), re.A)) != drop]
    assert [id.index for id in interceptor.intercept(batch).ids()] == expected


@given(BODIES, st.sampled_from(PATTERNS[:3] + PATTERNS[5:8]), BACKTRACKING)
def test_replace_agrees_with_single_events(bodies: list[bytes], pattern: str, backtracking: str) -> None:
    interceptor = make(
        SearchReplaceInterceptor,
        {"searchPattern": pattern, "replaceString": r"<é\$>", "allowBacktracking": backtracking},
    )
    expected = [
        re.sub(pattern, "<é$>", text_of(body), flags=re.A).encode("utf-8", "surrogateescape") for body in bodies
    ]
    assert [event.body for event in through(interceptor, *map(Event, bodies))] == expected


@given(BODIES, st.sampled_from(PATTERNS), BACKTRACKING)
def test_extract_agrees_with_single_events(bodies: list[bytes], pattern: str, backtracking: str) -> None:
    names = [f"g{n}" for n in range(1, 4)]
    properties = {f"serializers.{name}.name": name for name in names}
    interceptor = make(
        RegexExtractorInterceptor,
        {"regex": pattern, "serializers": " ".join(names), "allowBacktracking": backtracking, **properties},
    )
    expected = []
    for body in bodies:
        event = Event(body, {"g1": "before", "other": "x"})
        if match := re.search(pattern, text_of(body), re.A):
            for name, value in zip(names, match.groups(), strict=False):
                event.headers.pop(name, None)
                if value is not None:
                    event.headers[name] = re.sub("[\ud800-\udfff]", "\ufffd", value)
        expected.append(event)
    events = [Event(body, {"g1": "before", "other": "x"}) for body in bodies]
    assert through(interceptor, *events) == expected


HEADERS = st.dictionaries(st.sampled_from([f"{letter}{n}" for letter in "xyz" for n in range(30)]), st.just("v"))


@given(st.lists(HEADERS.map(lambda headers: Event(b"", headers)), max_size=4))
def test_remove_header_agrees_with_single_events(events: list[Event]) -> None:
    interceptor = make(RemoveHeaderInterceptor, {"withName": "x1", "fromList": "y2 , z3", "matching": "x.|y1[0-9]"})
    removed = re.compile("x1|y2|z3|x.|y1[0-9]")
    expected = [
        Event(event.body, {name: v for name, v in event.headers.items() if not removed.fullmatch(name)})
        for event in events
    ]
    assert through(interceptor, *events) == expected


# --- patterns that RE2 cannot run

SLOW = "(a|aa)+(?!a)$"
BAD = b"a" * 60 + b"!"


@pytest.mark.parametrize(
    ("cls", "properties"),
    [
        (RegexFilterInterceptor, {"regex": SLOW, "excludeEvents": "true"}),
        (RegexExtractorInterceptor, {"regex": SLOW, "serializers": "s", "serializers.s.name": "x"}),
        (SearchReplaceInterceptor, {"searchPattern": SLOW}),
        (SearchReplaceInterceptor, {"searchPattern": SLOW, "charset": "ISO-8859-1"}),
    ],
)
def test_an_event_that_takes_too_long_becomes_a_dead_letter(
    cls: type[Interceptor[Any]], properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(regex._BOUNDED, "timeout", 0.05)
    interceptor = make(cls, properties)
    assert [event.body for event in through(interceptor, *map(Event, (b"x", BAD, b"y", BAD)))] == [b"x", b"y"]
    ((rejected, reasons),) = interceptor.take_rejected()
    assert [event.body for event in rejected] == [BAD, BAD]
    assert reasons == ["a regular expression takes longer than 2 s"] * 2


def test_an_event_with_a_header_whose_name_takes_too_long_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(regex._BOUNDED, "timeout", 0.05)
    interceptor = make(RemoveHeaderInterceptor, {"matching": "(a|aa)+(?!a)b"})
    events = [Event(b"1", {"aab": "x"}), Event(b"2", {BAD.decode(): "x"}), Event(b"3", {"k": "x"})]
    assert through(interceptor, *events) == [Event(b"1"), Event(b"3", {"k": "x"})]
    ((rejected, _),) = interceptor.take_rejected()
    assert [event.body for event in rejected] == [b"2"]


# --- options


@pytest.mark.parametrize(
    ("cls", "properties", "option", "message"),
    [
        (
            RegexFilterInterceptor,
            {"regex": "a(?!b)", "allowBacktracking": "false"},
            "regex",
            "which cannot be run in linear time: write it without, or remove allowBacktracking",
        ),
        (RegexFilterInterceptor, {"regex": "a", "excludeEvents": "yes"}, "excludeEvents", "must be true or false"),
        (RemoveHeaderInterceptor, {"matching": "("}, "matching", "missing )"),
        (RemoveHeaderInterceptor, {"fromListSeparator": "["}, "fromListSeparator", "class that is not closed"),
        (SearchReplaceInterceptor, {}, "searchPattern", "is required"),
        (SearchReplaceInterceptor, {"searchPattern": ""}, "searchPattern", "must have at least 1 characters"),
        (SearchReplaceInterceptor, {"searchPattern": "a", "replaceString": "$1"}, "replaceString", "uses group 1"),
        (SearchReplaceInterceptor, {"searchPattern": "a", "replaceString": "${x}"}, "replaceString", "a group 'x'"),
        (
            SearchReplaceInterceptor,
            {"searchPattern": "a", "charset": "NOPE"},
            "charset",
            "unknown character set 'NOPE'",
        ),
        (
            SearchReplaceInterceptor,
            {"searchPattern": "a", "charset": "base64"},
            "charset",
            "unknown character set 'base64'",
        ),
        (RegexExtractorInterceptor, {"serializers": "s", "serializers.s.name": "x"}, "regex", "is required"),
        (RegexExtractorInterceptor, {"regex": "(a)"}, "serializers", "is required"),
        (RegexExtractorInterceptor, {"regex": "(a)", "serializers": "s"}, "serializers.s.name", "is required"),
        (
            RegexExtractorInterceptor,
            {"regex": "(a)", "serializers": "s", "serializers.s.name": "x", "serializers.s.type": "com.acme.Mine"},
            "serializers.s.type",
            "the serializer of regex_extractor com.acme.Mine is a Java class, which cannot run here",
        ),
        (
            RegexExtractorInterceptor,
            {"regex": "(a)", "serializers": "s", "serializers.s.name": "x", "serializers.s.type": MILLIS},
            "serializers.s.pattern",
            "is required",
        ),
        (
            RegexExtractorInterceptor,
            {"regex": "(a)", "serializers": "s", "serializers.s.name": "x", "serializers.s.type": MILLIS}
            | {"serializers.s.pattern": "ABCDEFG"},
            "serializers.s.pattern",
            "has 'A', which is not supported",
        ),
    ],
)
def test_wrong_options_are_refused(
    cls: type[Interceptor[Any]], properties: dict[str, str], option: str, message: str
) -> None:
    config, problems = cls.config_class.parse(properties)
    assert config is None
    assert [problem.option for problem in problems] == [option]
    assert message in problems[0].message

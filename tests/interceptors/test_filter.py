"""The interceptor `filter`: which events stay."""

import pytest

from flafka.interceptors.filter import FilterConfig, FilterInterceptor
from flafka.plugins import Batch, Event, Origin

EVENTS = [
    Event(b"an ERROR here", {"level": "error", "host": "web-1"}),
    Event(b"all well", {"level": "info"}),
    Event(b"\xff\xfe ERROR \xe9", {}),
    Event(b"", {"level": "", "host": "db 1"}),
]


def kept(**properties: str) -> list[int]:
    """Numbers of the events that stay."""
    config, problems = FilterConfig.parse(properties)
    assert config is not None
    assert problems == []
    interceptor = FilterInterceptor(config)
    batch = interceptor.intercept(Batch.of(EVENTS, Origin.of_record("t", 0, 5, 0, len(EVENTS))))
    rows = [id.index for id in batch.ids()]
    assert list(batch) == [EVENTS[row] for row in rows]
    return rows


@pytest.mark.parametrize(
    ("properties", "rows"),
    [
        ({"match": "ERROR"}, [0, 2]),
        ({"match": "ERROR", "drop": "true"}, [1, 3]),
        ({"match": "^$"}, [3]),
        ({"match": ".*"}, [0, 1, 2, 3]),
        ({"match": "(?<!an )ERROR"}, [2]),
        ({"on": "level", "match": "^(?:info|error)$"}, [0, 1]),
        ({"on": "level", "match": "o", "drop": "true"}, [2, 3]),
        ({"on": "level", "match": ".*"}, [0, 1, 3]),
        ({"on": "level", "equals": "info warn"}, [1]),
        ({"on": "level", "equals": "info warn", "drop": "true"}, [0, 2, 3]),
        ({"on": "nowhere", "equals": "x"}, []),
        ({"on": "nowhere", "match": "x", "drop": "true"}, [0, 1, 2, 3]),
        ({"on": "host", "match": "^db 1$"}, [3]),
        ({"equals": "well ERROR"}, []),
    ],
)
def test_what_stays(properties: dict[str, str], rows: list[int]) -> None:
    assert kept(**properties) == rows


def test_bodies_equal_to_words() -> None:
    interceptor = FilterInterceptor(FilterConfig(equals=["ping", "pong"], drop=True))
    assert [e.body for e in interceptor.intercept(Batch.of(Event(b) for b in (b"ping", b"ping!", b"pong")))] == [
        b"ping!"
    ]


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        ({}, "match", "exactly one of match"),
        ({"match": "a", "equals": "b"}, "match", "exactly one of match"),
        ({"match": "a(?=b)", "allowBacktracking": "false"}, "match", "leave allowBacktracking out"),
        ({"match": "("}, "match", "missing )"),
        ({"match": "a", "drop": "yes"}, "drop", "must be true or false, not 'yes'"),
        ({"match": "a", "on": ""}, "on", "must have at least 1 characters, not ''"),
    ],
)
def test_what_is_wrong_is_said(properties: dict[str, str], option: str, message: str) -> None:
    config, problems = FilterConfig.parse(properties)
    assert config is None
    assert [problem.option for problem in problems] == [option]
    assert message in problems[0].message

"""Interceptors give the same for a batch of rows as for the same batch of columns."""

import random
from typing import Any

import pytest

from flafka.interceptors import components
from flafka.plugins import Batch, Event
from tests.fixtures.examples import examples
from tests.plugins.batchviews import compare, draw_events, draw_origin

TYPES = {kind.type_name: kind for kind in components()}
CASES: list[tuple[str, dict[str, str]]] = [
    ("timestamp", {"preserveExisting": "true"}),
    ("static", {"key": "host", "value": "h"}),
    ("static", {"key": "a b", "value": "ü", "preserveExisting": "false"}),
    ("host", {"useIP": "false"}),
    ("mask", {"patterns": "card email ipv4", "on": "body host timestamp"}),
    ("mask", {"patterns.x": "a(.)c", "on": "body host", "action": "hash", "key": "k"}),
    ("search_replace", {"searchPattern": "[0-9]+", "replaceString": "<$0>"}),
    ("search_replace", {"searchPattern": "é", "replaceString": "e", "charset": "ISO-8859-1"}),
    (
        "regex_extractor",
        {"regex": "(a)(b)?", "serializers": "s t", "serializers.s.name": "x", "serializers.t.name": "h1"},
    ),
    ("regex_filter", {"regex": "a", "excludeEvents": "true"}),
    ("regex_filter", {"regex": "(?=a)"}),
    ("filter", {"on": "host", "equals": "x web-1"}),
    ("filter", {"match": "[0-9]", "drop": "true"}),
    ("remove_header", {"withName": "host", "fromList": "é, body"}),
    ("remove_header", {"matching": "h[0-9]|n.*"}),
    ("sample", {"by": "host", "rate": "0.5"}),
    ("json", {"fields": "a b.c", "onError": "reject"}),
    ("json", {"fields": "a", "preserveExisting": "true", "onError": "drop"}),
]
BODIES = [
    b"abc",
    b"a",
    b"joe@a.de 10.1.2.3",
    b"4111 1111 1111 1111",
    b'{"a":"x","b":{"c":1}}',
    b"{}",
    b"caf\xe9",
    "é".encode(),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_rows_and_columns_are_intercepted_alike(kind: str, options: dict[str, str], seed: int) -> None:
    chance = random.Random(f"{seed} {kind} {options}")
    config, problems = TYPES[kind].config_class.parse(options)
    assert problems == []
    interceptor: Any = TYPES[kind](config)
    if kind == "timestamp":
        interceptor.clock = lambda: 1_700_000_000.5
    interceptor.open()
    for _ in range(examples(20)):
        events = [Event(chance.choice(BODIES), event.headers) for event in draw_events(chance)]
        origin = draw_origin(chance, len(events))
        batch = Batch.of(events, origin)
        results = [interceptor.intercept(view) for view in (batch, Batch(Batch.of(events).records, origin))]
        compare(results[0], Batch(results[1].records, results[1].origin))
        rejected = interceptor.take_rejected()
        middle = len(rejected) // 2
        assert [reasons for _, reasons in rejected[:middle]] == [reasons for _, reasons in rejected[middle:]]
        assert [list(left) for left, _ in rejected[:middle]] == [list(right) for right, _ in rejected[middle:]]
        assert list(batch) == events

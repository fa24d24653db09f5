"""Flume's own checks, where the conformance cases do not reach."""

from __future__ import annotations

import pytest

from agent.config.catalogue import FLUME, find
from agent.config.flume import java_order, validate


@pytest.mark.parametrize(
    ("names", "expected"),
    [  # seen in java.util.HashSet of OpenJDK 17
        ("k1 k2 k10 k3", ["k1", "k2", "k3", "k10"]),
        ("src1 Aa BB r2 é c", ["Aa", "BB", "r2", "c", "src1", "é"]),
    ],
)
def test_order_of_a_java_set(names: str, expected: list[str]) -> None:
    assert java_order(names.split()) == expected


def test_the_errors_of_the_one_before_are_noted_again() -> None:
    """A channel that Flume cannot make at all brings back what it noted for the one before."""
    properties = {
        "a.channels": "c1 c2 c3",
        "a.channels.c1.foo": "no type",
        "a.channels.c2.type": "x",
        "a.channels.c2.config": "bogus",
        "a.channels.c3.type": "memory",
        "a.sinks": "k",
        "a.sinks.k.type": "null",
        "a.sinks.k.channel": "c3",
    }
    agents, findings = validate(properties)
    assert agents["a"] is not None
    assert agents["a"].channels == ["c3"]
    assert [str(f) for f in findings if f.component == "c1"] == ["ERROR ATTRS_MISSING component=c1 key=type"] * 2


def test_what_flume_itself_dies_of() -> None:
    with pytest.raises(ValueError, match="sink group g names no sinks"):
        validate({"a.channels": "c", "a.channels.c.type": "memory", "a.sinkgroups": "g", "a.sinkgroups.g.x": "1"})


def test_types_are_found_by_alias_and_class_in_any_case() -> None:
    for kind, types in FLUME.items():
        for known in types:
            assert find(kind, known.java.upper()) is known
            assert find(kind, known.java.removesuffix("$Builder")) is known
            assert not known.alias or find(kind, known.alias.swapcase()) is known
    assert find("sink", "") is None

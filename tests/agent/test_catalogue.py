"""Flume's types, by alias and by class."""

from __future__ import annotations

from flafka.agent.config.catalogue import FLUME, find


def test_types_are_found_by_alias_and_class_in_any_case() -> None:
    for kind, types in FLUME.items():
        for known in types:
            assert find(kind, known.java.upper()) is known
            assert find(kind, known.java.removesuffix("$Builder")) is known
            assert not known.alias or find(kind, known.alias.swapcase()) is known
    assert find("sink", "") is None

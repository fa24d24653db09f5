"""Types of Flume by alias and by class."""

from __future__ import annotations

from flafka.agent.config.catalogue import FLUME_TYPES, find_type


def test_types_are_found_by_alias_and_class_in_any_case() -> None:
    for kind, types in FLUME_TYPES.items():
        for known in types:
            assert find_type(kind, known.java.upper()) is known
            assert find_type(kind, known.java.removesuffix("$Builder")) is known
            assert not known.alias or find_type(kind, known.alias.swapcase()) is known
    assert find_type("sink", "") is None

"""Names of Kafka topics."""

from __future__ import annotations

import re

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of the brokers themselves, which take no records of a client (`Topic.INTERNAL_TOPICS` of Kafka 4)."""


def checked_topic(name: str, *, most: int = 249) -> str:
    """Return the name of a topic of at most so many characters. Raises ValueError for one that Kafka cannot have."""
    if not name:
        raise ValueError("must not be empty")
    if name in (".", ".."):
        raise ValueError(f"must not be {name!r}, which Kafka does not take as a name")
    if wrong := re.search(r"[^a-zA-Z0-9._-]", name):
        raise ValueError(f"{name[:80]!r} must consist of A-Z, a-z, 0-9, '.', '_' and '-', and has {wrong[0]!r}")
    if len(name) > most:
        raise ValueError(f"must have at most {most} characters, not {len(name)}")
    return name


def own_topic(name: str, *, most: int = 249) -> str:
    """Return the name of a topic that clients may write to. Raises ValueError for any other name."""
    if checked_topic(name, most=most) in INTERNAL_TOPICS:
        raise ValueError(f"must not be {name!r}, a topic of the brokers themselves: name a topic of your own")
    return name

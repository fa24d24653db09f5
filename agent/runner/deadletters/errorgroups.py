"""Error groups: dead letters whose reasons differ only in values of the single event.

Plugins and servers put values of an event into their messages: an id, a field, a line. A group's key is the message
without these values. Neither plugins nor servers have to mark them: they are found by comparison with the event.
"""

from __future__ import annotations

import re

from flafka.plugins import Event, EventId

ANYTHING = "…"
"""Placeholder for a value of the single event, in the key of an error group."""
_TOKEN = re.compile(r"""(?<!\w)'[^']*'(?!\w)|(?<!\w)"[^"]*"(?!\w)|[^\s'"\[\](){}<>=,;]+""")
_MAX_CHARACTERS = 1_000
"""Longest part of a reason that is compared, in characters."""


def error_group_of(reason: str, id: EventId | None, event: Event) -> str:
    """Return the key of a reason's error group: the reason with `…` for each value of this event.

    Values are words with a digit, and texts in quotes or behind an equals sign that the event or its `id` contains.
    Names of the event's headers are no values. Only the first 1,000 characters of the reason count.
    """
    reason = reason[:_MAX_CHARACTERS]
    values = (*event.headers.values(), str(id) if id is not None else "")

    def replace(token: re.Match[str]) -> str:
        text = token[0]
        quoted = text[0] in "'\"" and len(text) > 1
        inner = text.strip("'\"").rstrip(ANYTHING) if quoted else text.rstrip(".:")
        if not inner or inner in event.headers:
            return text
        if any(char.isdigit() for char in inner):
            return ANYTHING
        may_be_value = quoted or reason[token.start() - 1 : token.start()] == "="
        in_event = may_be_value and (
            any(inner in value for value in values) or inner.encode(errors="replace") in event.body
        )
        return ANYTHING if in_event else text

    return _TOKEN.sub(replace, reason)


def merge_reasons(first: str, second: str) -> str:
    """Return the text that two reasons of one error group share, with `…` for each word that differs.

    Return `first` if the numbers of words differ. Only the first 1,000 characters count.
    """
    first_tokens, second_tokens = (_TOKEN.findall(text[:_MAX_CHARACTERS]) for text in (first, second))
    if len(first_tokens) != len(second_tokens):
        return first
    other_tokens = iter(second_tokens)
    return _TOKEN.sub(lambda token: token[0] if token[0] == next(other_tokens) else ANYTHING, first[:_MAX_CHARACTERS])


def matches_pattern(pattern: str, reason: str) -> bool:
    """Return True if a reason contains the pattern, in which `…` matches any text, also an empty one."""
    return re.search(".*".join(map(re.escape, pattern.split(ANYTHING))), reason, re.DOTALL) is not None

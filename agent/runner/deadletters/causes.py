"""What reasons of dead letters have in common: one cause, however many events it made fail.

Whoever rejects an event writes a sentence, with what is particular to that event in it: an id, a value, a line. So do
servers. Nobody has to tell the two apart: what is particular is found here, where the event is at hand.
"""

from __future__ import annotations

import re

from flafka.plugins import Event, EventId

ANYTHING = "…"
"""What stands in a cause for what is particular to an event."""
_TOKEN = re.compile(r"""(?<!\w)'[^']*'(?!\w)|(?<!\w)"[^"]*"(?!\w)|[^\s'"\[\](){}<>=,;]+""")
_LONGEST = 1_000
"""Characters of a reason that are looked at."""


def cause_of(reason: str, id: EventId | None, event: Event) -> str:
    """The reason with `…` for what is particular to this event.

    That is each word with a digit in it, and each text in quotes, or behind an equals sign, that the event itself
    contains, unless it is the name of one of its headers.
    """
    reason = reason[:_LONGEST]
    values = (*event.headers.values(), str(id) if id is not None else "")

    def cut(token: re.Match[str]) -> str:
        text = token[0]
        quoted = text[0] in "'\"" and len(text) > 1
        inner = text.strip("'\"").rstrip(ANYTHING) if quoted else text.rstrip(".:")
        if not inner or inner in event.headers:
            return text
        if any(char.isdigit() for char in inner):
            return ANYTHING
        given = quoted or reason[token.start() - 1 : token.start()] == "="
        theirs = given and (any(inner in value for value in values) or inner.encode(errors="replace") in event.body)
        return ANYTHING if theirs else text

    return _TOKEN.sub(cut, reason)


def common(one: str, other: str) -> str:
    """What two reasons of one cause share: `…` only where they differ."""
    texts = [_TOKEN.findall(text[:_LONGEST]) for text in (one, other)]
    if len(texts[0]) != len(texts[1]):
        return one
    others = iter(texts[1])
    return _TOKEN.sub(lambda token: token[0] if token[0] == next(others) else ANYTHING, one[:_LONGEST])


def matches(text: str, reason: str) -> bool:
    """Whether a reason has this text in it, where `…` stands for anything."""
    return re.search(".*".join(map(re.escape, text.split(ANYTHING))), reason, re.DOTALL) is not None

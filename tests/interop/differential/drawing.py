"""Drawn inputs: words from real logs, mutations of them, and special characters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LOGS = Path(__file__).parents[3].parent / "shared/data/loghub"
_FEW = (
    "Jun 14 15:16:01 combo sshd(pam_unix)[19939]: authentication failure; logname= uid=0 euid=0 tty=NODEVssh ruser=",
    "081109 203615 148 INFO dfs.DataNode$PacketResponder: PacketResponder 1 for block blk_388650490641 terminating",
    "2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: Created MRAppMaster",
)
ODD = (
    " ", "  ", "\t", "", "-", ":", "<", ">", "[", "]", "{", "}", "%", "$", "\\", '"', "'", ",", ";", "=", ".", "/",
    "#", "0", "1", "9", "a", "Z", "ä", "\u00a0", "\u2028", "\U0001f600", "\0", "\x7f", "\r", "\x0b", "\x0c", "\x85",
)  # fmt: skip


@cache
def lines() -> tuple[str, ...]:
    """Return lines of real logs; a few if those are absent."""
    texts = [line for file in sorted(LOGS.glob("*.log")) for line in file.read_text("utf-8", "replace").split("\n")]
    return tuple(filter(None, texts)) or _FEW


def line(draw: random.Random, max_length: int = 120) -> str:
    """Draw a real line, or the beginning of one."""
    return draw.choice(lines())[: draw.choice([8, 30, max_length, max_length])]


def mutated(draw: random.Random, text: str, odd: Sequence[str] = ODD) -> str:
    """Draw the text with a piece or two replaced, omitted, doubled or moved."""
    for _ in range(draw.choice([1, 1, 2, 3])):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 1, 1, 2, 5]))
        piece = draw.choice([draw.choice(odd), draw.choice(odd), "", text[start:end] * 2])
        text = text[:start] + piece + text[end:]
    return text


def sometimes(draw: random.Random, chance: float) -> bool:
    """Draw True with this probability."""
    return draw.random() < chance


def as_bytes(text: str) -> str:
    """Return its UTF-8 as the characters U+0000 to U+00FF."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def headers(draw: random.Random, names: Sequence[str] = ("a", "b", "host", "key", "x.y", "Key")) -> dict[str, str]:
    """Draw some headers of an event."""
    drawn = draw.sample(names, draw.choice([0, 0, 1, 2, min(3, len(names))]))
    return {name: header(draw) for name in drawn}


def header(draw: random.Random) -> str:
    """Draw the value of a header."""
    value = draw.choice(["", "1", "web", "a b", "x,y", "Ä", "a/b", "v=1", draw.choice(lines())[:12]])
    return mutated(draw, value) if sometimes(draw, 0.2) else value


def event(draw: random.Random) -> list[object]:
    """Draw headers and a body."""
    text = line(draw)
    return [headers(draw), as_bytes(mutated(draw, text) if sometimes(draw, 0.5) else text)]

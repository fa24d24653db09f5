"""Regular expressions of morphlines: Java's, with the names of grok dictionaries in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flafka.plugins.shared.javaregex import JavaPattern, replacement_parts

_REFERENCE = re.compile(r"%\{([^}:]*)(?::([^}:]*))?[^}]*\}")
_ENDS = "\n\r\x85\u2028\u2029"
"""What ends a line for Java."""
_END = f"(?!(?<=\r)\n)(?=(?:\r\n|[{_ENDS}])?\\Z)"
_DEPTH = 100


class Dictionary:
    """Named patterns, which may use one another."""

    def __init__(self) -> None:
        self._patterns: dict[str, str] = {}

    def load(self, path: Path) -> None:
        """Read a file, or all files of a directory. OSError where there is none."""
        if path.is_dir():
            for one in sorted(path.iterdir()):
                self.load(one)
        else:
            self.add(path.read_text("utf-8", "replace"))

    def add(self, text: str) -> None:
        """Read lines of a name, a blank and a pattern. ValueError for others."""
        for line in re.split(r"\r\n|\r|\n", text):
            entry = line.strip("".join(map(chr, range(33))))
            if not entry or entry.startswith("#"):
                continue
            name, _, pattern = entry.partition(" ")
            if not pattern.strip():
                raise ValueError(f"has a dictionary with the line {entry!r}, which is no name and pattern")
            self._patterns[name] = pattern.strip()

    def resolved(self, pattern: str) -> str:
        """The pattern with each `%{NAME:field}` written out. ValueError for a name that is not there."""

        def named(match: re.Match[str]) -> str:
            name, field = match.groups()
            if name not in self._patterns:
                raise ValueError(f"names the pattern {name!r}, which is in none of its dictionaries")
            inner = self._patterns[name]
            return inner if field is None else f"(?<{field}>{inner})"

        for _ in range(_DEPTH):
            before, pattern = pattern, _REFERENCE.sub(named, pattern)
            if pattern == before:
                return pattern
        raise ValueError(f"has a dictionary whose patterns use themselves, as in {pattern[:60]!r}")


class Pattern:
    """A regular expression of Java's, run by Python's `re`: back-references and look-around work.

    As with Java's, some patterns take very long on some texts.
    """

    def __init__(self, pattern: str, dictionary: Dictionary | None = None) -> None:
        if dictionary is not None:
            pattern = dictionary.resolved(pattern)
        java = JavaPattern(pattern, "re")
        self._names = java.groups
        flags = "".join(piece for piece in java.out if piece.startswith("(?") and piece[2:3].isalpha())
        words = {"\\b": r"(?u:\b)", "\\B": r"(?u:\B)"}  # of any language, unlike \w
        java_only = words | {"." if "s" not in flags else "": f"[^{_ENDS}]", "$" if "m" not in flags else "": _END}
        java.out = [java_only.get(piece, piece) for piece in java.out]
        try:
            self._regex = re.compile(java.naming_groups(), re.ASCII)
        except (re.error, OverflowError, RecursionError) as e:
            raise ValueError(f"has the regular expression {pattern!r}, which cannot be read: {e}") from None
        self.search = self._regex.search
        self.fullmatch = self._regex.fullmatch
        self.finditer = self._regex.finditer
        order = {name: number for number, name in reversed([*enumerate(self._names)]) if name}
        named = [(order[name], number, name) for number, name in enumerate(self._names, 1) if name]
        self._fields = [(number, name) for _, number, name in sorted(named)]

    def fields(self, match: re.Match[str]) -> list[tuple[str, str]]:
        """What its named groups hold, by name, in their order; not those that had no part in the match."""
        return [(name, match[number]) for number, name in self._fields if match[number] is not None]

    def replace(self, text: str, parts: Sequence[str | int], count: int) -> str:
        """The text with each match replaced, or the first `count` of them where that is not 0."""
        return self._regex.sub(
            lambda match: "".join(part if isinstance(part, str) else match[part] or "" for part in parts),
            text,
            count=count,
        )

    def replacement(self, text: str) -> tuple[str | int, ...]:
        """What Java means by a replacement; ValueError for what it cannot."""
        return replacement_parts(text, self._names)

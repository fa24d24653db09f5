"""Regular expressions of morphlines: Java's, with references to grok dictionaries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flafka.plugins.java.pattern import JavaPattern, parse_replacement

_REFERENCE = re.compile(r"%\{([^}:]*)(?::([^}:]*))?[^}]*\}")
_LINE_TERMINATORS = "\n\r\x85\u2028\u2029"
"""Line terminators of Java."""
_END_OF_TEXT = f"(?!(?<=\r)\n)(?=(?:\r\n|[{_LINE_TERMINATORS}])?\\Z)"
_MAX_DEPTH = 100


class Dictionary:
    """Named patterns, which may refer to each other."""

    def __init__(self) -> None:
        self._patterns: dict[str, str] = {}

    def load(self, path: Path) -> None:
        """Add the patterns of a file, or of all files below a directory, sorted by name.

        Raises OSError, and ValueError for a wrong line.
        """
        if path.is_dir():
            for child in sorted(path.iterdir()):
                self.load(child)
        else:
            self.add(path.read_text("utf-8", "replace"))

    def add(self, text: str) -> None:
        """Add the patterns of a text, whose lines are a name, a blank and a pattern; a later pattern of a name wins.

        Empty lines and lines that begin with `#` are skipped. Raises ValueError for any other line.
        """
        for line in re.split(r"\r\n|\r|\n", text):
            entry = line.strip("".join(map(chr, range(33))))
            if not entry or entry.startswith("#"):
                continue
            name, _, pattern = entry.partition(" ")
            if not pattern.strip():
                raise ValueError(f"has a dictionary with the line {entry!r}, which is not a name and a pattern")
            self._patterns[name] = pattern.strip()

    def resolve(self, pattern: str) -> str:
        """Return the pattern with each `%{NAME}` replaced, and `%{NAME:field}` as a group of that name.

        Raises ValueError for an unknown name, or for patterns that refer to each other in a circle.
        """

        def resolve_reference(match: re.Match[str]) -> str:
            name, field = match.groups()
            if name not in self._patterns:
                raise ValueError(f"names the pattern {name!r}, which is not in its dictionaries")
            inner = self._patterns[name]
            return inner if field is None else f"(?<{field}>{inner})"

        for _ in range(_MAX_DEPTH):
            before, pattern = pattern, _REFERENCE.sub(resolve_reference, pattern)
            if pattern == before:
                return pattern
        raise ValueError(f"has a dictionary with circular patterns, such as {pattern[:60]!r}")


class Pattern:
    """A regular expression of Java, run by Python's `re`, with back-references and look-around.

    As in Java, some patterns take exponential time on some texts. Raises ValueError for an invalid pattern.
    """

    def __init__(self, pattern: str, dictionary: Dictionary | None = None) -> None:
        if dictionary is not None:
            pattern = dictionary.resolve(pattern)
        java = JavaPattern(pattern, "re")
        self._names = java.groups
        flags = "".join(piece for piece in java.pieces if piece.startswith("(?") and piece[2:3].isalpha())
        words = {"\\b": r"(?u:\b)", "\\B": r"(?u:\B)"}  # Unicode, unlike \w
        java_only = words | {
            "." if "s" not in flags else "": f"[^{_LINE_TERMINATORS}]",
            "$" if "m" not in flags else "": _END_OF_TEXT,
        }
        java.pieces = [java_only.get(piece, piece) for piece in java.pieces]
        try:
            self._regex = re.compile(java.with_named_groups(), re.ASCII)
        except (re.error, OverflowError, RecursionError) as e:
            raise ValueError(f"has the regular expression {pattern!r}, which cannot be read: {e}") from None
        self.search = self._regex.search
        self.fullmatch = self._regex.fullmatch
        self.finditer = self._regex.finditer
        order = {name: number for number, name in reversed([*enumerate(self._names)]) if name}
        named = [(order[name], number, name) for number, name in enumerate(self._names, 1) if name]
        self._fields = [(number, name) for _, number, name in sorted(named)]

    def named_groups(self, match: re.Match[str]) -> list[tuple[str, str]]:
        """Return name and text of the named groups that took part in the match, in order of the names' first use."""
        return [(name, match[number]) for number, name in self._fields if match[number] is not None]

    def replace(self, text: str, parts: Sequence[str | int], count: int) -> str:
        """Return the text with the first `count` matches replaced by `parts`; all if 0. An absent group is empty."""
        return self._regex.sub(
            lambda match: "".join(part if isinstance(part, str) else match[part] or "" for part in parts),
            text,
            count=count,
        )

    def parse_replacement(self, text: str) -> tuple[str | int, ...]:
        """Return the parts of a replacement of Java, for `replace`. Raises ValueError with a message for the user."""
        return parse_replacement(text, self._names)

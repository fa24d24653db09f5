"""Translation of Java's regular expressions for the engines that run here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Literal

from flafka.plugins.java.characterclasses import POSIX_CLASSES, SUPPORTED_PROPERTIES, parse_property, property_ranges

Replacement = tuple[str | int, ...]
"""Replacement of a match: literal texts, and numbers of groups (0 is the whole match)."""

_LOOK_AROUND = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "an atomic group",
}
_SPACES = {"h": " \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000", "v": "\n-\r\x85\u2028\u2029"}
_ESCAPE = re.compile(
    r"""\\(?: Q(?P<quoted>.*?)(?:\\E|\Z)
            | x(?:\{(?P<hex>[0-9a-fA-F]{1,6})\}|(?P<hex2>[0-9a-fA-F]{2})) | u(?P<hex4>[0-9a-fA-F]{4})
            | 0(?P<octal>[0-3]?[0-7]{1,2}) | c(?P<control>[@-_])
            | (?P<property>[pP])(?:\{(?P<long>[\w= -]+)\}|(?P<short>[A-Z]))
            | k<(?P<reference>\w+)> | (?P<other>.) )""",
    re.DOTALL | re.VERBOSE,
)
_POSIX = re.compile(r"\[:(\w+):\]")
_CAPTURES = re.compile(r"\((?:\?P<\w+>)?")
_NAMED = re.compile(r"\(\?P?<([A-Za-z]\w*)>")
_LOOK_AROUND_START = re.compile(r"\(\?(?:<?[=!]|>)")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])")
_REPEAT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})(?:(?P<possessive>\+)|\?)?")


Engine = Literal["re2", "regex", "re"]


class NonLinearPattern(ValueError):
    """A pattern that only a backtracking engine can run, because of its `construct`, such as a look-ahead."""

    def __init__(self, message: str, construct: str) -> None:
        super().__init__(message)
        self.construct = construct


class JavaPattern:
    """A pattern of Java, translated for an engine: RE2, the library `regex`, or Python's `re`.

    Raises ValueError with a message for the user for a construct that the engine lacks, or has with another meaning.
    Raises its subclass NonLinearPattern if a backtracking engine has the construct. The engine checks the rest of the
    grammar.
    """

    def __init__(self, pattern: str, engine: Engine) -> None:
        self.pattern = pattern
        self.engine = engine
        self.backtracking = engine != "re2"
        self.pieces: list[str] = []
        """Translated parts of the pattern, in order."""
        self.groups: list[str | None] = []
        """Names of the capturing groups, in order; None for those without."""
        self._open: list[int | None] = []
        """Per open parenthesis: its index in `pieces`; None if it does not capture."""
        self._outer_group: tuple[int, int] | None = None
        """Start and end in `pieces` of a capturing group at the top level."""
        self._divided = False
        """True if an alternative or a change of flags is outside all groups."""
        position = 0
        while position < len(pattern):
            position = self._translate(position)

    def with_named_groups(self) -> str:
        """Return the pattern with every capturing group named: `g1`, `g2`, …"""
        number = itertools.count(1)
        return "".join(f"(?P<g{next(number)}>" if _CAPTURES.fullmatch(piece) else piece for piece in self.pieces)

    def split_at_group(self) -> tuple[str, str, str, str]:
        """Return the flags, and the pattern before, inside and after its only group, as four texts.

        Raises ValueError if there is not exactly one group, or if it is nested, repeated or beside an alternative.
        """
        if len(self.groups) != 1 or self._outer_group is None or self._divided:
            raise self._error(
                "may have at most one group, and that not within another group or an alternative: write other groups "
                "as (?:…)"
            )
        start, end = self._outer_group
        if end < len(self.pieces) and _REPEAT.match(self.pieces[end]):
            raise self._error("repeats its group: put the repetition into the group")
        flags = self.pieces[0] if _FLAGS.fullmatch(self.pieces[0]) else ""
        before = "".join(self.pieces[bool(flags) : start])
        return flags, before, "".join(self.pieces[start + 1 : end - 1]), "".join(self.pieces[end:])

    def _translate(self, start: int) -> int:
        """Append the translation of the construct at `start` to `pieces`; return its end. Raises ValueError."""
        character = self.pattern[start]
        if character == "\\":
            text, end = self._escape(start, in_class=False)
            self.pieces.append(text)
            return end
        if character == "[":
            text, end = self._class(start)
            self.pieces.append(text)
            return end
        if character == "(":
            return self._group(start)
        end = start + 1
        if character == ")" and self._open:
            opened = self._open.pop()
            if opened is not None and not self._open:
                self._outer_group = opened, len(self.pieces) + 1
        elif character == "|" and not self._open:
            self._divided = True
        elif repeat := _REPEAT.match(self.pattern, start):
            end = repeat.end()
            if repeat["possessive"]:
                self._require_backtracking(f"the possessive quantifier {repeat.group()}")
        # A brace that repeats nothing is literal. Unescaped, `regex` takes some for fuzzy matching, such as {e}.
        self.pieces.append(r"\{" if self.pattern[start:end] == "{" else self.pattern[start:end])
        return end

    def _group(self, start: int) -> int:
        """Append the translation of the parenthesis at `start`, with its flags; return its end. Raises ValueError."""
        named = _NAMED.match(self.pattern, start)
        if named or not self.pattern.startswith("(?", start):
            self._open.append(len(self.pieces))
            self.groups.append(named[1] if named else None)
            self.pieces.append(f"(?P<{named[1]}>" if named else "(")
            return named.end() if named else start + 1
        if flags := _FLAGS.match(self.pattern, start):
            on, off, end = flags[1], flags[2] or "", flags[3]
            # RE2 always behaves as with u and d. Its U differs from Java's, and it has no x.
            if unsupported := set(on + off) - set("-imsud"):
                raise self._error(f"has the flag {min(unsupported)!r}, which is not supported")
            on, off = re.sub("[ud]", "", on), re.sub("[ud]", "", off).rstrip("-")
            if end == ":":
                self._open.append(None)
            elif not self._open and self.pieces:
                self._divided = True
            if on or off or end == ":":
                self.pieces.append(f"(?{on}{off}{end}")
            return flags.end()
        construct = _LOOK_AROUND_START.match(self.pattern, start)
        if construct is None:
            raise self._error(f"has an unknown kind of group: {self.pattern[start : start + 4]}")
        self._require_backtracking(f"{_LOOK_AROUND[construct.group()]} {construct.group()}…)")
        self._open.append(None)
        self.pieces.append(construct.group())
        return construct.end()

    def _class(self, start: int) -> tuple[str, int]:
        """Return the translation of the character class at `start`, and its end. Raises ValueError."""
        pieces, position = ["["], start + 1
        if self.pattern.startswith("^", position):
            pieces.append("^")
            position += 1
        first = position
        while position < len(self.pattern):
            character = self.pattern[position]
            posix = _POSIX.match(self.pattern, position)
            if character == "]" and position > first:
                return "".join(pieces) + "]", position + 1
            if character == "\\":
                text, position = self._escape(position, in_class=True)
                pieces.append(text)
            elif posix and posix[1] in POSIX_CLASSES:
                raise self._error(
                    f"has {posix.group()}, which Java takes for a class of these characters: write "
                    f"\\p{{{posix[1].capitalize()}}}"
                )
            elif character == "[":
                self._require_regex("a class within a class")
                text, position = self._class(position)
                pieces.append(text)
            elif self.pattern.startswith("&&", position):
                self._require_regex("an intersection of classes (&&)", "write a look-ahead, such as (?![aeiou])[a-z]")
                pieces.append("&&")
                position += 2
            else:
                pieces.append(character if character in "^-" else _literal(character))
                position += 1
        raise self._error("has a character class that is not closed with ']'")

    def _escape(self, start: int, *, in_class: bool) -> tuple[str, int]:
        """Return the translation of the escape at `start`, and its end; `in_class` within a character class.

        Raises ValueError.
        """
        token = _ESCAPE.match(self.pattern, start)
        if token is None:
            raise self._error("ends in a single backslash")
        code = token["hex"] or token["hex2"] or token["hex4"]
        if token["quoted"] is not None:
            text = "".join(map(_literal, token["quoted"]))
        elif code or token["octal"]:
            number = int(code, 16) if code else int(token["octal"], 8)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise self._error(f"has {token.group()}, which is no character")
            text = _literal(chr(number))
        elif token["control"]:
            text = _literal(chr(ord(token["control"]) ^ 64))
        elif token["property"]:
            text = self._property(token["property"], token["long"] or token["short"], in_class)
        elif token["reference"]:
            self._require_backtracking(f"the back-reference {token.group()}")
            text = f"(?P={token['reference']})"
        else:
            text = self._escaped_letter(token["other"], in_class)
        return text, token.end()

    def _escaped_letter(self, letter: str, in_class: bool) -> str:
        """Return the translation of a backslash and this character. Raises ValueError if it is not supported."""
        if letter in "123456789" and not in_class:
            self._require_backtracking(f"the back-reference \\{letter}")
            return rf"(?:\{letter})"  # grouped, since a digit may follow
        if letter == "s" and not self.backtracking:  # \\s of RE2 lacks the vertical tab
            return r"\s\x0b" if in_class else r"[\s\x0b]"
        if letter == "S" and not self.backtracking and not in_class:
            return r"[^\s\x0b]"
        if letter in "hHvV":
            return self._set(_SPACES[letter.lower()], letter.isupper(), in_class, f"\\{letter}")
        if letter == "R" and not in_class:
            return f"(?:\r\n|[{_SPACES['v']}])"
        if letter == "e":
            return "\x1b"
        if letter == "z" and self.backtracking:
            return r"\Z"
        if letter == "Z" and not in_class:
            self._require_backtracking(r"\Z")
            return r"(?=\n?\Z)"
        if letter in "CGNXZpP" or not letter.isascii():
            raise self._error(f"has \\{letter}, which is not supported")
        if not letter.isalnum():
            return _literal(letter)
        return f"\\{letter}"

    def _property(self, kind: str, name: str, in_class: bool) -> str:
        r"""Return the translation of the class `\p{name}`, or `\P{name}` if `kind` is `P`. Raises ValueError."""
        spelling = f"\\{kind}{{{name}}}"
        if len(name) > 2 and (ascii_only := POSIX_CLASSES.get(name.lower())):
            return self._set(ascii_only, kind == "P", in_class, spelling)
        family, value = parse_property(name)
        by_name = family == "script" or (family == "category" and value not in ("LC", "LD"))
        if by_name and not self.backtracking:
            return f"\\{kind}{{{value}}}"
        if not (by_name and self.engine == "regex" and not in_class) and (inside := property_ranges(family, value)):
            return self._set(inside, kind == "P", in_class, spelling)
        if family not in ("category", "script", "block", "binary"):
            raise self._error(f"has {spelling}, which is not supported; supported are {SUPPORTED_PROPERTIES}")
        self._require_regex(spelling, "list the characters: [a-zäöü]")
        if in_class:
            raise self._error(f"has {spelling} within a character class, which is not supported beside look-around")
        return f"(?u:\\{kind}{{{'In' if family == 'block' else ''}{value}}})"

    def _set(self, ranges: str, negated: bool, in_class: bool, spelling: str) -> str:
        """Return a class of these ranges, or its inside if `in_class`.

        Raises ValueError if the engine cannot negate it.
        """
        if not in_class:
            return f"[^{ranges}]" if negated else f"[{ranges}]"
        if negated:
            self._require_regex(f"{spelling} within a character class")
            return f"[^{ranges}]"
        return ranges

    def _require_backtracking(self, construct: str) -> None:
        """Raise NonLinearPattern if the engine is RE2, which lacks this construct."""
        if not self.backtracking:
            message = f"{self._description()} has {construct}, which cannot be run in linear time"
            raise NonLinearPattern(message, construct)

    def _require_regex(self, construct: str, remedy: str = "") -> None:
        """Raise ValueError if the engine is not the library `regex`, which alone has this construct."""
        self._require_backtracking(construct)
        if self.engine == "re":
            raise self._error(f"has {construct}, which is not supported in names of files{remedy and ': '}{remedy}")

    def _error(self, fault: str) -> ValueError:
        return ValueError(f"{self._description()} {fault}")

    def _description(self) -> str:
        return f"the regular expression {self.pattern!r}"


def parse_replacement(text: str, groups: Sequence[str | None]) -> Replacement:
    """Return the parts of a replacement of Java, in order.

    `$1` and `${name}` are groups, and a backslash makes the next character literal. `groups` are the names of the
    pattern's groups. Raises ValueError with a message for the user.
    """
    parts: list[str | int] = []
    for token in re.finditer(r"\\(.)|\$\{(\w+)\}|\$([0-9]+)|([^\\$]+)|(.)", text, re.DOTALL):
        escaped, name, digits, plain, stray = token.groups()
        if stray is not None:
            raise ValueError(f"the replacement {text!r} has a {stray!r} at {token.start()}: write \\{stray}")
        if name is not None:
            if name not in groups:
                raise ValueError(f"the replacement {text!r} names a group {name!r} that the pattern does not have")
            parts.append(groups.index(name) + 1)
        elif digits is not None:
            # Java takes as many digits as name an existing group.
            length = max((n for n in range(1, len(digits) + 1) if int(digits[:n]) <= len(groups)), default=0)
            if not length:
                raise ValueError(f"the replacement {text!r} uses group {digits}; the pattern has {len(groups)}")
            parts += [int(digits[:length]), digits[length:]]
        else:
            parts.append(plain if escaped is None else escaped)
    return tuple(parts)


def _literal(character: str) -> str:
    """Return the character, escaped where a pattern gives it a meaning."""
    return f"\\{character}" if character in r"\.^$|?*+()[]{}-&~#" else character

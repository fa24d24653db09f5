"""Patterns in Java's spelling, rewritten for the engines that run here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Literal

from flafka.plugins.shared.javaproperties import ASCII, SUPPORTED, parsed, ranges

Replacement = tuple[str | int, ...]
"""Replacement of a match: texts as they are, and numbers of groups (0 is the whole match)."""

_LOOKS = {
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
_LOOK = re.compile(r"\(\?(?:<?[=!]|>)")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])")
_REPEAT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})(?:(?P<possessive>\+)|\?)?")


Engine = Literal["re2", "regex", "re"]


class NotLinear(ValueError):
    """A pattern that only an engine that backtracks can run; `what` is what it has."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class JavaPattern:
    """A pattern in Java's spelling, piece by piece in that of an engine: RE2, the library `regex`, or Python's `re`.

    Raises ValueError, in words for the user, for what the engine does not have or means otherwise. It is NotLinear
    where the other engine has it. The engine checks the rest of the grammar.
    """

    def __init__(self, pattern: str, engine: Engine) -> None:
        self.pattern = pattern
        self.engine = engine
        self.backtracking = engine != "re2"
        self.out: list[str] = []
        self.groups: list[str | None] = []
        """Names of the capturing groups, in order; None for those without."""
        self._open: list[int | None] = []
        """For each parenthesis not yet closed: where in `out` it stands if it captures."""
        self._outer_group: tuple[int, int] | None = None
        """Place in `out` of a capturing group that is in no other group."""
        self._divided = False
        """True where an alternative or a change of flags stands outside all groups."""
        position = 0
        while position < len(pattern):
            position = self._piece(position)

    def naming_groups(self) -> str:
        """The pattern with every capturing group named: `g1`, `g2`, …"""
        number = itertools.count(1)
        return "".join(f"(?P<g{next(number)}>" if _CAPTURES.fullmatch(piece) else piece for piece in self.out)

    def isolated(self) -> tuple[str, str, str, str]:
        """Flags, what is before the only group, the group, and what is after it."""
        if len(self.groups) != 1 or self._outer_group is None or self._divided:
            raise self._error(
                "may have at most one group, and that not within another group or an alternative: write other groups "
                "as (?:…)"
            )
        start, end = self._outer_group
        if end < len(self.out) and _REPEAT.match(self.out[end]):
            raise self._error("repeats its group: put the repetition into the group")
        flags = self.out[0] if _FLAGS.fullmatch(self.out[0]) else ""
        before = "".join(self.out[bool(flags) : start])
        return flags, before, "".join(self.out[start + 1 : end - 1]), "".join(self.out[end:])

    def _piece(self, start: int) -> int:
        """Translate what stands at `start`; answer where it ends."""
        character = self.pattern[start]
        if character == "\\":
            text, end = self._escape(start, in_class=False)
            self.out.append(text)
            return end
        if character == "[":
            text, end = self._class(start)
            self.out.append(text)
            return end
        if character == "(":
            return self._group(start)
        end = start + 1
        if character == ")" and self._open:
            opened = self._open.pop()
            if opened is not None and not self._open:
                self._outer_group = opened, len(self.out) + 1
        elif character == "|" and not self._open:
            self._divided = True
        elif repeat := _REPEAT.match(self.pattern, start):
            end = repeat.end()
            if repeat["possessive"]:
                self._needs_backtracking(f"the possessive quantifier {repeat.group()}")
        # A brace that repeats nothing is one: `regex` would read some as how much a match may differ.
        self.out.append(r"\{" if self.pattern[start:end] == "{" else self.pattern[start:end])
        return end

    def _group(self, start: int) -> int:
        named = _NAMED.match(self.pattern, start)
        if named or not self.pattern.startswith("(?", start):
            self._open.append(len(self.out))
            self.groups.append(named[1] if named else None)
            self.out.append(f"(?P<{named[1]}>" if named else "(")
            return named.end() if named else start + 1
        if flags := _FLAGS.match(self.pattern, start):
            on, off, end = flags[1], flags[2] or "", flags[3]
            # u is RE2's nature, d too; its U means something else, and x nothing.
            if wrong := set(on + off) - set("-imsud"):
                raise self._error(f"has the flag {min(wrong)!r}, which is not supported")
            on, off = re.sub("[ud]", "", on), re.sub("[ud]", "", off).rstrip("-")
            if end == ":":
                self._open.append(None)
            elif not self._open and self.out:
                self._divided = True
            if on or off or end == ":":
                self.out.append(f"(?{on}{off}{end}")
            return flags.end()
        look = _LOOK.match(self.pattern, start)
        if look is None:
            raise self._error(f"has an unknown kind of group: {self.pattern[start : start + 4]}")
        self._needs_backtracking(f"{_LOOKS[look.group()]} {look.group()}…)")
        self._open.append(None)
        self.out.append(look.group())
        return look.end()

    def _class(self, start: int) -> tuple[str, int]:
        """The class that begins there, and where it ends."""
        out, position = ["["], start + 1
        if self.pattern.startswith("^", position):
            out.append("^")
            position += 1
        first = position
        while position < len(self.pattern):
            character = self.pattern[position]
            posix = _POSIX.match(self.pattern, position)
            if character == "]" and position > first:
                return "".join(out) + "]", position + 1
            if character == "\\":
                text, position = self._escape(position, in_class=True)
                out.append(text)
            elif posix and posix[1] in ASCII:
                raise self._error(
                    f"has {posix.group()}, which Java takes for a class of these characters: write "
                    f"\\p{{{posix[1].capitalize()}}}"
                )
            elif character == "[":
                self._needs_regex("a class within a class")
                text, position = self._class(position)
                out.append(text)
            elif self.pattern.startswith("&&", position):
                self._needs_regex("an intersection of classes (&&)", "write a look-ahead, such as (?![aeiou])[a-z]")
                out.append("&&")
                position += 2
            else:
                out.append(character if character in "^-" else _literal(character))
                position += 1
        raise self._error("has a character class that is not closed with ']'")

    def _escape(self, start: int, *, in_class: bool) -> tuple[str, int]:
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
            self._needs_backtracking(f"the back-reference {token.group()}")
            text = f"(?P={token['reference']})"
        else:
            text = self._letter(token["other"], in_class)
        return text, token.end()

    def _letter(self, letter: str, in_class: bool) -> str:
        if letter in "123456789" and not in_class:
            self._needs_backtracking(f"the back-reference \\{letter}")
            return rf"(?:\{letter})"  # a digit may follow
        if letter == "s" and not self.backtracking:  # RE2 leaves the vertical tab out
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
            self._needs_backtracking(r"\Z")
            return r"(?=\n?\Z)"
        if letter in "CGNXZpP" or not letter.isascii():
            raise self._error(f"has \\{letter}, which is not supported")
        if not letter.isalnum():
            return _literal(letter)
        return f"\\{letter}"

    def _property(self, kind: str, name: str, in_class: bool) -> str:
        spelling = f"\\{kind}{{{name}}}"
        if len(name) > 2 and (ascii_only := ASCII.get(name.lower())):
            return self._set(ascii_only, kind == "P", in_class, spelling)
        family, value = parsed(name)
        by_name = family == "script" or (family == "category" and value not in ("LC", "LD"))
        if by_name and not self.backtracking:
            return f"\\{kind}{{{value}}}"
        if not (by_name and self.engine == "regex" and not in_class) and (inside := ranges(family, value)):
            return self._set(inside, kind == "P", in_class, spelling)
        if family not in ("category", "script", "block", "binary"):
            raise self._error(f"has {spelling}, which is not supported; supported are {SUPPORTED}")
        self._needs_regex(spelling, "list the characters: [a-zäöü]")
        if in_class:
            raise self._error(f"has {spelling} within a character class, which is not supported beside look-around")
        return f"(?u:\\{kind}{{{'In' if family == 'block' else ''}{value}}})"

    def _set(self, ranges: str, negated: bool, in_class: bool, spelling: str) -> str:
        if not in_class:
            return f"[^{ranges}]" if negated else f"[{ranges}]"
        if negated:
            self._needs_regex(f"{spelling} within a character class")
            return f"[^{ranges}]"
        return ranges

    def _needs_backtracking(self, what: str) -> None:
        if not self.backtracking:
            raise NotLinear(f"{self._named()} has {what}, which cannot be run in linear time", what)

    def _needs_regex(self, what: str, way_out: str = "") -> None:
        self._needs_backtracking(what)
        if self.engine == "re":
            raise self._error(f"has {what}, which is not supported in names of files{way_out and ': '}{way_out}")

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self._named()} {what}")

    def _named(self) -> str:
        return f"the regular expression {self.pattern!r}"


def replacement_parts(text: str, groups: Sequence[str | None]) -> Replacement:
    """Parse a replacement of Java's: `$1`, `${name}` are groups, a backslash makes the next one literal.

    `groups` are the names of the pattern's groups. Raises ValueError, in words for the user.
    """
    parts: list[str | int] = []
    for token in re.finditer(r"\\(.)|\$\{(\w+)\}|\$([0-9]+)|([^\\$]+)|(.)", text, re.DOTALL):
        escaped, name, digits, plain, wrong = token.groups()
        if wrong is not None:
            raise ValueError(f"the replacement {text!r} has a {wrong!r} at {token.start()}: write \\{wrong}")
        if name is not None:
            if name not in groups:
                raise ValueError(f"the replacement {text!r} names a group {name!r} that the pattern does not have")
            parts.append(groups.index(name) + 1)
        elif digits is not None:
            # Java takes as many digits as still make a group there is.
            length = max((n for n in range(1, len(digits) + 1) if int(digits[:n]) <= len(groups)), default=0)
            if not length:
                raise ValueError(f"the replacement {text!r} uses group {digits}; the pattern has {len(groups)}")
            parts += [int(digits[:length]), digits[length:]]
        else:
            parts.append(plain if escaped is None else escaped)
    return tuple(parts)


def _literal(character: str) -> str:
    return f"\\{character}" if character in r"\.^$|?*+()[]{}-&~#" else character

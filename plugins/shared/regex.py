"""A user's regular expression, compiled once and run over columns.

RE2 runs it, through Arrow: in time linear in the text, whatever the pattern and whatever a sender sends. Patterns are
written as for Java, since that is what Flume's users have: `(?<name>…)`, `\\Q…\\E`, `\\p{Alpha}`, `\\h`. Replacements
have `$1` or `${name}`. What RE2 cannot run (look-around, back-references, possessive quantifiers, atomic groups) is
run by the library `regex`, event by event. It backtracks, so that a pattern can take for ever on some texts: it gives
up after `LONGEST` seconds, and other threads run meanwhile.

What differs from Java: `$` is the end of the text, not also the place before a last newline. `.` stops at newlines
only. With RE2, an empty match right after another match is not replaced.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import Array
from flafka.plugins.problems import Problem
from flafka.plugins.shared.javaproperties import SUPPORTED
from flafka.plugins.shared.javaregex import JavaPattern, NotLinear, Replacement, replacement_parts

if TYPE_CHECKING:
    from regex import Match, Pattern

T = TypeVar("T")
LONGEST = 2.0
"""Seconds of the process's time that one text may take where RE2 does not run the pattern; most take microseconds."""
_MARK = "\ud800".encode("utf-8", "surrogatepass")
"""Set around matches. It occurs in no text: UTF-8 has no surrogates, and odd bytes become others, from U+DC80 on."""


class TooSlow(Exception):
    """Some rows of a column took longer than `LONGEST`."""

    reason = f"a regular expression is not done with it after {LONGEST:.0f} s"

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(self.reason)
        self.rows = rows


class Regex:
    """One pattern, over columns of bodies (`binary`) or of a header (`dictionary<string>`).

    It reads bytes as UTF-8. A byte that is not UTF-8 is a character of its own, which `.` and negated classes match
    and nothing else does. Outside the match it survives as it is. Nulls stay null.

    With `isolate`, a pattern with a group stands for that group alone: what surrounds the group must be there but is
    not replaced. With `whole`, it must match all of a text.

    `backtracking` says which engine runs it: False RE2, True the other, None RE2 if it can. Where it is the other,
    each method may raise TooSlow.

    Raises ValueError, in words for the user, for a pattern that cannot be run. It is NotLinear if only because
    `backtracking` is False.
    """

    def __init__(
        self, pattern: str, *, backtracking: bool | None = False, isolate: bool = False, whole: bool = False
    ) -> None:
        self.pattern = pattern
        self.backtracks = ""
        """Construct that RE2 cannot run, where another engine runs the pattern for that."""
        try:
            java = JavaPattern(pattern, "regex" if backtracking else "re2")
        except NotLinear as e:
            if backtracking is False:
                raise
            self.backtracks, backtracking = e.what, True
            java = JavaPattern(pattern, "regex")
        self.groups = java.groups
        """Names of the capturing groups, in order; None for those without."""
        self._re2 = rf"\A(?:{''.join(java.out)})\z" if whole else "".join(java.out)
        self._naming = java.naming_groups() if self.groups else ""
        self._python: Pattern[str] | None = None
        self._whole = whole
        self._isolated = isolate and bool(self.groups)
        if self._isolated:
            flags, before, group, after = java.isolated()
            self._re2 = f"{flags}({before})({group})({after})"
        if backtracking:
            self._python = _compiled(java)
            return
        try:
            pc.match_substring_regex(pa.nulls(1, pa.string()), pattern=self._re2)
        except pa.ArrowInvalid as e:
            reason = str(e).removeprefix("Invalid regular expression: ")
            if (unknown := reason.removeprefix("invalid character class range: ")) != reason and "p{" in unknown:
                reason = f"there is no {unknown}; supported are {SUPPORTED}"
            raise ValueError(f"the regular expression {pattern!r} cannot be read: {reason}") from None

    def note(self, option: str) -> Iterator[Problem]:
        """Yield a note if another engine than RE2 runs the pattern of this option."""
        if self.backtracks:
            message = (
                f"has {self.backtracks}, so it is matched event by event, which is slower; an event that takes it "
                f"longer than {LONGEST:.0f} s becomes a dead letter"
            )
            yield Problem(option, message, note=True)

    def matches(self, column: Array) -> Array:
        """Return a boolean array: true for rows in which it occurs, or which are all of it."""
        if pa.types.is_dictionary(column.type):
            return _by_value(column, self.matches)
        if self._python is not None:
            search = self._python.fullmatch if self._whole else self._python.search
            return pa.array(_each(column, lambda text: search(text, **_BOUNDED) is not None), pa.bool_())
        return pc.match_substring_regex(_readable(column)[0], pattern=self._re2)

    def extract(self, column: Array) -> tuple[Array, list[Array]]:
        """Return a boolean array of the bodies in which it occurs, and what each group holds where it first does.

        A group's array is of text, null where there is no match or the group had no part in it. A byte that is not
        UTF-8 becomes U+FFFD, since headers are text.
        """
        if self._python is not None:
            search = partial(self._python.search, **_BOUNDED)
            found = _each(column, search)
            groups = [
                pa.array([_plain(match.group(n)) if match else None for match in found], pa.string())
                for n in range(1, len(self.groups) + 1)
            ]
            return pa.array([match is not None for match in found], pa.bool_()), groups
        text, odd = _readable(column)
        if not self.groups:
            return pc.match_substring_regex(text, pattern=self._re2), []
        held = pc.extract_regex(text, pattern=self._naming)
        groups = [pc.struct_field(held, n) for n in range(len(self.groups))]
        if any(pc.any(pc.equal(group, "")).as_py() for group in groups):
            # An empty text may also be a group that had no part in the match: its place tells.
            places = pc.extract_regex_span(text, pattern=self._naming)
            groups = [
                pc.if_else(pc.is_valid(pc.struct_field(places, n)), group, None) for n, group in enumerate(groups)
            ]
        if odd is not None:
            groups = [_without_surrogates(group, odd) for group in groups]
        return pc.is_valid(held), groups

    def replacement(self, text: str) -> Replacement:
        """Parse a replacement of Java's: `$1`, `${name}` are groups, a backslash makes the next one literal."""
        parts = replacement_parts(text, self.groups)
        if self._python is None and any(isinstance(part, int) and part > 9 for part in parts):
            raise ValueError(f"the replacement {text!r} uses a group past the ninth")
        return parts

    def replace(self, column: Array, replacement: Replacement) -> Array:
        """The column with every match replaced."""
        if pa.types.is_dictionary(column.type):
            return _by_value(column, lambda values: self.replace(values, replacement)).dictionary_encode()
        if self._python is not None:
            return self._sub(
                column,
                lambda match: "".join(
                    part if isinstance(part, str) else match.group(part) or "" for part in replacement
                ),
            )
        text, odd = _readable(column)
        literal = [part.replace("\\", r"\\").encode() if isinstance(part, str) else part for part in replacement]
        return _restored(self._rewritten(text, *literal), odd, column.type)

    def transform(self, column: Array, function: Callable[[str], str]) -> Array:
        """The column with every match given to `function` and replaced by its answer.

        RE2 finds the matches; Python touches only the rows that have some. Odd bytes in a match are lone surrogates,
        as Python's `surrogateescape` makes them.
        """
        if pa.types.is_dictionary(column.type):
            return _by_value(column, lambda values: self.transform(values, function)).dictionary_encode()
        if self._python is not None:
            return self._sub(column, lambda match: function(match.group(1 if self._isolated else 0)))
        text, odd = _readable(column)
        found = pc.match_substring_regex(text, pattern=self._re2).fill_null(False)
        if not found.true_count:
            return column
        marked = self._rewritten(text.filter(found), _MARK, 0, _MARK)
        rows = []
        for row in marked.cast(pa.binary()).to_pylist():
            pieces = row.split(_MARK)
            pieces[1::2] = [
                function(piece.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")
                for piece in pieces[1::2]
            ]
            rows.append(b"".join(pieces))
        return _restored(pc.replace_with_mask(text, found, _as_text(rows)), odd, column.type)

    def _rewritten(self, text: Array, *parts: bytes | int) -> Array:
        """Replace each match by these texts and groups, with RE2."""
        rewrite = b"".join(
            part if isinstance(part, bytes) else rb"\%d" % (2 if self._isolated else part) for part in parts
        )
        if self._isolated:
            rewrite = rb"\1" + rewrite + rb"\3"
        return pc.replace_substring_regex(text, pattern=self._re2, replacement=rewrite)

    def _sub(self, column: Array, function: Callable[[Match[str]], str]) -> Array:
        assert self._python is not None

        def within(match: Match[str]) -> str:
            if match.start(1) < 0:
                return match.group()
            whole, start = match.group(), match.start()
            return whole[: match.start(1) - start] + function(match) + whole[match.end(1) - start :]

        rows = _each(column, partial(_replaced, self._python, within if self._isolated else function))
        if pa.types.is_string(column.type):
            return pa.array(rows, pa.string())
        return pa.array(
            [None if row is None else row.encode("utf-8", "surrogateescape") for row in rows], column.type
        )


# --- the engine that backtracks

_BOUNDED: Any = {"timeout": LONGEST, "concurrent": True}


def backtracking(pattern: str) -> Pattern[str]:
    """A pattern in Java's spelling, for a text of the configuration. Raises ValueError, as Regex does."""
    return _compiled(JavaPattern(pattern, "regex"))


def _compiled(java: JavaPattern) -> Pattern[str]:
    import regex  # takes longer to import than most agents need it

    try:
        return regex.compile("".join(java.out), regex.ASCII | regex.VERSION1)
    except (regex.error, OverflowError, RecursionError) as e:
        reason = str(e)
        if reason.startswith("unknown property"):
            reason = rf"it has a \p{{…}} that there is not; supported are {SUPPORTED}"
        raise ValueError(f"the regular expression {java.pattern!r} cannot be read: {reason}") from None


def _replaced(pattern: Pattern[str], function: Callable[[Match[str]], str], text: str) -> str:
    """Replace the matches that Java finds: of an empty one, the next search begins one character further.

    `Pattern.sub` looks for a match that is not empty first, where the empty one was. Raises TimeoutError.
    """
    pieces: list[str] = []
    kept = position = 0
    began, bounded = time.process_time(), dict(_BOUNDED)
    while position <= len(text) and (match := pattern.search(text, position, **bounded)):
        pieces += [text[kept : match.start()], function(match)]
        kept = match.end()
        position = kept + (match.start() == kept)
        bounded["timeout"] = _BOUNDED["timeout"] - (time.process_time() - began)
        if bounded["timeout"] <= 0:
            raise TimeoutError
    pieces.append(text[kept:])
    return "".join(pieces)


def _each(column: Array, function: Callable[[str], T]) -> list[T | None]:
    """Apply the function to each text. Raises TooSlow."""
    made: list[T | None] = []
    slow: list[int] = []
    for row, text in enumerate(_python_texts(column)):
        try:
            made.append(None if text is None else function(text))
        except TimeoutError:
            slow.append(row)
    if slow:
        raise TooSlow(slow)
    return made


# --- columns


def _by_value(column: Array, function: Callable[[Array], Array]) -> Array:
    """A function of each text, worked out once for each different one, where that is less."""
    if len(column.dictionary) <= len(column):
        try:
            return function(column.dictionary).take(column.indices)
        except TooSlow as e:
            slow = pc.is_in(column.indices, pa.array(e.rows, column.indices.type))
            if rows := pc.indices_nonzero(slow).to_pylist():
                raise TooSlow(rows) from None
    return function(column.dictionary_decode())


def _readable(column: Array) -> tuple[Array, Array | None]:
    """The column as text that RE2 reads character by character, and which rows hold bytes that are not UTF-8.

    Those bytes become lone surrogates, encoded as if they were characters: RE2 takes them for one each, and nothing
    else in the row changes its meaning.
    """
    try:
        return column.cast(pa.string()), None
    except pa.ArrowInvalid:
        text = column.cast(pa.string(), safe=False)
    odd = pc.invert(pc.string_is_ascii(text)).fill_null(False)
    rows = [
        row.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")
        for row in column.filter(odd).to_pylist()
    ]
    return pc.replace_with_mask(text, odd, _as_text(rows)), odd


def _restored(text: Array, odd: Array | None, kind: Any) -> Array:
    """The reverse of `_readable`."""
    column = text.cast(kind)
    if odd is None:
        return column
    rows = [
        row.decode("utf-8", "surrogatepass").encode("utf-8", "surrogateescape")
        for row in column.filter(odd).to_pylist()
    ]
    return pc.replace_with_mask(column, odd, pa.array(rows, kind))


def _without_surrogates(text: Array, odd: Array) -> Array:
    rows = pc.filter(text.cast(pa.binary()), odd).to_pylist()
    plain = [None if row is None else _plain(row.decode("utf-8", "surrogatepass")) for row in rows]
    return pc.replace_with_mask(text, odd, pa.array(plain, pa.string()))


def _plain(text: str | None) -> str | None:
    """The text with every odd byte in it replaced by U+FFFD."""
    return text if text is None or text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def _as_text(rows: list[bytes]) -> Array:
    return pa.array(rows, pa.binary()).cast(pa.string(), safe=False)


def _python_texts(column: Array) -> list[str | None]:
    if pa.types.is_string(column.type):
        return list(column.to_pylist())
    return [None if row is None else row.decode("utf-8", "surrogateescape") for row in column.to_pylist()]

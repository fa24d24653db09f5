"""Regular expressions of a configuration, in Java's syntax, compiled once and run over columns.

RE2 runs them, through Arrow: in time linear in the text, for every pattern and text. Patterns have Java's syntax, as
in Flume: `(?<name>…)`, `\\Q…\\E`, `\\p{Alpha}`, `\\h`. Replacements have `$1` or `${name}`.

RE2 lacks look-around, back-references, possessive quantifiers and atomic groups. The library `regex` runs patterns
with these, event by event. It backtracks, which can take exponential time on some texts. A match therefore times out
after `MATCH_TIMEOUT_SECONDS`. Other threads run meanwhile.

Differences from Java: `$` matches only at the end of the text, not before a last newline. `.` excludes newlines only.
With RE2, an empty match right after another match is not replaced.
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
from flafka.plugins.java.characterclasses import SUPPORTED_PROPERTIES
from flafka.plugins.java.pattern import JavaPattern, NonLinearPattern, Replacement, parse_replacement
from flafka.plugins.problems import Problem

if TYPE_CHECKING:
    from regex import Match, Pattern

T = TypeVar("T")
MATCH_TIMEOUT_SECONDS = 2.0
"""CPU time that one text may take in the backtracking engine; most take microseconds."""
_MARK = "\ud800".encode("utf-8", "surrogatepass")
"""Delimiter around matches. No text has it: UTF-8 has no surrogates, and invalid bytes become U+DC80 and above."""


class RegexTimeout(Exception):
    """Timeout of a match in some rows of a column, after `MATCH_TIMEOUT_SECONDS`."""

    reason = f"a regular expression takes longer than {MATCH_TIMEOUT_SECONDS:.0f} s"

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(self.reason)
        self.rows = rows


class Regex:
    """A pattern for columns of bodies (`binary`) or of a header (`dictionary<string>`).

    Bytes are decoded as UTF-8. An invalid byte is a character of its own, which only `.` and negated classes match.
    Outside a match it stays unchanged. Nulls stay null.

    With `isolate`, a match of a pattern with a group is the group alone: its context must match but is not replaced.
    With `whole`, the pattern must match the whole text.

    `backtracking` selects the engine: False RE2, True `regex`, None RE2 if it has all constructs of the pattern. With
    `regex`, each method may raise RegexTimeout.

    Raises ValueError with a message for the user for an invalid or unsupported pattern, and NonLinearPattern if the
    pattern needs `backtracking`.
    """

    def __init__(
        self, pattern: str, *, backtracking: bool | None = False, isolate: bool = False, whole: bool = False
    ) -> None:
        self.pattern = pattern
        self.nonlinear_construct = ""
        """Construct that RE2 lacks, for which `regex` runs the pattern; empty for RE2."""
        try:
            java = JavaPattern(pattern, "regex" if backtracking else "re2")
        except NonLinearPattern as e:
            if backtracking is False:
                raise
            self.nonlinear_construct, backtracking = e.construct, True
            java = JavaPattern(pattern, "regex")
        self.groups = java.groups
        """Names of the capturing groups, in order; None for those without."""
        self._re2 = rf"\A(?:{''.join(java.pieces)})\z" if whole else "".join(java.pieces)
        self._with_named_groups = java.with_named_groups() if self.groups else ""
        self._backtracking: Pattern[str] | None = None
        self._whole = whole
        self._isolated = isolate and bool(self.groups)
        if self._isolated:
            flags, before, group, after = java.split_at_group()
            self._re2 = f"{flags}({before})({group})({after})"
        if backtracking:
            self._backtracking = _compile(java)
            return
        try:
            pc.match_substring_regex(pa.nulls(1, pa.string()), pattern=self._re2)
        except pa.ArrowInvalid as e:
            reason = str(e).removeprefix("Invalid regular expression: ")
            if (unknown := reason.removeprefix("invalid character class range: ")) != reason and "p{" in unknown:
                reason = f"there is no {unknown}; supported are {SUPPORTED_PROPERTIES}"
            raise ValueError(f"the regular expression {pattern!r} cannot be read: {reason}") from None

    def notes(self, option: str) -> Iterator[Problem]:
        """Yield a note if `regex` runs the pattern of this option."""
        if self.nonlinear_construct:
            message = (
                f"has {self.nonlinear_construct}, so it is matched event by event, which is slower; an event that "
                f"takes longer than {MATCH_TIMEOUT_SECONDS:.0f} s becomes a dead letter"
            )
            yield Problem(option, message, is_note=True)

    def matches(self, column: Array) -> Array:
        """Return a boolean array: true for rows with a match, null for nulls."""
        if pa.types.is_dictionary(column.type):
            return _by_value(column, self.matches)
        if self._backtracking is not None:
            search = self._backtracking.fullmatch if self._whole else self._backtracking.search
            return pa.array(_map_texts(column, lambda text: search(text, **_BOUNDED) is not None), pa.bool_())
        return pc.match_substring_regex(_to_re2_text(column)[0], pattern=self._re2)

    def extract(self, column: Array) -> tuple[Array, list[Array]]:
        """Return a boolean array of the bodies with a match, and for each group the text in the first match.

        A group's array is null in rows without a match, or if the group did not take part in it. An invalid byte of
        UTF-8 becomes U+FFFD, since headers are text.
        """
        if self._backtracking is not None:
            search = partial(self._backtracking.search, **_BOUNDED)
            matches = _map_texts(column, search)
            groups = [
                pa.array([_without_surrogates(match.group(n)) if match else None for match in matches], pa.string())
                for n in range(1, len(self.groups) + 1)
            ]
            return pa.array([match is not None for match in matches], pa.bool_()), groups
        text, invalid = _to_re2_text(column)
        if not self.groups:
            return pc.match_substring_regex(text, pattern=self._re2), []
        matches = pc.extract_regex(text, pattern=self._with_named_groups)
        groups = [pc.struct_field(matches, n) for n in range(len(self.groups))]
        if any(pc.any(pc.equal(group, "")).as_py() for group in groups):
            # Arrow gives an empty text also for a group without part in the match. Only its span is null then.
            spans = pc.extract_regex_span(text, pattern=self._with_named_groups)
            groups = [
                pc.if_else(pc.is_valid(pc.struct_field(spans, n)), group, None) for n, group in enumerate(groups)
            ]
        if invalid is not None:
            groups = [_replace_surrogates(group, invalid) for group in groups]
        return pc.is_valid(matches), groups

    def parse_replacement(self, text: str) -> Replacement:
        """Return the parts of a replacement of Java, with the groups `$1` and `${name}`.

        A backslash escapes the next character. Raises ValueError, also for a group past the ninth with RE2.
        """
        parts = parse_replacement(text, self.groups)
        if self._backtracking is None and any(isinstance(part, int) and part > 9 for part in parts):
            raise ValueError(f"the replacement {text!r} uses a group past the ninth")
        return parts

    def replace(self, column: Array, replacement: Replacement) -> Array:
        """Return the column with every match replaced; a group without part in the match is empty."""
        if pa.types.is_dictionary(column.type):
            return _by_value(column, lambda values: self.replace(values, replacement)).dictionary_encode()
        if self._backtracking is not None:
            return self._sub(
                column,
                lambda match: "".join(
                    part if isinstance(part, str) else match.group(part) or "" for part in replacement
                ),
            )
        text, invalid = _to_re2_text(column)
        literal = [part.replace("\\", r"\\").encode() if isinstance(part, str) else part for part in replacement]
        return _restore(self._rewrite(text, *literal), invalid, column.type)

    def transform(self, column: Array, function: Callable[[str], str]) -> Array:
        """Return the column with every match replaced by the result of `function`.

        RE2 finds the matches; Python handles only the rows with matches. Invalid bytes in a match are lone
        surrogates, as of Python's `surrogateescape`.
        """
        if pa.types.is_dictionary(column.type):
            return _by_value(column, lambda values: self.transform(values, function)).dictionary_encode()
        if self._backtracking is not None:
            return self._sub(column, lambda match: function(match.group(1 if self._isolated else 0)))
        text, invalid = _to_re2_text(column)
        matched = pc.match_substring_regex(text, pattern=self._re2).fill_null(False)
        if not matched.true_count:
            return column
        marked = self._rewrite(text.filter(matched), _MARK, 0, _MARK)
        rows = []
        for row in marked.cast(pa.binary()).to_pylist():
            pieces = row.split(_MARK)
            pieces[1::2] = [
                function(piece.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")
                for piece in pieces[1::2]
            ]
            rows.append(b"".join(pieces))
        return _restore(pc.replace_with_mask(text, matched, _as_text(rows)), invalid, column.type)

    def _rewrite(self, text: Array, *parts: bytes | int) -> Array:
        """Return the text with each match replaced by these texts and groups, with RE2.

        If isolated, only the group is.
        """
        rewrite = b"".join(
            part if isinstance(part, bytes) else rb"\%d" % (2 if self._isolated else part) for part in parts
        )
        if self._isolated:
            rewrite = rb"\1" + rewrite + rb"\3"
        return pc.replace_substring_regex(text, pattern=self._re2, replacement=rewrite)

    def _sub(self, column: Array, function: Callable[[Match[str]], str]) -> Array:
        """Return the column with each match replaced by the result of `function`, with the engine `regex`."""
        assert self._backtracking is not None

        def replace_group(match: Match[str]) -> str:
            if match.start(1) < 0:
                return match.group()
            text, start = match.group(), match.start()
            return text[: match.start(1) - start] + function(match) + text[match.end(1) - start :]

        rows = _map_texts(
            column, partial(_replace_matches, self._backtracking, replace_group if self._isolated else function)
        )
        if pa.types.is_string(column.type):
            return pa.array(rows, pa.string())
        return pa.array(
            [None if row is None else row.encode("utf-8", "surrogateescape") for row in rows], column.type
        )


# --- the backtracking engine

_BOUNDED: Any = {"timeout": MATCH_TIMEOUT_SECONDS, "concurrent": True}


def compile_backtracking(pattern: str) -> Pattern[str]:
    """Return a pattern of Java, compiled for the engine `regex`. Raises ValueError as `Regex`."""
    return _compile(JavaPattern(pattern, "regex"))


def _compile(java: JavaPattern) -> Pattern[str]:
    import regex  # slow to import, and most agents do not need it

    try:
        return regex.compile("".join(java.pieces), regex.ASCII | regex.VERSION1)
    except (regex.error, OverflowError, RecursionError) as e:
        reason = str(e)
        if reason.startswith("unknown property"):
            reason = rf"it has an unknown \p{{…}}; supported are {SUPPORTED_PROPERTIES}"
        raise ValueError(f"the regular expression {java.pattern!r} cannot be read: {reason}") from None


def _replace_matches(pattern: Pattern[str], function: Callable[[Match[str]], str], text: str) -> str:
    """Return the text with its matches replaced as Java finds them.

    After an empty match, the search resumes one character later. `Pattern.sub` would first search for a match that is
    not empty at the same offset. Raises TimeoutError after `MATCH_TIMEOUT_SECONDS` in total.
    """
    pieces: list[str] = []
    copied = position = 0
    began, bounded = time.process_time(), dict(_BOUNDED)
    while position <= len(text) and (match := pattern.search(text, position, **bounded)):
        pieces += [text[copied : match.start()], function(match)]
        copied = match.end()
        position = copied + (match.start() == copied)
        bounded["timeout"] = _BOUNDED["timeout"] - (time.process_time() - began)
        if bounded["timeout"] <= 0:
            raise TimeoutError
    pieces.append(text[copied:])
    return "".join(pieces)


def _map_texts(column: Array, function: Callable[[str], T]) -> list[T | None]:
    """Return the result of the function for each text, None for null.

    Raises RegexTimeout with all rows that time out.
    """
    results: list[T | None] = []
    timed_out: list[int] = []
    for row, text in enumerate(_python_texts(column)):
        try:
            results.append(None if text is None else function(text))
        except TimeoutError:
            timed_out.append(row)
    if timed_out:
        raise RegexTimeout(timed_out)
    return results


# --- columns


def _by_value(column: Array, function: Callable[[Array], Array]) -> Array:
    """Return a function's result for each row of a dictionary column, called with its distinct texts.

    It is called with all rows if that is less work. Raises RegexTimeout with rows of the column.
    """
    if len(column.dictionary) <= len(column):
        try:
            return function(column.dictionary).take(column.indices)
        except RegexTimeout as e:
            timed_out = pc.is_in(column.indices, pa.array(e.rows, column.indices.type))
            if rows := pc.indices_nonzero(timed_out).to_pylist():
                raise RegexTimeout(rows) from None
    return function(column.dictionary_decode())


def _to_re2_text(column: Array) -> tuple[Array, Array | None]:
    """Return the column as text for RE2, and a mask of the rows that may contain invalid UTF-8; None for no mask.

    Invalid bytes become lone surrogates, encoded like characters: RE2 takes each for one character.
    """
    try:
        return column.cast(pa.string()), None
    except pa.ArrowInvalid:
        text = column.cast(pa.string(), safe=False)
    invalid = pc.invert(pc.string_is_ascii(text)).fill_null(False)
    rows = [
        row.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")
        for row in column.filter(invalid).to_pylist()
    ]
    return pc.replace_with_mask(text, invalid, _as_text(rows)), invalid


def _restore(text: Array, invalid: Array | None, kind: Any) -> Array:
    """Return text of `_to_re2_text` as a column of type `kind`, with its invalid bytes as before."""
    column = text.cast(kind)
    if invalid is None:
        return column
    rows = [
        row.decode("utf-8", "surrogatepass").encode("utf-8", "surrogateescape")
        for row in column.filter(invalid).to_pylist()
    ]
    return pc.replace_with_mask(column, invalid, pa.array(rows, kind))


def _replace_surrogates(text: Array, invalid: Array) -> Array:
    """Return the text with each lone surrogate in the rows of `invalid` replaced by U+FFFD."""
    rows = pc.filter(text.cast(pa.binary()), invalid).to_pylist()
    plain = [None if row is None else _without_surrogates(row.decode("utf-8", "surrogatepass")) for row in rows]
    return pc.replace_with_mask(text, invalid, pa.array(plain, pa.string()))


def _without_surrogates(text: str | None) -> str | None:
    """Return the text with every lone surrogate replaced by U+FFFD."""
    return text if text is None or text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def _as_text(rows: list[bytes]) -> Array:
    return pa.array(rows, pa.binary()).cast(pa.string(), safe=False)


def _python_texts(column: Array) -> list[str | None]:
    if pa.types.is_string(column.type):
        return list(column.to_pylist())
    return [None if row is None else row.decode("utf-8", "surrogateescape") for row in column.to_pylist()]

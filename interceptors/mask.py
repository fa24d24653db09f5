"""Interceptor `mask`: masks card numbers, addresses and other matches before events are stored.

The built-in patterns match:

`card`: 13 to 19 digits with a valid Luhn check digit, in one piece or in groups.
- Groups are as on cards: 4-4-4-4, 4-4-4-1 to 4-4-4-4-3, 4-4-5, 4-3-3-3, 4-6-4, 4-6-5, 6-13.
- Separators are any number of blanks and dashes of any kind, tabs, `.`, `_`, `/`, `+`, `%` or `%20`.
- The first digit is 3 to 9, the first two are 22 to 27, or it is 1 with 15 digits. Times in milliseconds and dates
  therefore do not match. One in ten of other numbers passes the check by chance and is masked.
- A number may be next to characters of a word.
- Not matched: a number next to further digits, other groupings, other separators (a line break, `:`, `,`), and digits
  other than 0 to 9.

`email`: characters of words and `._%+'-`, then `@` or `%40`, then a domain with at least one dot. Any case, most
scripts. Not matched: quoted local parts, domains without a dot (`root@localhost`), addresses in brackets.

`ipv4`: four numbers up to 299 with dots between, leading zeros allowed, anywhere, such as in `v1.2.3.4`. A port after
the address stays. Not matched: other notations (`10-1-2-3`, hexadecimal), IPv6.

An invalid byte of UTF-8 is part of no built-in match and stays unchanged.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors import cards, ipv4
from flafka.interceptors.patterns import PatternConfig, PatternInterceptor
from flafka.plugins import Batch, Metric, cross_field_validator, option
from flafka.plugins.columns import Array
from flafka.plugins.java.regex import Regex
from flafka.plugins.problems import suggest
from flafka.plugins.wire.octets import bytes_and_bounds, rows_of_offsets, take_slices

Mask = npt.NDArray[np.bool_]

# Small classes on purpose: RE2 compiles the pattern for each batch, and \p{L} alone takes 5 ms.
_LETTER = r"A-Za-z\x{c0}-\x{1fff}\x{3041}-\x{d7ff}"
_WORD = f"0-9{_LETTER}"
_BUILT_IN = {
    "card": cards.PATTERN,
    "email": rf"[{_WORD}_][{_WORD}._%+'-]*(?:@|%40)[{_WORD}.-]+\.[{_LETTER}][{_WORD}-]+",
    "ipv4": ipv4.PATTERN,
}


class MaskConfig(PatternConfig):
    """Options of the interceptor `mask`."""

    on: list[str] = option(
        ["body"], name="on", min_length=1, description="Values to mask: `body`, and names of headers."
    )
    patterns: list[str] = option(
        [],
        name="patterns",
        description="Built-in patterns to mask: `card` (13 to 19 digits that pass the Luhn check, in one piece or "
        "grouped as on cards), `email`, `ipv4`.",
    )
    own: dict[str, str] = option(
        {},
        name="patterns.",
        description="`patterns.<name>` is a regular expression to mask: RE2, in Java's syntax. If it has one group, "
        "as in `user=(\\w+)`, only the match of the group is masked.",
    )
    action: Literal["redact", "partial", "hash"] = option(
        "redact",
        name="action",
        description="Replacement of a match. `redact`: `replacement`. `partial`: `replacement` and the last `keep` "
        "characters. `hash`: 16 hexadecimal digits, equal for equal texts and `key`.",
    )
    replacement: str = option("***", name="replacement", description="Literal replacement text.")
    keep: int = option(
        4,
        name="keep",
        unit="characters",
        ge=0,
        description="Number of characters (of a card: digits) that `partial` keeps at the end, at most half of them.",
    )
    key: pydantic.SecretStr | None = option(
        None,
        name="key",
        min_length=1,
        description="Secret for `hash`, which requires one. With it, masked texts can be found by trial.",
    )

    @pydantic.field_validator("patterns")
    @classmethod
    def _check_patterns(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in _BUILT_IN:
                hint = suggest(name, list(_BUILT_IN))
                raise ValueError(
                    f"there is no built-in pattern {name!r}{hint}; add your own as patterns.<name> = <regex>"
                )
        return names

    def patterns_by_option(self) -> Mapping[str, str]:
        """Return the regular expressions of `patterns.<name>` by the names of their options."""
        return {f"patterns.{name}": pattern for name, pattern in self.own.items()}

    @cross_field_validator("own", "allow_backtracking")
    def _check_own_patterns(self) -> None:
        for name, pattern in self.own.items():
            try:
                if self.compile_regex(pattern, isolate=True).matches(pa.array([b""]))[0].as_py():
                    raise ValueError(f"the regular expression {pattern!r} matches the empty text")
            except ValueError as e:
                raise ValueError(f"{name}: {e}") from None

    @cross_field_validator("patterns", "own")
    def _check_any_pattern(self) -> None:
        if not self.patterns and not self.own:
            raise ValueError("is required: patterns = card email ipv4, or patterns.<name> = <regex>")

    @cross_field_validator("key", "action")
    def _check_key(self) -> None:
        if self.action == "hash" and self.key is None:
            raise ValueError("is required with action = hash, such as key = ${file:/path/of/a/secret}")


class MaskInterceptor(PatternInterceptor[MaskConfig]):
    """Masks the matches of its patterns and changes nothing else; pure, and no event is lost.

    On a source, masked texts never reach the channel.
    """

    type_name = "mask"
    redacts = True
    declared_metrics = (Metric("EventMaskedCount", "counter", "events", "Events with a masked text."),)

    def __init__(self, config: MaskConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._key = config.key.get_secret_value().encode() if config.key else b""
        self._masks = [self._built_in(pattern) for pattern in config.patterns]
        for pattern in config.own.values():
            self._masks.append(self._mask(config.compile_regex(pattern, isolate=True)))

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with all matches in the body and headers of `on` masked.

        Events that this changes are counted as `EventMaskedCount`.
        """
        masked = None
        for name in self.config.on:
            before = batch.bodies if name == "body" else batch.header(name)
            after = before
            for mask in self._masks:
                after = mask(after)
            if after is before:
                continue
            changed = pc.not_equal(*(_dictionary_decoded(column) for column in (before, after)))  # null stays null
            if changed.true_count:
                batch = batch.with_bodies(after) if name == "body" else batch.with_header(name, after)
                masked = changed if masked is None else pc.or_kleene(masked, changed)
        if masked is not None:
            self.metrics.add("EventMaskedCount", masked.true_count)
        return batch

    def _built_in(self, name: str) -> Callable[[Array], Array]:
        """Return a function that masks the matches of a built-in pattern in a column."""
        regex = Regex(_BUILT_IN[name])
        if name == "card":
            mask_cards = partial(regex.transform, function=lambda digits: cards.mask_cards(digits, self._substitute))
            return lambda column: _mask_rows(cards.rows_with_candidates, column, mask_cards)
        if name == "email":
            mask = self._mask(regex, str.lower)
            return lambda column: _mask_rows(_rows_with_at_sign, column, mask)
        mask = self._mask(regex)
        return lambda column: self._mask_addresses(column, mask)

    def _mask_addresses(self, column: Array, mask: Callable[[Array], Array]) -> Array:
        """Return the column with its IPv4 addresses masked.

        Headers are masked by `mask`; bodies by the positions of dots, which is faster and gives the same result.
        """
        if not pa.types.is_binary(column.type):
            return mask(column)
        if column.nbytes <= ipv4.MAX_ONE_BY_ONE_BYTES:
            return ipv4.replace_each(column, lambda text: self._substitute(text.decode()).encode())
        starts, ends, ambiguous = ipv4.find_addresses(column)
        after = column
        if len(starts):
            if self.config.action == "redact":
                replacements = [self._substitute("").encode()]
            else:
                addresses = take_slices(bytes_and_bounds(column)[0], starts, ends).to_pylist()
                replacements = [self._substitute(address.decode()).encode() for address in addresses]
            after = ipv4.replace_slices(column, starts, ends, replacements)
        return _mask_rows(lambda _: ambiguous, after, mask)

    def _mask(self, regex: Regex, canonical: Callable[[str], str] = str) -> Callable[[Array], Array]:
        """Return a function that masks all matches in a column. Matches of one `canonical` form get the same hash."""
        if self.config.action == "redact":
            return lambda column: regex.replace(column, (self.config.replacement,))
        if self.config.action == "partial":
            return lambda column: regex.transform(column, self._substitute)
        return lambda column: regex.transform(column, lambda text: self._substitute(canonical(text)))

    def _substitute(self, text: str) -> str:
        """Return the text that replaces a match, as `action` says; `partial` keeps at most half of the match."""
        if self.config.action == "hash":
            return hmac.digest(self._key, text.encode("utf-8", "surrogateescape"), "sha256").hex()[:16]
        if self.config.action == "redact":
            return self.config.replacement
        kept_characters = min(self.config.keep, len(text) // 2)
        return self.config.replacement + text[len(text) - kept_characters :]


def _mask_rows(select: Callable[[Array], Mask], column: Array, mask: Callable[[Array], Array]) -> Array:
    """Return a column with the rows masked that `select` selects if it has bodies, or else with all rows masked."""
    if not pa.types.is_binary(column.type):
        return mask(column)
    rows = select(column)
    if not rows.any():
        return column
    if rows.all():
        return mask(column)
    selected = pa.array(rows)
    return pc.replace_with_mask(column, selected, mask(column.filter(selected)))


def _rows_with_at_sign(column: Array) -> Mask:
    """Return a mask of the rows with an `@` or `%40`. Only these can contain an email address."""
    data, bounds = bytes_and_bounds(column)
    is_at_sign = data == ord("@")
    percent = np.flatnonzero(data[:-2] == ord("%"))
    is_at_sign[percent[(data[percent + 1] == ord("4")) & (data[percent + 2] == ord("0"))]] = True
    rows = np.zeros(len(column), np.bool_)
    rows[rows_of_offsets(bounds, np.flatnonzero(is_at_sign))] = True
    return rows


def _dictionary_decoded(column: Array) -> Array:
    """Return the column without dictionary encoding."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

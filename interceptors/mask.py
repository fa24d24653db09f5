"""The interceptor `mask`: hides card numbers, addresses and whatever else matches, before it is stored anywhere.

What the built-in patterns match, exactly:

`card`: 13 to 19 digits that pass the Luhn check, in one piece or in groups as cards are printed (4-4-4-4, 4-4-4-1 to
4-4-4-4-3, 4-4-5, 4-3-3-3, 4-6-4, 4-6-5, 6-13), between which stand blanks and dashes of any kind and any number,
tabs, `.`, `_`, `/`, `+`, `%` or `%20`. The first digit is 3 to 9, the first two are 22 to 27, or it is 1 with 15
digits; so times in milliseconds and dates survive. One number in ten of other kinds passes the check by chance and is
masked. Letters may touch the number. Not found: a number that touches further digits, other groupings, other
separators (a line break, `:`, `,`), digits other than 0 to 9.

`email`: letters, digits and `._%+'-`, `@` or `%40`, and a domain with at least one dot; any case, most scripts.
Not found: quoted local parts, domains without a dot (`root@localhost`), addresses in brackets.

`ipv4`: four numbers up to 299 with dots between, leading zeros allowed, wherever they stand: also in `v1.2.3.4`.
A port after it stays. Not found: other spellings (`10-1-2-3`, hexadecimal), IPv6.

A byte that is not UTF-8 is part of no built-in match and is left as it is.
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
from flafka.plugins.problems import suggestion
from flafka.plugins.shared.octets import bytes_of, rows_at, slices
from flafka.plugins.shared.regex import Regex

Mask = npt.NDArray[np.bool_]

# Small classes on purpose: RE2 compiles a pattern anew for each batch, and \p{L} alone takes it 5 ms.
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
        ["body"], name="on", min_length=1, description="Where to look: `body`, and names of headers."
    )
    patterns: list[str] = option(
        [],
        name="patterns",
        description="Built-in patterns to hide: `card` (13 to 19 digits that pass the Luhn check, in one piece or "
        "grouped as on cards), `email`, `ipv4`.",
    )
    own: dict[str, str] = option(
        {},
        name="patterns.",
        description="`patterns.<name>` is a regular expression of your own to hide: RE2, in Java's syntax. If it has "
        "one group, as in `user=(\\w+)`, only what the group matches is hidden.",
    )
    action: Literal["redact", "partial", "hash"] = option(
        "redact",
        name="action",
        description="What is written instead. `redact`: `replacement`. `partial`: `replacement` and the last `keep` "
        "characters. `hash`: 16 hexadecimal digits, the same ones for the same text and `key`.",
    )
    replacement: str = option("***", name="replacement", description="Text to write instead, taken literally.")
    keep: int = option(
        4,
        name="keep",
        unit="characters",
        ge=0,
        description="Number of characters (of a card: digits) that `partial` leaves at the end, at most half of "
        "them.",
    )
    key: pydantic.SecretStr | None = option(
        None,
        name="key",
        min_length=1,
        description="Secret for `hash`, which requires one. Who knows it can find hidden texts by trial.",
    )

    @pydantic.field_validator("patterns")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in _BUILT_IN:
                hint = suggestion(name, list(_BUILT_IN))
                raise ValueError(
                    f"there is no built-in pattern {name!r}{hint}; add your own as patterns.<name> = <regex>"
                )
        return names

    def patterns_by_option(self) -> Mapping[str, str]:
        """Its regular expressions."""
        return {f"patterns.{name}": pattern for name, pattern in self.own.items()}

    @cross_field_validator("own", "allow_backtracking")
    def _runnable(self) -> None:
        for name, pattern in self.own.items():
            try:
                if self.compiled(pattern, isolate=True).matches(pa.array([b""]))[0].as_py():
                    raise ValueError(f"the regular expression {pattern!r} matches the empty text")
            except ValueError as e:
                raise ValueError(f"{name}: {e}") from None

    @cross_field_validator("patterns", "own")
    def _hides_something(self) -> None:
        if not self.patterns and not self.own:
            raise ValueError("is required: patterns = card email ipv4, or patterns.<name> = <regex>")

    @cross_field_validator("key", "action")
    def _has_a_key(self) -> None:
        if self.action == "hash" and self.key is None:
            raise ValueError("is required with action = hash, such as key = ${file:/path/of/a/secret}")


class MaskInterceptor(PatternInterceptor[MaskConfig]):
    """Hides what matches its patterns and changes nothing else; pure, and no event is lost.

    On a source, what it hides never reaches the channel.
    """

    type_name = "mask"
    hides = True
    declared_metrics = (Metric("EventMaskedCount", "counter", "events", "Events in which something was hidden."),)

    def __init__(self, config: MaskConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._key = config.key.get_secret_value().encode() if config.key else b""
        self._masks = [self._built_in(pattern) for pattern in config.patterns]
        for pattern in config.own.values():
            self._masks.append(self._mask(config.compiled(pattern, isolate=True)))

    def matched(self, batch: Batch) -> Batch:
        """Hide what matches; counts the events in which something did as `EventMaskedCount`."""
        masked = None
        for name in self.config.on:
            before = batch.bodies if name == "body" else batch.header(name)
            after = before
            for mask in self._masks:
                after = mask(after)
            if after is before:
                continue
            changed = pc.not_equal(*(_decoded(column) for column in (before, after))).fill_null(False)
            if changed.true_count:
                batch = batch.with_bodies(after) if name == "body" else batch.with_header(name, after)
                masked = changed if masked is None else pc.or_(masked, changed)
        if masked is not None:
            self.metrics.add("EventMaskedCount", masked.true_count)
        return batch

    def _built_in(self, name: str) -> Callable[[Array], Array]:
        regex = Regex(_BUILT_IN[name])
        if name == "card":
            hidden = partial(regex.transform, function=lambda digits: cards.masked(digits, self._substitute))
            return lambda column: _where(cards.may_hold, column, hidden)
        if name == "email":
            mask = self._mask(regex, str.lower)
            return lambda column: _where(_may_have_email, column, mask)
        mask = self._mask(regex)
        return lambda column: self._addresses(column, mask)

    def _addresses(self, column: Array, mask: Callable[[Array], Array]) -> Array:
        """As `mask` does it for IPv4 addresses, but bodies are looked at for dots first."""
        if not pa.types.is_binary(column.type):
            return mask(column)
        if column.nbytes <= ipv4.FEW_BYTES:
            return ipv4.each(column, lambda text: self._substitute(text.decode()).encode())
        starts, ends, unclear = ipv4.find(column)
        after = column
        if len(starts):
            if self.config.action == "redact":
                instead = [self._substitute("").encode()]
            else:
                found = slices(bytes_of(column)[0], starts, ends).to_pylist()
                instead = [self._substitute(text.decode()).encode() for text in found]
            after = ipv4.replaced(column, starts, ends, instead)
        return _where(lambda _: unclear, after, mask)

    def _mask(self, regex: Regex, canonical: Callable[[str], str] = str) -> Callable[[Array], Array]:
        """A column with all matches masked. Matches that are the same canonically get the same hash."""
        if self.config.action == "redact":
            return lambda column: regex.replace(column, (self.config.replacement,))
        if self.config.action == "partial":
            return lambda column: regex.transform(column, self._substitute)
        return lambda column: regex.transform(column, lambda text: self._substitute(canonical(text)))

    def _substitute(self, text: str) -> str:
        if self.config.action == "hash":
            return hmac.digest(self._key, text.encode("utf-8", "surrogateescape"), "sha256").hex()[:16]
        if self.config.action == "redact":
            return self.config.replacement
        kept = min(self.config.keep, len(text) // 2)
        return self.config.replacement + text[len(text) - kept :]


def _where(wanted: Callable[[Array], Mask], column: Array, mask: Callable[[Array], Array]) -> Array:
    """The column with the wanted rows masked, if it is one of bodies, else with all."""
    if not pa.types.is_binary(column.type):
        return mask(column)
    rows = wanted(column)
    if not rows.any():
        return column
    if rows.all():
        return mask(column)
    chosen = pa.array(rows)
    return pc.replace_with_mask(column, chosen, mask(column.filter(chosen)))


def _may_have_email(column: Array) -> Mask:
    """The rows with an `@` or a `%40`, which each address has: in others nothing else need be looked for."""
    data, bounds = bytes_of(column)
    found = data == ord("@")
    percent = np.flatnonzero(data[:-2] == ord("%"))
    found[percent[(data[percent + 1] == ord("4")) & (data[percent + 2] == ord("0"))]] = True
    rows = np.zeros(len(column), np.bool_)
    rows[rows_at(bounds, np.flatnonzero(found))] = True
    return rows


def _decoded(column: Array) -> Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

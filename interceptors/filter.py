"""Interceptor `filter`: keeps or drops events by their body or a header."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from flafka.interceptors.patterns import PatternConfig, PatternInterceptor, regex_validator
from flafka.plugins import Batch, cross_field_validator, option


class FilterConfig(PatternConfig):
    """Options of the interceptor `filter`. Exactly one of `match` and `equals` must be set."""

    on: str = option("body", name="on", min_length=1, description="Value to match: `body`, or a header's name.")
    match: str | None = option(
        None, name="match", description="Regular expression to search in the value: RE2, in Java's syntax."
    )
    equals: list[str] = option(
        [], name="equals", description="Words, separated by blanks. The value matches if it equals one of them."
    )
    drop: bool = option(
        False,
        name="drop",
        description="Drop the events that match and keep the others. If false, keep the events that match and drop "
        "the others. An event without the header does not match.",
    )

    regex_fields = ("match",)
    _check_match = regex_validator("match")

    @cross_field_validator("match", "equals")
    def _check_criterion(self) -> None:
        if (self.match is None) == (not self.equals):
            raise ValueError("exactly one of match (a regular expression) and equals (words) must be set")


class FilterInterceptor(PatternInterceptor[FilterConfig]):
    """Drops the events that `drop` selects and no other; pure. Other events pass unchanged."""

    type_name = "filter"

    def __init__(self, config: FilterConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = None if config.match is None else config.compile_regex(config.match)

    def apply(self, batch: Batch) -> Batch:
        """Return the events whose value matches; with `drop`, the other events. They pass unchanged, in order.

        The value is the body or the header of `on`. It matches if `match` occurs in it, or it equals a word of
        `equals`. An event without the header does not match.
        """
        if self.config.on == "body":
            column, words = batch.bodies, pa.array([word.encode() for word in self.config.equals], pa.binary())
        else:
            column, words = batch.header(self.config.on), pa.array(self.config.equals, pa.string())
        if self._regex is not None:
            matches = self._regex.matches(column).fill_null(False)
        else:
            matches = pc.is_in(column.dictionary_decode() if self.config.on != "body" else column, words)
        remaining = batch.where(pc.invert(matches) if self.config.drop else matches)
        return remaining if len(remaining) < len(batch) else batch

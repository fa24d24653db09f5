"""The interceptor `filter`: keeps or drops events by their body or a header."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from flafka.interceptors.patterns import PatternConfig, PatternInterceptor, compilable
from flafka.plugins import Batch, cross_field_validator, option


class FilterConfig(PatternConfig):
    """Options of the interceptor `filter`. Exactly one of `match` and `equals` says what it looks for."""

    on: str = option("body", name="on", min_length=1, description="What to look at: `body`, or a header's name.")
    match: str | None = option(
        None, name="match", description="Regular expression to find anywhere in it: RE2, in Java's syntax."
    )
    equals: list[str] = option(
        [], name="equals", description="Words, separated by blanks, one of which it has to equal."
    )
    drop: bool = option(
        False,
        name="drop",
        description="Drop the events that match and keep the others; otherwise it is the other way round. An event "
        "without the header does not match.",
    )

    regexes = ("match",)
    _check_match = compilable("match")

    @cross_field_validator("match", "equals")
    def _one_criterion(self) -> None:
        if (self.match is None) == (not self.equals):
            raise ValueError("exactly one of match (a regular expression) and equals (words) must be set")


class FilterInterceptor(PatternInterceptor[FilterConfig]):
    """Drops the events it is told to drop and no other; pure, and what passes is unchanged."""

    type_name = "filter"

    def __init__(self, config: FilterConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = None if config.match is None else config.compiled(config.match)

    def matched(self, batch: Batch) -> Batch:
        """Keep what is to be kept."""
        if self.config.on == "body":
            column, words = batch.bodies, pa.array([word.encode() for word in self.config.equals], pa.binary())
        else:
            column, words = batch.header(self.config.on), pa.array(self.config.equals, pa.string())
        if self._regex is not None:
            found = self._regex.matches(column).fill_null(False)
        else:
            found = pc.is_in(column.dictionary_decode() if self.config.on != "body" else column, words)
        kept = batch.where(pc.invert(found) if self.config.drop else found)
        return kept if len(kept) < len(batch) else batch

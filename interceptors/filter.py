"""The interceptor `filter`: keeps or drops events by their body or a header."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from plugins import Batch, Config, Interceptor, option
from plugins.shared.regex import Regex


class FilterConfig(Config):
    """Options of the interceptor `filter`. Exactly one of `match` and `equals` says what it looks for."""

    on: str = option("body", name="on", min_length=1, description="what it looks at: `body`, or the name of a header")
    allow_backtracking: bool = option(
        False,
        name="allowBacktracking",
        description="run the regular expression event by event with Python's `re`, which has look-around and "
        "back-references, but on some texts takes very long",
    )
    match: str | None = option(
        None, name="match", description="a regular expression that occurs anywhere in it; RE2, in Java's spelling"
    )
    equals: list[str] = option(
        [], name="equals", description="words, separated by blanks, one of which it is as a whole"
    )
    drop: bool = option(
        False,
        name="drop",
        description="drop what is found and keep the rest, instead of the other way round; a header that an event "
        "does not have is never found",
    )

    @pydantic.field_validator("match")
    @classmethod
    def _check_match(cls, pattern: str | None, info: pydantic.ValidationInfo) -> str | None:
        if pattern is not None:
            Regex(pattern, backtracking=info.data.get("allow_backtracking", False))
        return pattern

    @pydantic.model_validator(mode="after")
    def _one_criterion(self) -> Self:
        if (self.match is None) == (not self.equals):
            raise ValueError("needs exactly one of match (a regular expression) and equals (words)")
        return self


class FilterInterceptor(Interceptor[FilterConfig]):
    """Drops the events it is told to drop and no other; pure, and what passes is unchanged."""

    type_name = "filter"

    def __init__(self, config: FilterConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = None
        if config.match is not None:
            self._regex = Regex(config.match, backtracking=config.allow_backtracking)

    def sets_headers(self) -> Collection[str]:
        """None."""
        return ()

    def intercept(self, batch: Batch) -> Batch:
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

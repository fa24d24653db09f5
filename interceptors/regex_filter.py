"""The interceptor `regex_filter`: keeps or drops events by their body."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.compute as pc
import pydantic

from plugins import Batch, Config, Interceptor, option
from plugins.shared.regex import Regex


class RegexFilterConfig(Config):
    """Options of the interceptor `regex_filter`."""

    allow_backtracking: bool = option(
        False,
        name="allowBacktracking",
        description="run the regular expression event by event with Python's `re`, which has look-around and "
        "back-references, but on some texts takes very long",
    )
    regex: str = option(
        ".*",
        name="regex",
        description="a regular expression that occurs anywhere in the body; RE2, in Java's spelling",
    )
    exclude_events: bool = option(
        False, name="excludeEvents", description="drop what matches and keep the rest, instead of the other way round"
    )

    @pydantic.field_validator("regex")
    @classmethod
    def _check_regex(cls, pattern: str, info: pydantic.ValidationInfo) -> str:
        Regex(pattern, backtracking=info.data.get("allow_backtracking", False))
        return pattern


class RegexFilterInterceptor(Interceptor[RegexFilterConfig]):
    """Drops the events it is told to drop and no other; pure, and what passes is unchanged."""

    type_name = "regex_filter"
    aliases = (
        "org.apache.flume.interceptor.RegexFilteringInterceptor$Builder",
        "org.apache.flume.interceptor.RegexFilteringInterceptor",
    )

    def __init__(self, config: RegexFilterConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = Regex(config.regex, backtracking=config.allow_backtracking)

    def sets_headers(self) -> Collection[str]:
        """None."""
        return ()

    def intercept(self, batch: Batch) -> Batch:
        """Keep what is to be kept."""
        found = self._regex.matches(batch.bodies)
        kept = batch.where(pc.invert(found) if self.config.exclude_events else found)
        return kept if len(kept) < len(batch) else batch

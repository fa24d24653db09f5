"""The interceptor `regex_filter`: keeps or drops events by their body."""

from __future__ import annotations

import pyarrow.compute as pc

from flafka.interceptors.patterns import REGEX, PatternConfig, PatternInterceptor, compilable
from flafka.plugins import Batch, option


class RegexFilterConfig(PatternConfig):
    """Options of the interceptor `regex_filter`."""

    regex: str = option(
        ".*",
        name="regex",
        description="Regular expression to find anywhere in the body: RE2, in Java's syntax.",
    )
    exclude_events: bool = option(
        False,
        name="excludeEvents",
        description="Drop the events that match and keep the others; otherwise it is the other way round.",
    )

    regexes = ("regex",)
    _check_regex = compilable("regex")


class RegexFilterInterceptor(PatternInterceptor[RegexFilterConfig]):
    """Drops the events it is told to drop and no other; pure, and what passes is unchanged."""

    type_name = "regex_filter"
    aliases = (
        "org.apache.flume.interceptor.RegexFilteringInterceptor$Builder",
        "org.apache.flume.interceptor.RegexFilteringInterceptor",
    )
    compatibility_notes = REGEX

    def __init__(self, config: RegexFilterConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = config.compiled(config.regex)

    def matched(self, batch: Batch) -> Batch:
        """Keep what is to be kept."""
        found = self._regex.matches(batch.bodies)
        kept = batch.where(pc.invert(found) if self.config.exclude_events else found)
        return kept if len(kept) < len(batch) else batch

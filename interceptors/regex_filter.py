"""Interceptor `regex_filter`: keeps or drops events by their body."""

from __future__ import annotations

import pyarrow.compute as pc

from flafka.interceptors.patterns import REGEX_COMPATIBILITY, PatternConfig, PatternInterceptor, regex_validator
from flafka.plugins import Batch, option


class RegexFilterConfig(PatternConfig):
    """Options of the interceptor `regex_filter`."""

    regex: str = option(
        ".*",
        name="regex",
        description="Regular expression to search in the body: RE2, in Java's syntax.",
    )
    exclude_events: bool = option(
        False,
        name="excludeEvents",
        description="Drop the events that match and keep the others. If false, keep the events that match and drop "
        "the others.",
    )

    regex_fields = ("regex",)
    _check_regex = regex_validator("regex")


class RegexFilterInterceptor(PatternInterceptor[RegexFilterConfig]):
    """Drops the events that `excludeEvents` selects and no other; pure. Other events pass unchanged."""

    type_name = "regex_filter"
    aliases = (
        "org.apache.flume.interceptor.RegexFilteringInterceptor$Builder",
        "org.apache.flume.interceptor.RegexFilteringInterceptor",
    )
    compatibility_notes = REGEX_COMPATIBILITY

    def __init__(self, config: RegexFilterConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = config.compile_regex(config.regex)

    def apply(self, batch: Batch) -> Batch:
        """Return the events whose body the expression matches somewhere; with `excludeEvents`, the other events.

        The events pass unchanged, in order.
        """
        matches = self._regex.matches(batch.bodies)
        remaining = batch.where(pc.invert(matches) if self.config.exclude_events else matches)
        return remaining if len(remaining) < len(batch) else batch

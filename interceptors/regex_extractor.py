"""The interceptor `regex_extractor`: groups of a regular expression become headers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.interceptors.patterns import REGEX, PatternConfig, PatternInterceptor, compilable
from flafka.plugins import Batch, CompatibilityNote, Metric, cross_field_validator, option
from flafka.plugins.columns import Array
from flafka.plugins.problems import suggestion
from flafka.plugins.shared.javaclass import cannot_run, is_java_class
from flafka.plugins.shared.jodatime import TimePattern

_PACKAGE = "org.apache.flume.interceptor."
_AS_IT_IS = ("DEFAULT", f"{_PACKAGE}RegexExtractorInterceptorPassThroughSerializer")
_MILLIS = f"{_PACKAGE}RegexExtractorInterceptorMillisSerializer"


class CapturingGroup(NamedTuple):
    """What becomes of one group."""

    header: str
    time: TimePattern | None
    """How to read it, where the header is to hold its time in milliseconds."""


class RegexExtractorConfig(PatternConfig):
    """Options of the interceptor `regex_extractor`."""

    regex: str = option(
        name="regex",
        min_length=1,
        description="Regular expression with groups to find in the body: RE2, in Java's syntax.",
    )
    serializers: list[str] = option(
        name="serializers", min_length=1, description="A name for each group, in order. Further groups are ignored."
    )
    properties: dict[str, str] = option(
        {},
        name="serializers.",
        description="`serializers.<name>.name` is the header that gets what the group matches. With "
        f"`serializers.<name>.type = {_MILLIS}` the header gets a time in milliseconds since the epoch, and "
        "`serializers.<name>.pattern` is the format that the time is written in, such as yyyy-MM-dd HH:mm, in "
        "Joda-Time's letters.",
    )

    regexes = ("regex",)
    _check_regex = compilable("regex")

    @cross_field_validator("properties", "serializers")
    def _check_properties(self) -> None:
        self.groups()

    def groups(self) -> list[CapturingGroup]:
        """What becomes of each group, in order."""
        return [_group(name, self.properties) for name in self.serializers]


def _group(name: str, properties: dict[str, str]) -> CapturingGroup:
    header, kind, pattern = (properties.get(f"{name}.{key}", "") for key in ("name", "type", "pattern"))
    if not header:
        raise ValueError(f"{name}.name: is required: the header that its group goes to")
    if kind and kind != _MILLIS and kind not in _AS_IT_IS:
        near = suggestion(kind, [*_AS_IT_IS, _MILLIS])
        if is_java_class(kind) and not near:
            raise ValueError(f"{name}.type: {cannot_run('serializer of regex_extractor', kind)}")
        raise ValueError(f"{name}.type: {kind!r} cannot run here{near or f'; built are: {_AS_IT_IS[0]}, {_MILLIS}'}")
    if kind != _MILLIS:
        return CapturingGroup(header, None)
    if not pattern:
        raise ValueError(f"{name}.pattern: is required: how its group writes a time, such as yyyy-MM-dd HH:mm")
    try:
        return CapturingGroup(header, TimePattern(pattern))
    except ValueError as e:
        raise ValueError(f"{name}.pattern: {e}") from None


class RegexExtractorInterceptor(PatternInterceptor[RegexExtractorConfig]):
    """Copies groups of a regular expression from the body into headers; pure, and no event is lost.

    If the pattern does not match, headers stay unchanged. If a group takes no part in the match, or its text is not a
    time of the group's pattern, the event does not get that header.
    """

    type_name = "regex_extractor"
    declared_metrics = (
        Metric("UnparsedTimeCount", "counter", "texts", "Matches that are not a time of their pattern."),
    )
    aliases = (
        f"{_PACKAGE}RegexExtractorInterceptor$Builder",
        f"{_PACKAGE}RegexExtractorInterceptor",
    )
    compatibility_notes = (
        *REGEX,
        CompatibilityNote(
            flume="one time that cannot be read fails its whole batch, for ever",
            here="the event passes without that header, counted as `UnparsedTimeCount`",
        ),
        CompatibilityNote(
            flume="a group that had no part in the match sets its header to null",
            here="the event has no such header",
        ),
        CompatibilityNote(
            flume="zones are those of Joda-Time's own table, of 2017, and a time that a clock skips is none",
            here="those of this machine, and such a time is the one an hour later",
        ),
        CompatibilityNote(
            flume="years before 1 and after 9999 are read",
            here="they are no time: the event passes without that header",
        ),
    )

    def __init__(self, config: RegexExtractorConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = config.compiled(config.regex)
        self._groups = config.groups()

    def sets_headers(self) -> Collection[str]:
        """Those of its groups."""
        return [group.header for group in self._groups]

    def matched(self, batch: Batch) -> Batch:
        """Set the headers; counts what is no time of its pattern as `UnparsedTimeCount`."""
        found, texts = self._regex.extract(batch.bodies)
        if not found.true_count:
            return batch
        everywhere = found.true_count == len(batch)
        for group, text in zip(self._groups, texts, strict=False):
            values = text if group.time is None else self._times(text, group.time.millis)
            if not everywhere:
                values = pc.if_else(found, values, batch.header(group.header).dictionary_decode())
            batch = batch.with_header(group.header, values)
        return batch

    def _times(self, texts: Array, millis: Callable[[str], int | None]) -> Array:
        """Each different text is read once."""
        encoded = texts.dictionary_encode()
        times = [millis(text) for text in encoded.dictionary.to_pylist()]
        values = pa.array([None if time is None else str(time) for time in times], pa.string()).take(encoded.indices)
        if unread := values.null_count - texts.null_count:
            self.metrics.add("UnparsedTimeCount", unread)
        return values

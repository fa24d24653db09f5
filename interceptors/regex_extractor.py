"""Interceptor `regex_extractor`: headers from groups of a regular expression."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.interceptors.patterns import REGEX_COMPATIBILITY, PatternConfig, PatternInterceptor, regex_validator
from flafka.plugins import Batch, CompatibilityNote, Metric, cross_field_validator, option
from flafka.plugins.columns import Array
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.java.jodatime import TimePattern
from flafka.plugins.problems import suggest

_PACKAGE = "org.apache.flume.interceptor."
_PASS_THROUGH = ("DEFAULT", f"{_PACKAGE}RegexExtractorInterceptorPassThroughSerializer")
_MILLIS = f"{_PACKAGE}RegexExtractorInterceptorMillisSerializer"


class CapturingGroup(NamedTuple):
    """Header of one group."""

    header: str
    time: TimePattern | None
    """Pattern of the group's time, for a header in milliseconds; None for the text unchanged."""


class RegexExtractorConfig(PatternConfig):
    """Options of the interceptor `regex_extractor`."""

    regex: str = option(
        name="regex",
        min_length=1,
        description="Regular expression with groups to search in the body: RE2, in Java's syntax.",
    )
    serializers: list[str] = option(
        name="serializers", min_length=1, description="A name for each group, in order. Further groups are ignored."
    )
    properties: dict[str, str] = option(
        {},
        name="serializers.",
        description="`serializers.<name>.name` is the header for the match of the group. With "
        f"`serializers.<name>.type = {_MILLIS}` the header gets a time in milliseconds since the epoch, and "
        "`serializers.<name>.pattern` is the format of the time in the text, such as yyyy-MM-dd HH:mm, as a "
        "pattern of Joda-Time.",
    )

    regex_fields = ("regex",)
    _check_regex = regex_validator("regex")

    @cross_field_validator("properties", "serializers")
    def _check_properties(self) -> None:
        self.groups()

    def groups(self) -> list[CapturingGroup]:
        """Return header and time format of each serializer, in the order of the groups.

        Raises ValueError for a missing header, an unknown type, or an invalid or missing pattern.
        """
        return [_group(name, self.properties) for name in self.serializers]


def _group(name: str, properties: dict[str, str]) -> CapturingGroup:
    """Return header and time format of one serializer. Raises ValueError for wrong properties."""
    header, kind, pattern = (properties.get(f"{name}.{key}", "") for key in ("name", "type", "pattern"))
    if not header:
        raise ValueError(f"{name}.name: is required: the header for its group")
    if kind and kind != _MILLIS and kind not in _PASS_THROUGH:
        near = suggest(kind, [*_PASS_THROUGH, _MILLIS])
        if is_java_class(kind) and not near:
            raise ValueError(f"{name}.type: {java_class_error('serializer of regex_extractor', kind)}")
        raise ValueError(
            f"{name}.type: {kind!r} cannot run here{near or f'; supported are: {_PASS_THROUGH[0]}, {_MILLIS}'}"
        )
    if kind != _MILLIS:
        return CapturingGroup(header, None)
    if not pattern:
        raise ValueError(
            f"{name}.pattern: is required: the format of the time in its group, such as yyyy-MM-dd HH:mm"
        )
    try:
        return CapturingGroup(header, TimePattern(pattern))
    except ValueError as e:
        raise ValueError(f"{name}.pattern: {e}") from None


class RegexExtractorInterceptor(PatternInterceptor[RegexExtractorConfig]):
    """Copies groups of a regular expression from the body into headers. Pure; no event is lost.

    If the pattern does not match, headers stay unchanged. If a group takes no part in the match, or its text is not a
    time of its pattern, the event has no such header.
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
        *REGEX_COMPATIBILITY,
        CompatibilityNote(
            flume="one invalid time fails its whole batch, forever",
            here="the event passes without that header, counted as `UnparsedTimeCount`",
        ),
        CompatibilityNote(
            flume="a group without part in the match sets its header to null",
            here="the event has no such header",
        ),
        CompatibilityNote(
            flume="time zones are of Joda-Time's table of 2017, and a time in a gap of daylight saving is invalid",
            here="time zones are of this host, and such a time is an hour later",
        ),
        CompatibilityNote(
            flume="years before 1 and after 9999 are valid",
            here="they are invalid: the event passes without that header",
        ),
    )

    def __init__(self, config: RegexExtractorConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = config.compile_regex(config.regex)
        self._groups = config.groups()

    def sets_headers(self) -> Collection[str]:
        """Return the names of the headers of the groups."""
        return [group.header for group in self._groups]

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with the groups of the first match as headers; count invalid times as `UnparsedTimeCount`.

        An event without a match keeps its headers. An event whose group is absent or no valid time loses the header.
        """
        matched, texts = self._regex.extract(batch.bodies)
        if not matched.true_count:
            return batch
        all_matched = matched.true_count == len(batch)
        for group, text in zip(self._groups, texts, strict=False):
            values = text if group.time is None else self._convert_times(text, group.time.millis)
            if not all_matched:
                values = pc.if_else(matched, values, batch.header(group.header).dictionary_decode())
            batch = batch.with_header(group.header, values)
        return batch

    def _convert_times(self, texts: Array, millis: Callable[[str], int | None]) -> Array:
        """Return the times as milliseconds since the epoch, in text; null for null and for invalid times.

        Each distinct text is parsed once. Invalid times are counted.
        """
        encoded = texts.dictionary_encode()
        times = [millis(text) for text in encoded.dictionary.to_pylist()]
        values = pa.array([None if time is None else str(time) for time in times], pa.string()).take(encoded.indices)
        if invalid := values.null_count - texts.null_count:
            self.metrics.add("UnparsedTimeCount", invalid)
        return values

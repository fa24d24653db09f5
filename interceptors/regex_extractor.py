"""The interceptor `regex_extractor`: groups of a regular expression become headers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from plugins import Batch, Config, Interceptor, option
from plugins.batch import Array
from plugins.options import suggestion
from plugins.shared.jodatime import TimePattern
from plugins.shared.regex import Regex

_PACKAGE = "org.apache.flume.interceptor."
_AS_IT_IS = ("DEFAULT", f"{_PACKAGE}RegexExtractorInterceptorPassThroughSerializer")
_MILLIS = f"{_PACKAGE}RegexExtractorInterceptorMillisSerializer"


class Group(NamedTuple):
    """What becomes of one group."""

    header: str
    time: TimePattern | None
    """How to read it, where the header is to hold its time in milliseconds."""


class RegexExtractorConfig(Config):
    """Options of the interceptor `regex_extractor`."""

    allow_backtracking: bool = option(
        False,
        name="allowBacktracking",
        description="run the regular expression event by event with Python's `re`, which has look-around and "
        "back-references, but on some texts takes very long",
    )
    regex: str = option(
        name="regex",
        min_length=1,
        description="a regular expression with groups, searched in the body; RE2, in Java's spelling",
    )
    serializers: list[str] = option(
        name="serializers", min_length=1, description="a name for each group, in order; further groups are ignored"
    )
    properties: dict[str, str] = option(
        {},
        name="serializers.",
        validate_default=True,
        description="`serializers.<name>.name`: the header that the group goes to, as it is. "
        f"`serializers.<name>.type = {_MILLIS}`: as milliseconds since the epoch, "
        "`serializers.<name>.pattern` tells how it is written (yyyy-MM-dd HH:mm, in the letters of Joda-Time)",
    )

    @pydantic.field_validator("regex")
    @classmethod
    def _check_regex(cls, pattern: str, info: pydantic.ValidationInfo) -> str:
        Regex(pattern, backtracking=info.data.get("allow_backtracking", False))
        return pattern

    @pydantic.field_validator("properties")
    @classmethod
    def _check_properties(cls, properties: dict[str, str], info: pydantic.ValidationInfo) -> dict[str, str]:
        _groups(info.data.get("serializers", []), properties)
        return properties

    def groups(self) -> list[Group]:
        """What becomes of each group, in order."""
        return _groups(self.serializers, self.properties)


def _groups(names: list[str], properties: dict[str, str]) -> list[Group]:
    return [_group(name, properties) for name in names]


def _group(name: str, properties: dict[str, str]) -> Group:
    header, kind, pattern = (properties.get(f"{name}.{key}", "") for key in ("name", "type", "pattern"))
    if not header:
        raise ValueError(f"{name}.name: is required: the header that its group goes to")
    if kind and kind != _MILLIS and kind not in _AS_IT_IS:
        near = suggestion(kind, [*_AS_IT_IS, _MILLIS])
        raise ValueError(f"{name}.type: {kind!r} cannot run here{near or f'; built are: {_AS_IT_IS[0]}, {_MILLIS}'}")
    if kind != _MILLIS:
        return Group(header, None)
    if not pattern:
        raise ValueError(f"{name}.pattern: is required: how its group writes a time, such as yyyy-MM-dd HH:mm")
    try:
        return Group(header, TimePattern(pattern))
    except ValueError as e:
        raise ValueError(f"{name}.pattern: {e}") from None


class RegexExtractorInterceptor(Interceptor[RegexExtractorConfig]):
    """Copies groups of a regular expression from the body into headers; pure, and no event is lost.

    Where the pattern does not match, headers stay as they are. Where a group has no part in the match, or is no time
    of its pattern, the event has no such header.
    """

    type_name = "regex_extractor"
    counters = ("UnparsedTimeCount",)
    aliases = (
        f"{_PACKAGE}RegexExtractorInterceptor$Builder",
        f"{_PACKAGE}RegexExtractorInterceptor",
    )

    def __init__(self, config: RegexExtractorConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = Regex(config.regex, backtracking=config.allow_backtracking)
        self._groups = config.groups()

    def sets_headers(self) -> Collection[str]:
        """Those of its groups."""
        return [group.header for group in self._groups]

    def intercept(self, batch: Batch) -> Batch:
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

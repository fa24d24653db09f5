"""The interceptor `remove_header`: headers taken away by name."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors.patterns import PatternConfig, PatternInterceptor, compilable
from flafka.plugins import Batch, option
from flafka.plugins.shared.regex import TooSlow, backtracking


class RemoveHeaderConfig(PatternConfig):
    """Options of the interceptor `remove_header`. A header that any of them names is removed."""

    with_name: str | None = option(None, name="withName", description="Name of a header to remove.")
    separator: str = option(
        r"\s*,\s*",
        name="fromListSeparator",
        description="Regular expression for what separates the names in `fromList`.",
    )
    from_list: str | None = option(None, name="fromList", description="Names of headers to remove.")
    matching: str | None = option(
        None,
        name="matching",
        description="Regular expression: RE2, in Java's syntax. Headers whose whole name it matches are removed.",
    )

    @pydantic.field_validator("separator")
    @classmethod
    def _check_separator(cls, pattern: str) -> str:
        backtracking(pattern)
        return pattern

    regexes = ("matching",)
    _check_matching = compilable("matching")

    def names(self) -> set[str]:
        """The headers that `withName` and `fromList` name."""
        listed, start = self.from_list or "", 0
        found = {self.with_name} if self.with_name else set()
        for separator in backtracking(self.separator).finditer(listed):
            if separator.end() > separator.start():
                found.add(listed[start : separator.start()])
                start = separator.end()
        return found | {listed[start:]} - {""}


class RemoveHeaderInterceptor(PatternInterceptor[RemoveHeaderConfig]):
    """Removes headers by name; pure, and no event is lost or changed otherwise."""

    type_name = "remove_header"
    aliases = (
        "org.apache.flume.interceptor.RemoveHeaderInterceptor$Builder",
        "org.apache.flume.interceptor.RemoveHeaderInterceptor",
    )
    hides = True

    def __init__(self, config: RemoveHeaderConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._names = config.names()
        self._regex = None if config.matching is None else config.compiled(config.matching, whole=True)

    def matched(self, batch: Batch) -> Batch:
        """Remove them."""
        there = batch.header_names
        named = [name for name in there if name in self._names]
        if self._regex is not None and there:
            named += self._matching(batch, there)
        return batch.without_header(*named) if named else batch

    def _matching(self, batch: Batch, names: list[str]) -> list[str]:
        assert self._regex is not None
        try:
            matching = self._regex.matches(pa.array(names, pa.string()).cast(pa.binary())).to_pylist()
        except TooSlow as e:
            if rows := [row for number in e.rows for row in _with_header(batch, names[number])]:
                raise TooSlow(rows) from None
            # Names that no event has any more.
            return self._matching(batch, [name for number, name in enumerate(names) if number not in e.rows])
        return [name for name, matches in zip(names, matching, strict=True) if matches]


def _with_header(batch: Batch, name: str) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.is_valid(batch.header(name).indices)).to_pylist()
    return found

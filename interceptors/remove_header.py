"""Interceptor `remove_header`: removes headers by name."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors.patterns import PatternConfig, PatternInterceptor, regex_validator
from flafka.plugins import Batch, option
from flafka.plugins.java.regex import RegexTimeout, compile_backtracking


class RemoveHeaderConfig(PatternConfig):
    """Options of the interceptor `remove_header`. A header that any of them names is removed."""

    with_name: str | None = option(None, name="withName", description="Name of a header to remove.")
    separator: str = option(
        r"\s*,\s*",
        name="fromListSeparator",
        description="Regular expression of the separator of names in `fromList`.",
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
        compile_backtracking(pattern)
        return pattern

    regex_fields = ("matching",)
    _check_matching = regex_validator("matching")

    def names(self) -> set[str]:
        """Return the name in `withName`, and the names in `fromList` between matches of `fromListSeparator`."""
        text, start = self.from_list or "", 0
        names = {self.with_name} if self.with_name else set()
        for separator in compile_backtracking(self.separator).finditer(text):
            if separator.end() > separator.start():
                names.add(text[start : separator.start()])
                start = separator.end()
        return names | {text[start:]} - {""}


class RemoveHeaderInterceptor(PatternInterceptor[RemoveHeaderConfig]):
    """Removes headers by name; pure, and no event is lost or changed otherwise."""

    type_name = "remove_header"
    aliases = (
        "org.apache.flume.interceptor.RemoveHeaderInterceptor$Builder",
        "org.apache.flume.interceptor.RemoveHeaderInterceptor",
    )
    redacts = True

    def __init__(self, config: RemoveHeaderConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._names = config.names()
        self._regex = None if config.matching is None else config.compile_regex(config.matching, whole=True)

    def apply(self, batch: Batch) -> Batch:
        """Return the batch without the headers that `withName` or `fromList` names or `matching` matches in full.

        Raises RegexTimeout with the rows that have a header whose match timed out.
        """
        names = batch.header_names
        removed = [name for name in names if name in self._names]
        if self._regex is not None and names:
            removed += self._matching_names(batch, names)
        return batch.without_header(*removed) if removed else batch

    def _matching_names(self, batch: Batch, names: list[str]) -> list[str]:
        """Return the names that `matching` matches; a name that timed out and that no event has is left out.

        Raises RegexTimeout with the rows that have any other name that timed out.
        """
        assert self._regex is not None
        try:
            matching = self._regex.matches(pa.array(names, pa.string()).cast(pa.binary())).to_pylist()
        except RegexTimeout as e:
            if rows := [row for number in e.rows for row in _rows_with_header(batch, names[number])]:
                raise RegexTimeout(rows) from None
            # No event of the batch has these names.
            return self._matching_names(batch, [name for number, name in enumerate(names) if number not in e.rows])
        return [name for name, matches in zip(names, matching, strict=True) if matches]


def _rows_with_header(batch: Batch, name: str) -> list[int]:
    """Return the indexes of the events that have the header."""
    rows: list[int] = pc.indices_nonzero(pc.is_valid(batch.header(name).indices)).to_pylist()
    return rows

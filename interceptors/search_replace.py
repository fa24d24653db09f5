"""The interceptor `search_replace`: a regular expression replaced in bodies."""

from __future__ import annotations

import codecs
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from plugins import Batch, Config, Interceptor, option
from plugins.batch import Array
from plugins.shared.regex import Regex


class SearchReplaceConfig(Config):
    """Options of the interceptor `search_replace`."""

    allow_backtracking: bool = option(
        False,
        name="allowBacktracking",
        description="run the regular expression event by event with Python's `re`, which has look-around and "
        "back-references, but on some texts takes very long",
    )
    search_pattern: str = option(
        name="searchPattern",
        min_length=1,
        description="a regular expression to replace wherever it occurs in the body; RE2, in Java's spelling",
    )
    replace_string: str = option(
        "",
        name="replaceString",
        description="what is put instead; $1 and ${name} are groups of the pattern, a backslash makes the next "
        "character literal",
    )
    charset: str = option("UTF-8", name="charset", description="how bodies are encoded")

    @pydantic.field_validator("search_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str, info: pydantic.ValidationInfo) -> str:
        Regex(pattern, backtracking=info.data.get("allow_backtracking", False))
        return pattern

    @pydantic.field_validator("replace_string")
    @classmethod
    def _check_replacement(cls, text: str, info: pydantic.ValidationInfo) -> str:
        if "search_pattern" in info.data:
            backtracking = info.data.get("allow_backtracking", False)
            Regex(info.data["search_pattern"], backtracking=backtracking).replacement(text)
        return text

    @pydantic.field_validator("charset")
    @classmethod
    def _check_charset(cls, name: str) -> str:
        try:
            if isinstance("".encode(name), bytes):
                return name
        except (LookupError, ValueError):
            pass
        raise ValueError(f"no charset {name!r} is known here; UTF-8 and ISO-8859-1 are")


class SearchReplaceInterceptor(Interceptor[SearchReplaceConfig]):
    """Replaces what matches in the body and changes nothing else; pure, and no event is lost."""

    type_name = "search_replace"
    aliases = (
        "org.apache.flume.interceptor.SearchAndReplaceInterceptor$Builder",
        "org.apache.flume.interceptor.SearchAndReplaceInterceptor",
    )

    def __init__(self, config: SearchReplaceConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = Regex(config.search_pattern, backtracking=config.allow_backtracking)
        self._replacement = self._regex.replacement(config.replace_string)
        self._as_it_is = codecs.lookup(config.charset).name in ("utf-8", "ascii")

    def sets_headers(self) -> Collection[str]:
        """None: it changes bodies."""
        return ()

    def intercept(self, batch: Batch) -> Batch:
        """Replace."""
        if self._as_it_is:
            return batch.with_bodies(self._regex.replace(batch.bodies, self._replacement))
        return batch.with_bodies(self._in_charset(batch.bodies))

    def _in_charset(self, bodies: Array) -> Array:
        """Bodies in which something matches are decoded and encoded again; the others stay as they are."""
        charset = self.config.charset
        text = pa.array([body.decode(charset, "replace") for body in bodies.to_pylist()], pa.string())
        found = self._regex.matches(text)
        if not found.true_count:
            return bodies
        changed = self._regex.replace(text.filter(found), self._replacement).to_pylist()
        encoded = pa.array([row.encode(charset, "replace") for row in changed], pa.binary())
        return pc.replace_with_mask(bodies, found, encoded)

"""The interceptor `search_replace`: a regular expression replaced in bodies."""

from __future__ import annotations

import codecs

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors.patterns import REGEX, PatternConfig, PatternInterceptor, compilable
from flafka.plugins import Batch, CompatibilityNote, cross_field_validator, option
from flafka.plugins.columns import Array
from flafka.plugins.shared.charsets import text_codec


class SearchReplaceConfig(PatternConfig):
    """Options of the interceptor `search_replace`."""

    search_pattern: str = option(
        name="searchPattern",
        min_length=1,
        description="Regular expression to replace wherever it occurs in the body: RE2, in Java's syntax.",
    )
    replace_string: str = option(
        "",
        name="replaceString",
        description="Text to write instead. $1 and ${name} stand for groups of the pattern; a backslash makes the "
        "next character literal.",
    )
    charset: str = option("UTF-8", name="charset", description="Character set of the bodies.")

    regexes = ("search_pattern",)
    _check_pattern = compilable("search_pattern")

    @cross_field_validator("replace_string", "search_pattern", "allow_backtracking")
    def _check_replacement(self) -> None:
        try:
            regex = self.compiled(self.search_pattern)
        except ValueError:
            return  # said by the check above
        regex.replacement(self.replace_string)

    _check_charset = pydantic.field_validator("charset")(text_codec)


class SearchReplaceInterceptor(PatternInterceptor[SearchReplaceConfig]):
    """Replaces what matches in the body and changes nothing else; pure, and no event is lost."""

    type_name = "search_replace"
    aliases = (
        "org.apache.flume.interceptor.SearchAndReplaceInterceptor$Builder",
        "org.apache.flume.interceptor.SearchAndReplaceInterceptor",
    )
    hides = True
    compatibility_notes = (
        *REGEX,
        CompatibilityNote(
            flume=r"bytes that are no text of `charset` become `\ufffd`",
            here="they stay as they are",
        ),
        CompatibilityNote(
            flume="a replacement that ends in `$` or names a group there is none of fails each batch with a match, "
            "for ever",
            here="an error of `check`",
            option="replaceString",
        ),
    )

    def __init__(self, config: SearchReplaceConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = config.compiled(config.search_pattern)
        self._replacement = self._regex.replacement(config.replace_string)
        self._as_it_is = codecs.lookup(config.charset).name == "utf-8"

    def matched(self, batch: Batch) -> Batch:
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
        changed = self._regex.replace(pc.if_else(found, text, None), self._replacement).to_pylist()
        encoded = [None if row is None else row.encode(charset, "replace") for row in changed]
        return pc.coalesce(pa.array(encoded, pa.binary()), bodies)

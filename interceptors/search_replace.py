"""Interceptor `search_replace`: replaces the matches of a regular expression in bodies."""

from __future__ import annotations

import codecs

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors.patterns import REGEX_COMPATIBILITY, PatternConfig, PatternInterceptor, regex_validator
from flafka.plugins import Batch, CompatibilityNote, cross_field_validator, option
from flafka.plugins.columns import Array
from flafka.plugins.java.charsets import text_codec


class SearchReplaceConfig(PatternConfig):
    """Options of the interceptor `search_replace`."""

    search_pattern: str = option(
        name="searchPattern",
        min_length=1,
        description="Regular expression to replace in the body: RE2, in Java's syntax.",
    )
    replace_string: str = option(
        "",
        name="replaceString",
        description="Replacement. $1 and ${name} are groups of the pattern; a backslash makes the next character "
        "literal.",
    )
    charset: str = option("UTF-8", name="charset", description="Character set of the bodies.")

    regex_fields = ("search_pattern",)
    _check_pattern = regex_validator("search_pattern")

    @cross_field_validator("replace_string", "search_pattern", "allow_backtracking")
    def _check_replacement(self) -> None:
        try:
            regex = self.compile_regex(self.search_pattern)
        except ValueError:
            return  # reported by _check_pattern
        regex.parse_replacement(self.replace_string)

    _check_charset = pydantic.field_validator("charset")(text_codec)


class SearchReplaceInterceptor(PatternInterceptor[SearchReplaceConfig]):
    """Replaces matches in the body and changes nothing else; pure, and no event is lost."""

    type_name = "search_replace"
    aliases = (
        "org.apache.flume.interceptor.SearchAndReplaceInterceptor$Builder",
        "org.apache.flume.interceptor.SearchAndReplaceInterceptor",
    )
    redacts = True
    compatibility_notes = (
        *REGEX_COMPATIBILITY,
        CompatibilityNote(
            flume=r"bytes that are invalid in `charset` become `\ufffd`",
            here="they stay unchanged",
        ),
        CompatibilityNote(
            flume="a replacement that ends in `$` or names a missing group fails each batch with a match, forever",
            here="an error of `check`",
            option="replaceString",
        ),
    )

    def __init__(self, config: SearchReplaceConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._regex = config.compile_regex(config.search_pattern)
        self._replacement = self._regex.parse_replacement(config.replace_string)
        self._is_utf8 = codecs.lookup(config.charset).name == "utf-8"

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with all matches in the bodies replaced."""
        if self._is_utf8:
            return batch.with_bodies(self._regex.replace(batch.bodies, self._replacement))
        return batch.with_bodies(self._replace_decoded(batch.bodies))

    def _replace_decoded(self, bodies: Array) -> Array:
        """Return bodies of another charset with their matches replaced. Bodies without a match keep their bytes.

        In a body with a match, bytes that are invalid in the charset are replaced, too.
        """
        charset = self.config.charset
        text = pa.array([body.decode(charset, "replace") for body in bodies.to_pylist()], pa.string())
        matches = self._regex.matches(text)
        if not matches.true_count:
            return bodies
        changed = self._regex.replace(pc.if_else(matches, text, None), self._replacement).to_pylist()
        encoded = [None if row is None else row.encode(charset, "replace") for row in changed]
        return pc.coalesce(pa.array(encoded, pa.binary()), bodies)

"""Options and base class of interceptors with regular expressions, and the option `preserveExisting`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from flafka.plugins import Batch, CompatibilityNote, Config, Interceptor, Problem, cross_field_validator, option
from flafka.plugins.java.pattern import NonLinearPattern
from flafka.plugins.java.regex import MATCH_TIMEOUT_SECONDS, Regex, RegexTimeout


class PatternConfig(Config):
    """Options of an interceptor with regular expressions."""

    allow_backtracking: bool | None = option(
        None,
        name="allowBacktracking",
        description="Engine of regular expressions. If unset, RE2, in time linear in the text; and a backtracking "
        "engine, event by event, for those with look-around or back-references. `false`: always RE2, which refuses "
        "these. `true`: always the backtracking engine. An event that takes it longer than "
        f"{MATCH_TIMEOUT_SECONDS:.0f} s becomes a dead letter, unchanged.",
    )

    regex_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields with a regular expression or None."""

    def patterns_by_option(self) -> Mapping[str, str]:
        """Return the regular expressions by the names of their options, without unset ones."""
        options = {o.field: o.name for o in self.options() if o.field in self.regex_fields}
        values = {name: getattr(self, field) for field, name in options.items()}
        return {name: pattern for name, pattern in values.items() if pattern is not None}

    def compile_regex(self, pattern: str, *, whole: bool = False, isolate: bool = False) -> Regex:
        """Compile a regular expression for the engine that `allowBacktracking` selects.

        `whole`: it must match the whole text. `isolate`: only the group of a match is replaced, if there is a group.
        Raises ValueError if the expression is invalid, or if `allowBacktracking` is false and RE2 cannot run it.
        """
        try:
            return Regex(pattern, backtracking=self.allow_backtracking, whole=whole, isolate=isolate)
        except NonLinearPattern as e:
            raise ValueError(f"{e}: write it without, or remove allowBacktracking") from None

    def warnings(self) -> Iterator[Problem]:
        """Yield a note for each regular expression that RE2 cannot run."""
        yield from super().warnings()
        for name, pattern in self.patterns_by_option().items():
            yield from self.compile_regex(pattern).notes(name)


def regex_validator(field: str) -> Callable[[PatternConfig], None]:
    """Return a validator of a PatternConfig: the regular expression of this field must compile, if set."""

    @cross_field_validator(field, "allow_backtracking")
    def check(config: PatternConfig) -> None:
        if (pattern := getattr(config, field)) is not None:
            config.compile_regex(pattern)

    return check


P = TypeVar("P", bound=PatternConfig)


class PatternInterceptor(Interceptor[P]):
    """Base of interceptors with regular expressions. Events for which a match times out become dead letters."""

    def sets_headers(self) -> Collection[str]:
        """Return no names: subclasses that set headers override this."""
        return ()

    @abstractmethod
    def apply(self, batch: Batch) -> Batch:
        """Return the changed batch. Raises RegexTimeout with the rows of the batch whose match timed out."""

    def intercept(self, batch: Batch) -> Batch:
        """Return the changed batch, without events for which a match times out: these become dead letters."""
        while True:
            try:
                return self.apply(batch)
            except RegexTimeout as e:
                batch = self.reject(batch, dict.fromkeys(e.rows, e.reason))


def preserve_existing_option(default: bool) -> Any:
    """Return the option `preserveExisting`, with this default, for an interceptor that sets a header."""
    return option(default, name="preserveExisting", description="Keep the header of events that already have it.")


REGEX_COMPATIBILITY = (
    CompatibilityNote(
        flume="regular expressions are Java's, which some texts can hang",
        here="RE2: the same syntax, in linear time. Those with look-around or back-references are run event by "
        f"event by a backtracking engine; an event that takes it longer than {MATCH_TIMEOUT_SECONDS:.0f} s becomes a "
        r"dead letter. `$` is the end of the body and `.` matches all but a newline: if lines end in CR LF, write "
        r"`\r?$`; `\b` is a boundary of ASCII words; "
        "an empty match right after another is not replaced, unless the backtracking engine runs the pattern; "
        r"`[[:alpha:]]`, for Java a set of these characters, is an error: write `\p{Alpha}`; "
        "if a repeated group can match an empty text, as in `(a*|b)*`, Java stops there and RE2 continues; "
        "some patterns that Java refuses are accepted, such as `{`; a reference to a later group, and an "
        "intersection with an empty set, are errors: for Java the former never matches, the latter is ignored",
    ),
)
"""Compatibility notes of interceptors with regular expressions."""

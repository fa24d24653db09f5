"""The options that several interceptors share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from flafka.plugins import Batch, CompatibilityNote, Config, Interceptor, Problem, cross_field_validator, option
from flafka.plugins.shared.javaregex import NotLinear
from flafka.plugins.shared.regex import LONGEST, Regex, TooSlow


class PatternConfig(Config):
    """Options of an interceptor that takes regular expressions."""

    allow_backtracking: bool | None = option(
        None,
        name="allowBacktracking",
        description="Which engine runs regular expressions. If unset, RE2, in time linear in the text, and "
        "one that backtracks, event by event, for those with look-around or back-references. `false`: always RE2, "
        f"which refuses these. `true`: always the other. An event that takes that one longer than {LONGEST:.0f} s "
        "becomes a dead letter, as it was.",
    )

    regexes: ClassVar[tuple[str, ...]] = ()
    """Fields that hold a regular expression, or None."""

    def patterns_by_option(self) -> Mapping[str, str]:
        """Regular expressions by option."""
        options = {o.field: o.name for o in self.options() if o.field in self.regexes}
        values = {name: getattr(self, field) for field, name in options.items()}
        return {name: pattern for name, pattern in values.items() if pattern is not None}

    def compiled(self, pattern: str, *, whole: bool = False, isolate: bool = False) -> Regex:
        """Compile a regular expression. ValueError says what is wrong with it."""
        try:
            return Regex(pattern, backtracking=self.allow_backtracking, whole=whole, isolate=isolate)
        except NotLinear as e:
            raise ValueError(f"{e}: write it without, or leave allowBacktracking out") from None

    def warnings(self) -> Iterator[Problem]:
        """Name the regular expressions that RE2 cannot run."""
        yield from super().warnings()
        for name, pattern in self.patterns_by_option().items():
            yield from self.compiled(pattern).note(name)


def compilable(field: str) -> Callable[[PatternConfig], None]:
    """Check of a PatternConfig that the regular expression in this field, if there is one, can be compiled."""

    @cross_field_validator(field, "allow_backtracking")
    def check(config: PatternConfig) -> None:
        if (pattern := getattr(config, field)) is not None:
            config.compiled(pattern)

    return check


P = TypeVar("P", bound=PatternConfig)


class PatternInterceptor(Interceptor[P]):
    """One that takes regular expressions: events that one of them is not done with become dead letters."""

    def sets_headers(self) -> Collection[str]:
        """Return no names: most of these interceptors set no headers."""
        return ()

    @abstractmethod
    def matched(self, batch: Batch) -> Batch:
        """Return the batch changed. May raise TooSlow, with rows of the batch."""

    def intercept(self, batch: Batch) -> Batch:
        """Return the batch changed."""
        while True:
            try:
                return self.matched(batch)
            except TooSlow as e:
                batch = self.reject(batch, dict.fromkeys(e.rows, e.reason))


def preserve_existing(default: bool) -> Any:
    """The option `preserveExisting` of an interceptor that sets a header."""
    return option(
        default, name="preserveExisting", description="Leave the header of events that have it already as it is."
    )


REGEX = (
    CompatibilityNote(
        flume="regular expressions are Java's, which some texts can hang",
        here="RE2: the same spelling, in linear time. Those with look-around or back-references are run event by "
        f"event by an engine that backtracks; an event that takes it longer than {LONGEST:.0f} s becomes a dead "
        "letter. `$` is the very end of the body and `.` takes all but a newline: where lines "
        r"end in CR LF, write `\r?$`; `\b` is the edge of a word of ASCII letters; "
        "an empty match right behind another is not replaced, unless the other engine runs the pattern; "
        r"`[[:alpha:]]`, for Java a set of these characters, is an error: write `\p{Alpha}`; "
        "where what is repeated may match nothing, as in `(a*|b)*`, Java ends there and RE2 goes on; "
        "some patterns that Java refuses are taken, such as `{`; a reference to a group that is not there yet, and "
        "an intersection with nothing, are errors: for Java the one never matches, the other is ignored",
    ),
)
"""Differences between the interceptors with patterns and Flume's."""

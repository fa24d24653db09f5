"""The options that several interceptors share."""

from __future__ import annotations

from typing import Any

from plugins import Config, Difference, option
from plugins.shared.regex import Regex


class PatternConfig(Config):
    """Options of an interceptor that takes regular expressions."""

    allow_backtracking: bool = option(
        False,
        name="allowBacktracking",
        description="Match regular expressions event by event with Python's `re` instead of RE2. It supports "
        "look-around and back-references, but can take very long on some texts.",
    )

    def compiled(self, pattern: str, *, whole: bool = False, isolate: bool = False) -> Regex:
        """That regular expression, ready to be used. ValueError says what is wrong with it."""
        return Regex(pattern, backtracking=self.allow_backtracking, whole=whole, isolate=isolate)


def preserve_existing(default: bool) -> Any:
    """The option `preserveExisting` of an interceptor that sets a header."""
    return option(
        default, name="preserveExisting", description="Leave the header of events that have it already as it is."
    )


REGEX = (
    Difference(
        flume="regular expressions are Java's, which some texts can hang",
        here="RE2: the same spelling, without look-around and back-references; `allowBacktracking = true` "
        "brings them back. `$` is the very end of the body and `.` takes all but a newline: where lines "
        r"end in CR LF, write `\r?$`; `\b` is the edge of a word of ASCII letters; "
        "an empty match right behind another is not replaced; "
        "some patterns that Java refuses are taken, such as `{`",
    ),
)
"""What the interceptors with patterns do otherwise than Flume's."""

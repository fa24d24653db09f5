"""Patterns of file names, in Java's spelling."""

from __future__ import annotations

import re

from plugins.shared.javaregex import JavaPattern


def name_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern for `fullmatch`. ValueError where it cannot be read."""
    # Names are short and the pattern is the operator's own: look-around, which Flume's users exclude files with,
    # is worth more here than a bound on time.
    java = JavaPattern(pattern, "re")
    try:
        return re.compile("".join(java.out), re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the regular expression {pattern!r} cannot be read: {e}") from e

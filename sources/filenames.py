"""File name patterns in Java's regex syntax, and warnings about shell globs."""

from __future__ import annotations

import re

from flafka.plugins.java.pattern import JavaPattern

_GLOB = re.compile(r"(?<![\\.\])}])(?<!\\\w)\*")
"""`*` that repeats a plain character, which is rarely meant in a regular expression."""


def glob_pattern_warning(pattern: str, directory: str = "") -> str:
    """Return a warning if a `*` of a regular expression follows a plain character, as in a shell glob, else "".

    `directory` precedes the pattern in the correction that the warning proposes.
    """
    if not _GLOB.search(pattern):
        return ""
    correction = re.sub(r"(?<![\\[])\.(?![*+?{])", "[.]", _GLOB.sub(".*", pattern))
    return (
        f"has the regular expression {pattern!r}, in which * repeats the character before it: "
        f"for any text there write {directory}{correction}"
    )


def glob_directory_warning(directory: str, correction: str) -> str:
    """Return a warning if the path of a directory contains a `*`, as a shell glob would, else "".

    The warning proposes the `correction`.
    """
    if "*" not in directory:
        return ""
    return f"names one directory, {directory!r}, and a directory takes no pattern: {correction}"


def compile_name_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a file name pattern in Java's regex syntax, to be used with `fullmatch`.

    Raises ValueError where the pattern is invalid.
    """
    # Flume's users exclude files with look-around, which a linear-time engine lacks. Backtracking is acceptable:
    # names are short, and the operator wrote the pattern.
    java = JavaPattern(pattern, "re")
    try:
        return re.compile("".join(java.pieces), re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the regular expression {pattern!r} cannot be read: {e}") from e

"""Patterns of file names in Java's regex syntax, and warnings about shell globs."""

from __future__ import annotations

import re

from flafka.plugins.shared.javaregex import JavaPattern

_GLOB = re.compile(r"(?<![\\.\])}])(?<!\\\w)\*")
"""`*` that repeats a plain character, which is rarely meant in a regular expression."""


def shell_pattern(pattern: str, directory: str = "") -> str:
    """Return a warning where a regular expression of file names looks like a shell glob, else "".

    `directory` precedes the pattern in the correction that the warning proposes.
    """
    if not _GLOB.search(pattern):
        return ""
    meant = re.sub(r"(?<![\\[])\.(?![*+?{])", "[.]", _GLOB.sub(".*", pattern))
    return (
        f"has the regular expression {pattern!r}, in which * repeats the character before it: "
        f"for any text there write {directory}{meant}"
    )


def shell_directory(directory: str, instead: str) -> str:
    """Return a warning where a directory looks like a shell glob, else "".

    `instead` is the correction that the warning proposes.
    """
    return (
        f"names one directory, {directory!r}, and a directory takes no pattern: {instead}" if "*" in directory else ""
    )


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Compile the pattern for `fullmatch`. Raises ValueError where the pattern is invalid."""
    # Flume's users exclude files with look-around, which a linear-time engine lacks. Backtracking is acceptable:
    # names are short, and the operator wrote the pattern.
    java = JavaPattern(pattern, "re")
    try:
        return re.compile("".join(java.out), re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the regular expression {pattern!r} cannot be read: {e}") from e

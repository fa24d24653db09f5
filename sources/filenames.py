"""Patterns of file names in Java's spelling, and what looks like a shell's."""

from __future__ import annotations

import re

from plugins.shared.javaregex import JavaPattern

_GLOB = re.compile(r"(?<![\\.\])}])(?<!\\\w)\*")
"""A `*` that repeats a plain character: in a regular expression that is rarely meant."""


def shell_pattern(pattern: str, directory: str = "") -> str:
    """Return a warning where a regular expression of file names looks like a shell's pattern; empty where not.

    `directory` precedes the pattern in what the warning tells to write.
    """
    if not _GLOB.search(pattern):
        return ""
    meant = re.sub(r"(?<![\\[])\.(?![*+?{])", "[.]", _GLOB.sub(".*", pattern))
    return (
        f"has the regular expression {pattern!r}, in which * repeats the character before it: "
        f"for any text there write {directory}{meant}"
    )


def shell_directory(directory: str, instead: str) -> str:
    """Return a warning where a directory looks like a shell's pattern; `instead` tells what to write."""
    return (
        f"names one directory, {directory!r}, and a directory takes no pattern: {instead}" if "*" in directory else ""
    )


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern for `fullmatch`. Raises ValueError where it cannot be read."""
    # Names are short and the pattern is the operator's own: look-around, which Flume's users exclude files with,
    # is worth more here than a bound on time.
    java = JavaPattern(pattern, "re")
    try:
        return re.compile("".join(java.out), re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the regular expression {pattern!r} cannot be read: {e}") from e

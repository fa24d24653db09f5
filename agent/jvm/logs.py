"""Errors in the logs of Java programs."""

import re
from pathlib import Path

_ERROR = re.compile(
    r"(?:\S+ \S+ (?:ERROR|FATAL) \S+ (?!.*(?:Exception|Error)\b)|(?:.*\s)?(?=[\w.$]*(?:Exception|Error)(?:: |$)))(.+)"
)
"""First line of an error in a log of log4j or of the JVM; the group is the message."""
_CAUSE = "Caused by: "


def last_error(log: Path, start: int = 0) -> str:
    """Return the latest error in a log from byte `start` on, with its innermost cause; empty if there is none."""
    error = cause = ""
    for line in tail(log, start):
        if line.startswith(_CAUSE):
            cause = line.removeprefix(_CAUSE)
        elif not line[:1].isspace() and (match := _ERROR.fullmatch(line)):
            error, cause = match[1], ""
    return error if not cause or cause in error else f"{error} ({cause})" if error else cause


def tail(log: Path, start: int) -> list[str]:
    """Return the lines of a log from byte `start` on, at most the last MiB; empty if the file cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, 2) - (1 << 20)))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []

"""Errors in the logs of Java programs."""

import re
from pathlib import Path

_ERROR = re.compile(
    r"(?:\S+ \S+ (?:ERROR|FATAL) \S+ (?!.*(?:Exception|Error)\b)|(?:.*\s)?(?=[\w.$]*(?:Exception|Error)(?:: |$)))(.+)"
)
"""A line that begins an error, of log4j or of Java itself; what of it is worth telling."""
_CAUSE = "Caused by: "


def last_error(log: Path, start: int = 0) -> str:
    """Latest error in a Java program's log from that byte on, with its cause; empty for none."""
    error = cause = ""
    for line in tail(log, start):
        if line.startswith(_CAUSE):
            cause = line.removeprefix(_CAUSE)
        elif not line[:1].isspace() and (found := _ERROR.fullmatch(line)):
            error, cause = found[1], ""
    return error if not cause or cause in error else f"{error} ({cause})" if error else cause


def tail(log: Path, start: int) -> list[str]:
    """Lines of a log from that byte on, at most the last megabyte; none if the file cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, 2) - (1 << 20)))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []

"""Stack traces in Java's format, from the fields that encoders write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NAME = ("name", "className", "class", "exception_class", "exceptionType", "type")
_MESSAGE = ("message", "exception_message", "localizedMessage")
_FRAMES = ("extendedStackTrace", "stepArray", "stackTrace", "stacktrace", "stack_trace", "frames")
_COMMON = ("commonElementCount", "commonFramesCount")
_CAUSE = ("cause", "causedBy")
_NATIVE_LINE = -2


def format_trace(value: Any) -> str | None:
    """Return the stack trace in `value`, a text, a list of lines or frames, or an object, without a final newline.

    Empty for an empty text or list; None if `value` is no stack trace, such as a text of one line.
    """
    if isinstance(value, list):
        lines = all(isinstance(line, str) for line in value)
        return "\n".join(value if lines else map(_frame, _dicts(value))).rstrip()
    if isinstance(value, dict):
        if isinstance(trace := _get(value, _FRAMES), str):
            return trace.rstrip()
        return "\n".join(_lines(value)) if _get(value, _NAME) else None
    # Java ends even a trace of one line with a newline.
    return value.rstrip() if isinstance(value, str) and ("\n" in value or not value) else None


def _lines(
    thrown: dict[str, Any], introduction: str = "", indent: str = "", outer: list[dict[str, Any]] | None = None
) -> Iterator[str]:
    """Yield the lines of an exception, its suppressed exceptions and its causes, as Java prints them.

    `introduction` begins the first line, such as `Caused by: `. `indent` begins every line. `outer`: stack frames of
    the exception that this one caused; None for the outermost.
    """
    head = [str(part) for part in (_get(thrown, _NAME), _get(thrown, _MESSAGE)) if part is not None]
    yield f"{indent}{introduction}{': '.join(head)}"
    frames = _dicts(_get(thrown, _FRAMES))
    for frame in frames:
        yield indent + _frame(frame)
    # logback's JsonEncoder writes all frames, and their number, if all are common.
    if (common := _get(thrown, _COMMON)) and not (outer and frames and frames[-1] == outer[-1]):
        yield f"{indent}\t... {common} more"
    for suppressed in _dicts(thrown.get("suppressed")):
        yield from _lines(suppressed, "Suppressed: ", indent + "\t", frames)
    if isinstance(cause := _get(thrown, _CAUSE), dict):
        yield from _lines(cause.get("exception", cause), "Caused by: ", indent, frames)


def _frame(frame: dict[str, Any]) -> str:
    """Return the line of a stack frame as Java prints it, with a leading tab."""
    module = f"{frame['module']}/" if frame.get("module") else ""
    line = _get(frame, ("line", "lineNumber"))
    location = _get(frame, ("file", "fileName")) or "Unknown Source"
    if line == _NATIVE_LINE:
        location = "Native Method"
    elif isinstance(line, int) and line > 0:
        location += f":{line}"
    return f"\tat {module}{_get(frame, ('class', 'className'))}.{_get(frame, ('method', 'methodName'))}({location})"


def _get(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the value of the first field of `names` that is there and not null; None without one."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _dicts(values: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; empty if `values` is no list."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []

"""Problems of a component's properties, in words for the author of the configuration."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pydantic

from flafka.plugins.optioninfo import Option


@dataclass(frozen=True)
class Problem:
    """One problem of a component's properties.

    A problem from `Config.warnings` warns of a behaviour unlike Flume's, unless one of the last four fields says
    otherwise.
    """

    option: str
    """Name of the property."""
    message: str
    """Predicate for the option, such as `must be at least 1`."""
    is_unknown_option: bool = False
    """True if the component has no such option."""
    is_flume_behavior: bool = False
    """True if Flume behaves in the same way: the configuration itself is wrong, or surprising."""
    is_note: bool = False
    """True if the problem changes and loses nothing, and is shown only by `agent check -v`."""
    replacement: Mapping[str, str] | None = None
    """Options that state the present behaviour instead of this one; empty if the line can be removed."""
    is_library_missing: bool = field(default=False, repr=False)
    """True if a library is missing on this machine: an error of `agent check`, but not of the configuration."""


_MESSAGES = {
    "missing": "is required",
    "literal_error": "must be {expected}",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have a length of at least {min_length}",
    "string_pattern_mismatch": "must match {pattern}",
}
"""Messages for users by the type of pydantic's error."""


def problems_of(error: pydantic.ValidationError, options: Mapping[str, Option]) -> list[Problem]:
    """Return all problems that pydantic and the cross-field validators have found; `options` are keyed by name."""
    problems = []
    for detail in error.errors():
        if detail["type"] == "cross_field":
            names = {option.field: option for option in options.values()}
            for field, message in detail["ctx"]["found"]:
                problems += _split_by_property(names[field], message)
        else:
            problems += _problems_of_field(detail, options)
    return problems


def _problems_of_field(error: Any, options: Mapping[str, Option]) -> list[Problem]:
    """Return the problems in pydantic's error of one field."""
    location = error["loc"]
    name = str(location[0]) if location else ""
    declared = options.get(name) or next((option for option in options.values() if option.field == name), None)
    if error["type"] not in _MESSAGES:
        message = error["msg"].removeprefix("Value error, ")
        return _split_by_property(declared, message) if declared else [Problem(name, message)]
    name = declared.name if declared else name
    if declared is not None and declared.is_prefix and len(location) > 1:
        name += str(location[1])
    message = _MESSAGES[error["type"]].format(**error.get("ctx", {}))
    given = error["input"]
    if isinstance(given, str) and not (declared and declared.is_secret):
        message += f", not {given if len(given) <= 60 else given[:59] + '…'!r}"
    return [Problem(name, message)]


def _split_by_property(option: Option, message: str) -> list[Problem]:
    """Return the problems in a validator's message: a line `<key>: …` is about one property under a prefix."""
    if not option.is_prefix:
        return [Problem(option.name, message)]
    problems: list[Problem] = []
    for line in message.split("\n"):
        key, colon, rest = line.partition(": ")
        if colon and " " not in key:
            problems.append(Problem(option.name + key, rest))
        elif problems:
            problems[-1] = replace(problems[-1], message=f"{problems[-1].message}\n{line}")
        else:
            problems.append(Problem(option.name, line))
    return problems


def missing_library(option: str, module: str, extra: str) -> Iterator[Problem]:
    """Yield one problem if the library that the option needs is not installed, for `Config.warnings`.

    `extra` is the extra that installs it.
    """
    if importlib.util.find_spec(module) is None:
        message = f"needs {module}, which is not installed: pip install 'flafka[{extra}]'"
        yield Problem(option, message, is_library_missing=True)


def unknown_option(name: str, known: list[str]) -> Problem:
    """Return the problem of an option that the component lacks, with the nearest of the `known` names."""
    return Problem(name, f"unknown option {name!r}{suggest(name, known)}", is_unknown_option=True)


def suggest(word: str, known: list[str]) -> str:
    """Return `, did you mean 'x'?`, or an empty text if no known word is similar."""
    folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(word.lower(), list(folded), n=1, cutoff=0.7)
    return f", did you mean {folded[near[0]]!r}?" if near else ""

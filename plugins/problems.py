"""What is wrong with a component's properties, in words for whoever writes the configuration."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pydantic

from flafka.plugins.declared import Option


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a component's properties. `unknown` marks a property the component does not have.

    One of `Config.warnings` is a warning that something else happens here than in Flume, unless the fields after
    `unknown` say otherwise.
    """

    option: str
    message: str
    unknown: bool = False
    as_in_flume: bool = False
    """Whether Flume does the same: a mistake, or a surprise, of the file's own."""
    note: bool = False
    """Whether nothing is changed or lost by it, so that only those who ask for all need to know."""
    instead: Mapping[str, str] | None = None
    """Options that say, in place of this one's line, what happens here; where empty, the line can go."""
    uninstalled: bool = field(default=False, repr=False)
    """Whether a library is missing on this machine: an error of `agent check`, and no mistake of the file."""


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
"""What pydantic's errors mean to someone who writes a configuration, by their type."""


def problems_of(error: pydantic.ValidationError, options: Mapping[str, Option]) -> list[Problem]:
    """Return everything that pydantic or a `cross_field_validator` finds wrong; `options` has them by name."""
    found = []
    for one in error.errors():
        if one["type"] == "disagreement":
            names = {option.field: option for option in options.values()}
            for field, message in one["ctx"]["found"]:
                found += _about(names[field], message)
        else:
            found += _of_one(one, options)
    return found


def _of_one(error: Any, options: Mapping[str, Option]) -> list[Problem]:
    location = error["loc"]
    name = str(location[0]) if location else ""
    declared = options.get(name) or next((option for option in options.values() if option.field == name), None)
    if error["type"] not in _MESSAGES:
        message = error["msg"].removeprefix("Value error, ")
        return _about(declared, message) if declared else [Problem(name, message)]
    name = declared.name if declared else name
    if declared is not None and declared.is_prefix and len(location) > 1:
        name += str(location[1])
    message = _MESSAGES[error["type"]].format(**error.get("ctx", {}))
    given = error["input"]
    if isinstance(given, str) and not (declared and declared.secret):
        message += f", not {given if len(given) <= 60 else given[:59] + '…'!r}"
    return [Problem(name, message)]


def _about(option: Option, message: str) -> list[Problem]:
    """What a check says about an option: a line `<key>: …` is about one property under a prefix."""
    if not option.is_prefix:
        return [Problem(option.name, message)]
    found: list[Problem] = []
    for line in message.split("\n"):
        key, colon, rest = line.partition(": ")
        if colon and " " not in key:
            found.append(Problem(option.name + key, rest))
        elif found:
            found[-1] = replace(found[-1], message=f"{found[-1].message}\n{line}")
        else:
            found.append(Problem(option.name, line))
    return found


def missing_library(option: str, module: str, extra: str) -> Iterator[Problem]:
    """For `Config.warnings`: that this option needs a library which is not installed, and which extra brings it."""
    if importlib.util.find_spec(module) is None:
        message = f"needs {module}, which is not installed: pip install 'flafka[{extra}]'"
        yield Problem(option, message, uninstalled=True)


def unknown(name: str, known: list[str]) -> Problem:
    """That the component has no option of that name, and which of those `known` may be meant."""
    return Problem(name, f"unknown option {name!r}{suggestion(name, known)}", unknown=True)


def suggestion(word: str, known: list[str]) -> str:
    """`, did you mean 'x'?`, or nothing where no known word is near."""
    folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(word.lower(), list(folded), n=1, cutoff=0.7)
    return f", did you mean {folded[near[0]]!r}?" if near else ""

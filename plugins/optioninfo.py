"""Description of a declared option, for the documentation, for checks and for parsing."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

REQUIRED: Any = PydanticUndefined
"""Default of a required option."""


@dataclass(frozen=True)
class Option:
    """Description of one option of a `Config`."""

    name: str
    """Name in the configuration file."""
    field: str
    """Name of the field of the `Config`."""
    kind: str
    """Type for users, such as `integer` or `true or false`."""
    default: Any
    """`REQUIRED` if the option must be set."""
    unit: str
    bounds: str
    description: str
    is_secret: bool
    without_effect: bool = False
    """True if the option has no effect; its description then says why."""
    must_exist: bool = False
    """True if the option names a file or directory that must exist."""
    path: str = ""
    """Base of a relative path: `flume`, `flume list` or `own`, as in `option`; empty if the option is no path."""
    section: str = ""
    """`Config.section` of the class that declares the option."""

    @property
    def is_required(self) -> bool:
        """True if the option has no default."""
        return self.default is REQUIRED

    @property
    def is_prefix(self) -> bool:
        """True if the name ends in a dot: the option takes every property under that name."""
        return self.name.endswith(".")


def option_of(field: str, info: FieldInfo, section: str) -> Option:
    """Return the description of a pydantic field, declared in a class with that section."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return Option(
        name=info.alias or field,
        field=field,
        kind=_kind(info.annotation),
        default=info.get_default(call_default_factory=True),
        unit=str(extra.get("unit", "")),
        bounds=", ".join(_bounds(info.metadata)),
        description=info.description or "",
        is_secret=SecretStr in (info.annotation, *typing.get_args(info.annotation)),
        without_effect=bool(extra.get("without_effect")),
        must_exist=bool(extra.get("must_exist")),
        path=str(extra.get("path", "")),
        section=section,
    )


def _kind(annotation: Any) -> str:
    """Return the type of an option in words for users, such as `integer`, without None."""
    if is_union(annotation):
        return " or ".join(_kind(a) for a in typing.get_args(annotation) if a is not type(None))
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " | ".join(map(str, typing.get_args(annotation)))
    if origin in (list, tuple):
        return "words"
    if origin is dict or annotation is dict:
        return "properties"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", SecretStr: "secret"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def is_union(annotation: Any) -> bool:
    """Return True for `A | B` and for `Optional[A]`."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    """Yield the constraints of pydantic's metadata as texts, such as `≥ 1`."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for constraint in metadata:
        for attribute, sign in signs.items():
            if (value := getattr(constraint, attribute, None)) is not None:
                yield f"{sign} {value}"
        if (pattern := getattr(constraint, "pattern", None)) is not None:
            yield f"matches {pattern}"

"""What is known of a declared option: for documentation, for checks, and for who reads its text."""

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
"""Default of an option that must be given."""


@dataclass(frozen=True)
class Option:
    """One declared option, as documentation and checks read it."""

    name: str
    field: str
    kind: str
    default: Any
    unit: str
    bounds: str
    description: str
    secret: bool
    without_effect: bool = False
    """Whether it has no effect; its description then says why."""
    file: bool = False
    """Whether it names a file, or a directory, that has to be there."""
    path: str = ""
    """What a relative path begins at: `flume`, `flume list` or `own`, as `option` takes it; empty of no path."""
    section: str = ""
    """The `section` of the class that declares it."""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is REQUIRED

    @property
    def is_prefix(self) -> bool:
        """Whether it takes every property that starts with its name (which ends in a dot)."""
        return self.name.endswith(".")


def option_of(field: str, info: FieldInfo, section: str) -> Option:
    """The option that pydantic's field of that name is, declared in such a section."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return Option(
        name=info.alias or field,
        field=field,
        kind=_kind(info.annotation),
        default=info.get_default(call_default_factory=True),
        unit=str(extra.get("unit", "")),
        bounds=", ".join(_bounds(info.metadata)),
        description=info.description or "",
        secret=SecretStr in (info.annotation, *typing.get_args(info.annotation)),
        without_effect=bool(extra.get("without_effect")),
        file=bool(extra.get("file")),
        path=str(extra.get("path", "")),
        section=section,
    )


def _kind(annotation: Any) -> str:
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
    """Whether it is `A | B`, or `Optional[A]`."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for constraint in metadata:
        for attribute, sign in signs.items():
            if (value := getattr(constraint, attribute, None)) is not None:
                yield f"{sign} {value}"
        if (pattern := getattr(constraint, "pattern", None)) is not None:
            yield f"matches {pattern}"

"""Options of a component, declared once: name, type, unit, default, bounds, description."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

import pydantic
from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from flafka.plugins.declared import REQUIRED, Option, is_union, option_of
from flafka.plugins.problems import Problem, problems_of, unknown
from flafka.plugins.units import not_in_unit


def option(
    default: Any = REQUIRED,
    *,
    name: str,
    description: str,
    unit: str = "",
    file: bool = False,
    path: str = "",
    without_effect: bool = False,
    **bounds: Any,
) -> Any:
    """Declare one option of a `Config`.

    `name` is its spelling in the configuration file (Flume's, where Flume has it). A name that ends in a dot takes
    all properties under it, as a `dict[str, str]`; a validator's `ValueError("<key>: …")` is about that one of
    them, and one of several such lines about several. `unit` is what a number counts (`s`, `ms`, `bytes`,
    `events`). `path` marks a path, of which the component gets the absolute form: `flume` of an option that Flume
    has, where a relative path begins at the working directory; `flume list` of several, separated by commas; `own`
    of another option, where it begins at the directory of the configuration file. `file` marks a path of something
    that is read, `own` unless `path` says otherwise. `without_effect` is for an option that is declared only because
    a check reads it: it has no effect, and its description says why. `bounds` are pydantic's: `ge`, `le`, `gt`,
    `lt`, `pattern`, `min_length`.
    """
    if isinstance(default, dict | list):
        bounds, default = {**bounds, "default_factory": default.copy}, REQUIRED
    extra: dict[str, Any] = {
        "unit": unit,
        "file": file,
        "path": path or "own" * file,
        "without_effect": without_effect,
    }
    return pydantic.Field(default, alias=name, description=description, json_schema_extra=extra, **bounds)


def with_default(config: type[Config], field: str, default: Any = REQUIRED) -> Any:
    """Declare an option of `config` again, in a subclass of it, with another default or as required."""
    info = config.model_fields[field]
    again = pydantic.Field(
        default,
        alias=info.alias,
        description=info.description,
        json_schema_extra=info.json_schema_extra,
        validate_default=info.validate_default,
    )
    again.metadata = list(info.metadata)  # the bounds
    return again


F = TypeVar("F", bound=Callable[[Any], None])


def cross_field_validator(*fields: str) -> Callable[[F], F]:
    """Decorate a method of a `Config` that checks options against one another; it raises ValueError about the first.

    It is called once all fields are read, in whatever order they are declared, and also when other fields are wrong:
    every such check whose own fields are all right is made, so that a user sees everything that is wrong at once.
    """

    def mark(check: F) -> F:
        check.__dict__["_cross_field_validator"] = fields
        return check

    return mark


class Config(BaseModel):
    """Base of every component's options. Declare each with `option()`; values arrive as text and are converted.

    Fields may be `str`, `int`, `float`, `bool`, `Literal[...]`, `list[str]` (split on blanks), `dict[str, str]`
    (under a name that ends in a dot), `SecretStr`, or one of these `| None`. A check of one option goes into a
    pydantic `field_validator`, a check of several into a `cross_field_validator`; both raise ValueError.

    A component that has other options or defaults under one of its names (Flume's class name, for instance) overrides
    `for_type` and returns a subclass that says so.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        defer_build=True,  # until one is parsed: there are eighty, and a configuration names a few
    )
    deprecated_aliases: ClassVar[Mapping[str, str]] = {}
    """Options that had another name once, and that name, which is accepted too; where both are given, the newer one
    counts."""
    options_without_effect: ClassVar[Mapping[str, str]] = {}
    """Options of Flume that are accepted with any value and have no effect, and why; a name that ends in a dot stands
    for all under it. Those of base classes count, too."""
    section: ClassVar[str] = ""
    """What the options that this very class declares are shown under, among those of its subclasses: `TLS`."""
    _wrong: ClassVar[frozenset[str]] = frozenset()
    """Fields that are wrong by themselves, and not read: none, but for what `_disagreements` makes."""

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """The options to read where the configuration says `type = <written_type>`, as it is spelled there."""
        return cls

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> tuple[Self | None, list[Problem]]:
        """The options as this component reads them, and everything wrong with them, not only the first.

        Unknown properties are left out and reported with a suggestion. The config is None where it cannot be built.
        """
        problems: list[Problem] = []
        values: dict[str, Any] = {}
        options = {o.name: o for o in cls.options()}
        newer = {old: new for new, old in cls.deprecated_aliases.items()}
        prefixes = [o.name for o in options.values() if o.is_prefix]
        ignored = tuple(cls._options_without_effect())
        for name, text in properties.items():
            if name in ignored or any(name.startswith(one) for one in ignored if one.endswith(".")):
                continue
            prefix = next((p for p in prefixes if name.startswith(p) and name != p), None)
            if name in newer or (name in options and not options[name].is_prefix):
                values[name] = text
            elif prefix is not None:
                values.setdefault(prefix, {})[name[len(prefix) :]] = text
            else:
                problems.append(unknown(name, [*options, *newer]))
        config = None
        try:
            config = cls.model_validate(values)
        except pydantic.ValidationError as e:
            found = problems_of(e, options)
            if wrong := {str(error["loc"][0]) for error in e.errors() if error["loc"]}:
                found += cls._disagreements(wrong, values, options)
            for problem in found:
                older = cls.deprecated_aliases.get(problem.option)
                written = older if older in properties and problem.option not in properties else None
                problems.append(replace(problem, option=written) if written else problem)
        return config, problems

    def warnings(self) -> Iterator[Problem]:
        """What is accepted and does not do what it seems to; `agent check` shows it as warnings."""
        return iter(())

    @classmethod
    def without_effect(cls) -> dict[str, str]:
        """All that it accepts from Flume's files alone, and why."""
        return cls._options_without_effect() | {o.name: o.description for o in cls.options() if o.without_effect}

    @classmethod
    def _options_without_effect(cls) -> dict[str, str]:
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            found |= vars(base).get("options_without_effect", {})
        return found

    @classmethod
    def options(cls) -> Iterator[Option]:
        """Every option, in the order of declaration."""
        if cls not in _OPTIONS:
            declared = {
                field: base for base in reversed(cls.__mro__) for field in vars(base).get("__annotations__", ())
            }
            sections = {field: vars(base).get("section", "") for field, base in declared.items()}
            _OPTIONS[cls] = tuple(
                option_of(field, info, sections.get(field, "")) for field, info in cls.model_fields.items()
            )
        return iter(_OPTIONS[cls])

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_older_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        renamed = {new: values[old] for new, old in cls.deprecated_aliases.items() if old in values}
        olds = set(cls.deprecated_aliases.values())
        return {**renamed, **{name: value for name, value in values.items() if name not in olds}}

    @pydantic.model_validator(mode="after")
    def _agrees(self) -> Self:
        """Run every `cross_field_validator`, before model validators of subclasses, which see a whole config only."""
        cls = type(self)
        if cls not in _CROSS_FIELD_VALIDATORS:
            declared = (vars(base).items() for base in cls.__mro__)
            _CROSS_FIELD_VALIDATORS[cls] = sorted(
                {
                    name
                    for names in declared
                    for name, one in names
                    if isinstance(one, types.FunctionType) and hasattr(one, "_cross_field_validator")
                }
            )
        found = []
        for name in _CROSS_FIELD_VALIDATORS[cls]:
            fields = getattr(cls, name)._cross_field_validator
            if self._wrong.isdisjoint(fields):
                try:
                    getattr(self, name)()
                except ValueError as e:
                    found.append((fields[0], str(e)))
        if found or self._wrong:
            raise PydanticCustomError("disagreement", "{found}", {"found": found})
        return self

    @classmethod
    def _disagreements(
        cls, wrong: set[str], values: Mapping[str, Any], options: Mapping[str, Option]
    ) -> list[Problem]:
        """What is wrong with several options, where those named `wrong` cannot be read."""
        fields: dict[str, Any] = {options[name].field: (Any, None) for name in wrong}
        partial = pydantic.create_model(cls.__name__, __base__=cls, **fields)
        partial._wrong = frozenset(fields)
        try:
            partial.model_validate({name: value for name, value in values.items() if name not in wrong})
        except pydantic.ValidationError as e:
            return problems_of(e, options)
        return []

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Turn text into what the field wants, by the rules of Flume's files rather than by Python's."""
        assert info.field_name is not None
        if not isinstance(value, str):
            return value
        field = cls.model_fields[info.field_name]
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        return _convert(field.annotation, value, str(extra.get("unit", "")))


ANY_CASE = pydantic.BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""For `Annotated[Literal["none", "deflate"], ANY_CASE]`: capital letters are taken for small ones."""
_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
"""A number as Java reads it; what follows it says in how many bits Java is to keep it."""


def _convert(annotation: Any, text: str, unit: str = "") -> Any:
    kinds = set(typing.get_args(annotation)) if is_union(annotation) else {annotation}
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"must be true or false, not {text!r}")
        return text.lower() == "true"
    if int in kinds and float not in kinds and not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"must be a whole number{not_in_unit(text, unit)}")
    if float in kinds:
        found = _NUMBER.fullmatch(text)
        if found is None:
            raise ValueError(f"must be a number{not_in_unit(text, unit)}")
        return found[1]
    if any(typing.get_origin(kind) in (list, tuple) for kind in kinds):
        return text.split()
    return text


_OPTIONS: WeakKeyDictionary[type[Config], tuple[Option, ...]] = WeakKeyDictionary()
_CROSS_FIELD_VALIDATORS: WeakKeyDictionary[type[Config], list[str]] = WeakKeyDictionary()
"""What each class declares: it is looked for once, as a configuration is parsed many times."""

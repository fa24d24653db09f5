"""Declaration and parsing of a component's options: name, type, unit, default, bounds, description."""

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

from flafka.plugins.optioninfo import REQUIRED, Option, is_union, option_of
from flafka.plugins.problems import Problem, problems_of, unknown_option
from flafka.plugins.units import not_in_unit


def option(
    default: Any = REQUIRED,
    *,
    name: str,
    description: str,
    unit: str = "",
    must_exist: bool = False,
    path: str = "",
    without_effect: bool = False,
    **bounds: Any,
) -> Any:
    """Declare one option of a `Config`.

    - `name`: spelling in the configuration file; Flume's, if Flume has the option. A name that ends in a dot takes
      all properties under it, as a `dict[str, str]`. A validator reports one of these properties by a
      `ValueError("<key>: …")`, and several by one such line each.
    - `unit`: unit of a number: `s`, `ms`, `bytes`, `events`.
    - `must_exist`: the value is the path of an existing file or directory; `path` is `own` by default then.
    - `path`: the value is a path, which the component gets in its absolute form. `flume`: an option of Flume,
      relative to the working directory. `flume list`: several such paths, separated by commas. `own`: an option that
      Flume lacks, relative to the directory of the configuration file.
    - `without_effect`: the option has no effect, and only a check reads it; the description says why.
    - `bounds`: constraints of pydantic: `ge`, `le`, `gt`, `lt`, `pattern`, `min_length`.
    """
    if isinstance(default, dict | list):
        bounds, default = {**bounds, "default_factory": default.copy}, REQUIRED
    extra: dict[str, Any] = {
        "unit": unit,
        "must_exist": must_exist,
        "path": path or "own" * must_exist,
        "without_effect": without_effect,
    }
    return pydantic.Field(default, alias=name, description=description, json_schema_extra=extra, **bounds)


def with_default(config: type[Config], field: str, default: Any = REQUIRED) -> Any:
    """Return the redeclaration of an option of `config` for a subclass, with another default or as required."""
    info = config.model_fields[field]
    redeclared = pydantic.Field(
        default,
        alias=info.alias,
        description=info.description,
        json_schema_extra=info.json_schema_extra,
        validate_default=info.validate_default,
    )
    redeclared.metadata = list(info.metadata)  # the bounds
    return redeclared


F = TypeVar("F", bound=Callable[[Any], None])


def cross_field_validator(*fields: str) -> Callable[[F], F]:
    """Return a decorator for a method of a `Config` that checks several options together.

    The method raises ValueError; the error is reported for the first of `fields`. It runs once all of `fields` are
    valid, even if other options are invalid, so that a user sees all errors at once.
    """

    def mark(check: F) -> F:
        check.__dict__["_cross_field_validator"] = fields
        return check

    return mark


class Config(BaseModel):
    """Base class of a component's options, each declared with `option()`. Text values are converted to field types.

    Types of fields: `str`, `int`, `float`, `bool`, `Literal[...]`, `SecretStr`, `list[str]` (split on blanks), or one
    of these `| None`. A name that ends in a dot has the type `dict[str, str]`. A check of one option goes into a
    pydantic `field_validator`, a check of several into a `cross_field_validator`; both raise ValueError.

    A component with other options or defaults under one of its names, such as Flume's class name, overrides
    `for_type`. Instances are immutable, and any thread may read them.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        defer_build=True,  # building all eighty classes slows the start, and a configuration uses a few
    )
    deprecated_aliases: ClassVar[Mapping[str, str]] = {}
    """Deprecated name of an option, by its present name. Both are accepted; the present name takes precedence."""
    options_without_effect: ClassVar[Mapping[str, str]] = {}
    """Reason by name of Flume's options that are accepted with any value and have no effect.

    A name that ends in a dot stands for all names under it. Entries of base classes are inherited."""
    section: ClassVar[str] = ""
    """Heading, such as `TLS`, for the options that this very class declares, in the documentation of subclasses."""
    _invalid_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields without a valid value; empty except in the classes of `_cross_field_problems`."""

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Return the class of options for `type = <written_type>`, as spelled in the configuration."""
        return cls

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> tuple[Self | None, list[Problem]]:
        """Return the options, and all problems of the properties.

        The options are None if a value is invalid or missing. Unknown properties are left out, and reported with a
        suggestion.
        """
        problems: list[Problem] = []
        values: dict[str, Any] = {}
        options = {o.name: o for o in cls.options()}
        aliases = set(cls.deprecated_aliases.values())
        prefixes = [o.name for o in options.values() if o.is_prefix]
        ignored = tuple(cls._options_without_effect())
        for name, text in properties.items():
            if name in ignored or any(name.startswith(prefix) for prefix in ignored if prefix.endswith(".")):
                continue
            prefix = next((p for p in prefixes if name.startswith(p) and name != p), None)
            if name in aliases or (name in options and not options[name].is_prefix):
                values[name] = text
            elif prefix is not None:
                values.setdefault(prefix, {})[name[len(prefix) :]] = text
            else:
                problems.append(unknown_option(name, [*options, *cls.deprecated_aliases.values()]))
        config = None
        try:
            config = cls.model_validate(values)
        except pydantic.ValidationError as e:
            found_problems = problems_of(e, options)
            if invalid := {str(error["loc"][0]) for error in e.errors() if error["loc"]}:
                found_problems += cls._cross_field_problems(invalid, values, options)
            for problem in found_problems:
                alias = cls.deprecated_aliases.get(problem.option)
                written = alias if alias in properties and problem.option not in properties else None
                problems.append(replace(problem, option=written) if written else problem)
        return config, problems

    def warnings(self) -> Iterator[Problem]:
        """Yield a warning of `agent check` for each accepted option whose effect may surprise the user."""
        return iter(())

    @classmethod
    def list_options_without_effect(cls) -> dict[str, str]:
        """Return all options without effect, which are accepted because Flume has them, with the reason by name."""
        return cls._options_without_effect() | {o.name: o.description for o in cls.options() if o.without_effect}

    @classmethod
    def _options_without_effect(cls) -> dict[str, str]:
        """Return the reasons in `options_without_effect` of this class and its bases, by name.

        The entry of the most derived class wins.
        """
        reasons: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            reasons |= vars(base).get("options_without_effect", {})
        return reasons

    @classmethod
    def options(cls) -> Iterator[Option]:
        """Return an iterator over the options, in the order of declaration."""
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
    def _rename_deprecated_aliases(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values by present names.

        A value under the present name wins over one under a deprecated name.
        """
        renamed = {new: values[old] for new, old in cls.deprecated_aliases.items() if old in values}
        aliases = set(cls.deprecated_aliases.values())
        return {**renamed, **{name: value for name, value in values.items() if name not in aliases}}

    @pydantic.model_validator(mode="after")
    def _run_cross_field_validators(self) -> Self:
        """Run every `cross_field_validator` whose fields are valid, in the order of their names.

        Model validators of subclasses run afterwards, on a valid config.
        """
        cls = type(self)
        if cls not in _CROSS_FIELD_VALIDATORS:
            declared = (vars(base).items() for base in cls.__mro__)
            _CROSS_FIELD_VALIDATORS[cls] = sorted(
                {
                    name
                    for names in declared
                    for name, value in names
                    if isinstance(value, types.FunctionType) and hasattr(value, "_cross_field_validator")
                }
            )
        failures = []
        for name in _CROSS_FIELD_VALIDATORS[cls]:
            fields = getattr(cls, name)._cross_field_validator
            if self._invalid_fields.isdisjoint(fields):
                try:
                    getattr(self, name)()
                except ValueError as e:
                    failures.append((fields[0], str(e)))
        if failures or self._invalid_fields:
            raise PydanticCustomError("cross_field", "{found}", {"found": failures})
        return self

    @classmethod
    def _cross_field_problems(
        cls, invalid: set[str], values: Mapping[str, Any], options: Mapping[str, Option]
    ) -> list[Problem]:
        """Return the problems that the cross-field validators find without the options named in `invalid`."""
        fields: dict[str, Any] = {options[name].field: (Any, None) for name in invalid}
        partial = pydantic.create_model(cls.__name__, __base__=cls, **fields)
        partial._invalid_fields = frozenset(fields)
        try:
            partial.model_validate({name: value for name, value in values.items() if name not in invalid})
        except pydantic.ValidationError as e:
            return problems_of(e, options)
        return []

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _parse_text(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Return a text converted to the type of the field, by the rules of Flume's files rather than Python's.

        Any other value is returned as it is. Raises ValueError.
        """
        assert info.field_name is not None
        if not isinstance(value, str):
            return value
        field = cls.model_fields[info.field_name]
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        return _convert(field.annotation, value, str(extra.get("unit", "")))


ANY_CASE = pydantic.BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""Validator that ignores case, as in `Annotated[Literal["none", "deflate"], ANY_CASE]`."""
_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
"""Number as Java parses it, with an optional suffix of its type (`float` or `double`)."""


def _convert(annotation: Any, text: str, unit: str = "") -> Any:
    """Return a text as a value that pydantic accepts for the type. Raises ValueError, which names the unit."""
    kinds = set(typing.get_args(annotation)) if is_union(annotation) else {annotation}
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"must be true or false, not {text!r}")
        return text.lower() == "true"
    if int in kinds and float not in kinds and not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"must be a whole number{not_in_unit(text, unit)}")
    if float in kinds:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise ValueError(f"must be a number{not_in_unit(text, unit)}")
        return match[1]
    if any(typing.get_origin(kind) in (list, tuple) for kind in kinds):
        return text.split()
    return text


_OPTIONS: WeakKeyDictionary[type[Config], tuple[Option, ...]] = WeakKeyDictionary()
_CROSS_FIELD_VALIDATORS: WeakKeyDictionary[type[Config], list[str]] = WeakKeyDictionary()
"""Names of the cross-field validators of a class. A cache, as a configuration is parsed many times."""

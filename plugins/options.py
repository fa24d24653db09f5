"""Options of a component, declared once: name, type, unit, default, bounds, description."""

from __future__ import annotations

import difflib
import importlib.util
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

import pydantic
from pydantic import BaseModel, ConfigDict, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticUndefined

REQUIRED: Any = PydanticUndefined
"""Default of an option that must be given."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a component's properties. `unknown` marks a property the component does not have.

    One of `Config.cautions` is a warning that something else happens here than in Flume, unless the fields after
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


def missing_library(option: str, module: str, extra: str) -> Iterator[Problem]:
    """For `Config.cautions`: that this option needs a library which is not installed, and which extra brings it."""
    if importlib.util.find_spec(module) is None:
        message = f"needs {module}, which is not installed: pip install 'flafka[{extra}]'"
        # About this machine, not about what the file says: so nothing differs from Flume.
        yield Problem(option, message, as_in_flume=True)


@dataclass(frozen=True)
class Difference:
    """One thing that a component does otherwise than Flume's component of the same type.

    `agent check -v`, `agent migrate` and the documentation show it.
    """

    flume: str
    """What Flume does: a clause without a full stop."""
    here: str
    """What happens here: a clause without a full stop."""
    option: str = ""
    """Only a configuration that sets this option is told."""
    seen: bool = False
    """Whether users meet it while all goes well, and not only when something fails or is malformed."""

    def __str__(self) -> str:
        return f"Flume: {self.flume}. Here: {self.here}"


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
    ignored: bool = False
    """Whether it has no effect; its description then says why."""
    file: bool = False
    """Whether it names a file, or a directory, that has to be there."""
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


def option(
    default: Any = REQUIRED,
    *,
    name: str,
    description: str,
    unit: str = "",
    file: bool = False,
    ignored: bool = False,
    **bounds: Any,
) -> Any:
    """Declare one option of a `Config`.

    `name` is its spelling in the configuration file (Flume's, where Flume has it). A name that ends in a dot takes
    all properties under it, as a `dict[str, str]`; a validator's `ValueError("<key>: …")` is about that one of
    them, and one of several such lines about several. `unit` is what a number counts (`s`, `ms`, `bytes`,
    `events`). `file` marks the path of something that is read: a relative one that is not found from the working
    directory is looked for beside the configuration file. `ignored` is for an option that is declared only because
    a check reads it: it has no effect, and its description says why. `bounds` are pydantic's: `ge`, `le`, `gt`,
    `lt`, `pattern`, `min_length`.
    """
    if isinstance(default, dict | list):
        bounds, default = {**bounds, "default_factory": default.copy}, REQUIRED
    extra: dict[str, Any] = {"unit": unit, "file": file, "ignored": ignored}
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


def agreement(*fields: str) -> Callable[[F], F]:
    """Decorate a method of a `Config` that checks options against one another; it raises ValueError about the first.

    It is called once all fields are read, in whatever order they are declared, and also when other fields are wrong:
    every such check whose own fields are all right is made, so that a user sees everything that is wrong at once.
    """

    def mark(check: F) -> F:
        check.__dict__["_agreement"] = fields
        return check

    return mark


class Config(BaseModel):
    """Base of every component's options. Declare each with `option()`; values arrive as text and are converted.

    Fields may be `str`, `int`, `float`, `bool`, `Literal[...]`, `list[str]` (split on blanks), `dict[str, str]`
    (under a name that ends in a dot), `SecretStr`, or one of these `| None`. A check of one option goes into a
    pydantic `field_validator`, a check of several into an `agreement`; both raise ValueError.

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
    older: ClassVar[Mapping[str, str]] = {}
    """Options that had another name once, and that name, which is accepted too; where both are given, the newer one
    counts."""
    ignored: ClassVar[Mapping[str, str]] = {}
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
        newer = {old: new for new, old in cls.older.items()}
        prefixes = [o.name for o in options.values() if o.is_prefix]
        ignored = tuple(cls._ignored())
        for name, text in properties.items():
            if name in ignored or any(name.startswith(one) for one in ignored if one.endswith(".")):
                continue
            prefix = next((p for p in prefixes if name.startswith(p) and name != p), None)
            if name in newer or (name in options and not options[name].is_prefix):
                values[name] = text
            elif prefix is not None:
                values.setdefault(prefix, {})[name[len(prefix) :]] = text
            else:
                problems.append(Problem(name, _unknown(name, [*options, *newer]), unknown=True))
        config = None
        try:
            config = cls.model_validate(values)
        except pydantic.ValidationError as e:
            found = _problems(e, options)
            if wrong := {str(error["loc"][0]) for error in e.errors() if error["loc"]}:
                found += cls._disagreements(wrong, values, options)
            for problem in found:
                older = cls.older.get(problem.option)
                written = older if older in properties and problem.option not in properties else None
                problems.append(replace(problem, option=written) if written else problem)
        return config, problems

    def cautions(self) -> Iterator[Problem]:
        """What is accepted and does not do what it seems to; `agent check` shows it as warnings."""
        return iter(())

    @classmethod
    def without_effect(cls) -> dict[str, str]:
        """All that it accepts from Flume's files alone, and why."""
        return cls._ignored() | {o.name: o.description for o in cls.options() if o.ignored}

    @classmethod
    def _ignored(cls) -> dict[str, str]:
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            found |= vars(base).get("ignored", {})
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
                _option(field, info, sections.get(field, "")) for field, info in cls.model_fields.items()
            )
        return iter(_OPTIONS[cls])

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_older_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        renamed = {new: values[old] for new, old in cls.older.items() if old in values}
        olds = set(cls.older.values())
        return {**renamed, **{name: value for name, value in values.items() if name not in olds}}

    @pydantic.model_validator(mode="after")
    def _agrees(self) -> Self:
        """Make every `agreement`; before model validators of subclasses, which see a whole config only."""
        cls = type(self)
        if cls not in _AGREEMENTS:
            declared = (vars(base).items() for base in cls.__mro__)
            _AGREEMENTS[cls] = sorted(
                {
                    name
                    for names in declared
                    for name, one in names
                    if isinstance(one, types.FunctionType) and hasattr(one, "_agreement")
                }
            )
        found = []
        for name in _AGREEMENTS[cls]:
            fields = getattr(cls, name)._agreement
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
            return _problems(e, options)
        return []

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Turn text into what the field wants, by the rules of Flume's files rather than by Python's."""
        assert info.field_name is not None
        return _convert(cls.model_fields[info.field_name].annotation, value) if isinstance(value, str) else value


ANY_CASE = pydantic.BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""For `Annotated[Literal["none", "deflate"], ANY_CASE]`: capital letters are taken for small ones."""
_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
"""A number as Java reads it; what follows it says in how many bits Java is to keep it."""


def _convert(annotation: Any, text: str) -> Any:
    kinds = set(typing.get_args(annotation)) if _is_union(annotation) else {annotation}
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"must be true or false, not {text!r}")
        return text.lower() == "true"
    if int in kinds and float not in kinds and not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"must be a whole number, not {text!r}")
    if float in kinds:
        found = _NUMBER.fullmatch(text)
        if found is None:
            raise ValueError(f"must be a number, not {text!r}")
        return found[1]
    if any(typing.get_origin(kind) in (list, tuple) for kind in kinds):
        return text.split()
    return text


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


def _problems(error: pydantic.ValidationError, options: Mapping[str, Option]) -> list[Problem]:
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


def suggestion(word: str, known: list[str]) -> str:
    """`, did you mean 'x'?`, or nothing where no known word is near."""
    folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(word.lower(), list(folded), n=1, cutoff=0.7)
    return f", did you mean {folded[near[0]]!r}?" if near else ""


def _unknown(name: str, known: list[str]) -> str:
    return f"unknown option {name!r}{suggestion(name, known)}"


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _kind(annotation: Any) -> str:
    if _is_union(annotation):
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


_OPTIONS: WeakKeyDictionary[type[Config], tuple[Option, ...]] = WeakKeyDictionary()
_AGREEMENTS: WeakKeyDictionary[type[Config], list[str]] = WeakKeyDictionary()
"""What each class declares: it is looked for once, as a configuration is parsed many times."""


def _option(field: str, info: FieldInfo, section: str) -> Option:
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
        ignored=bool(extra.get("ignored")),
        file=bool(extra.get("file")),
        section=section,
    )


def _bounds(metadata: list[Any]) -> Iterator[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for constraint in metadata:
        for attribute, sign in signs.items():
            if (value := getattr(constraint, attribute, None)) is not None:
                yield f"{sign} {value}"
        if (pattern := getattr(constraint, "pattern", None)) is not None:
            yield f"matches {pattern}"

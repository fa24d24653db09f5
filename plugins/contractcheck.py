"""Static checks of a component's class against the contract, without an instance."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pydantic

from flafka.plugins.channel import Channel
from flafka.plugins.component import Component
from flafka.plugins.interceptor import Interceptor
from flafka.plugins.metrics import Metric
from flafka.plugins.options import Config
from flafka.plugins.sink import AtLeastOnceSink, CommittingSink, Sink
from flafka.plugins.source import Source
from flafka.plugins.streaming import StreamingSink

CONTRACT = (Component, Source, Channel, Interceptor, Sink, CommittingSink, AtLeastOnceSink, StreamingSink)
ITERABLE_METHODS = ("batches", "check_connectivity", "tailed_files", "exclusive_resources")
"""Methods that may be generators: the agent iterates their results."""
NON_TEXT_SCHEMAS = {
    "is-instance",
    "is-subclass",
    "callable",
    "set",
    "frozenset",
    "model",
    "dataclass",
    "typed-dict",
    "dict",
}
"""Schema types of pydantic that no text can be converted to."""
_ANY = pydantic.ConfigDict(arbitrary_types_allowed=True)
KINDS = "str, int, float, bool, Literal['a', 'b'], list[str], SecretStr, one of these | None"


def find_contract_violations(cls: type[Component[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield a sentence, without its subject, for each violation, and the function or class that violates."""
    for base in CONTRACT:
        for name, declared in vars(base).items() if issubclass(cls, base) else ():
            method = getattr(cls, name)
            if inspect.isfunction(declared) and declared is not method and (text := _check_method(base, cls, name)):
                yield text, method
    metrics: Any = cls.declared_metrics
    if not (isinstance(metrics, tuple) and all(isinstance(metric, Metric) for metric in metrics)):
        yield 'has other declared_metrics than a tuple of Metric(name, "counter", unit, help)', cls
    for text in _check_options(cls.config_class):
        yield text, cls.config_class


def _check_method(base: type, cls: type, name: str) -> str:
    """Return the violation of a method that overrides one of `base`; empty if there is none."""
    declared, method = vars(base)[name], getattr(cls, name)
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        return f"has an `async def {name}`, which nothing here awaits: write `def {name}`; it may block its thread"
    if inspect.isgeneratorfunction(method) and name not in ITERABLE_METHODS:
        return f"has a {name} that yields, so that it would never run: write it without `yield`"
    if name.startswith("__") or not inspect.isfunction(method):
        return ""
    parameters = [p for p in inspect.signature(declared).parameters.values() if p.default is p.empty]
    keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*[None] * (len(parameters) - len(keywords)), **keywords)
    except TypeError:
        return (
            f"has a `def {method_signature(cls, name)}`: write `def {method_signature(base, name)}`, as it is called"
        )
    return ""


def method_signature(cls: type, name: str) -> str:
    """Return the name and the parameters of a method, without types, as after `def`."""
    function = getattr(cls, name)
    if not callable(function):  # a property
        return f"{name}(self)"
    parameters = inspect.signature(function).parameters.values()
    return f"{name}{inspect.Signature([p.replace(annotation=p.empty) for p in parameters])}"


def _check_options(config: type[Config]) -> Iterator[str]:
    """Yield a sentence for each option whose type cannot be parsed from the text of a configuration."""
    for option in config.options():
        annotation: Any = config.model_fields[option.field].annotation
        schema = _schema(annotation)
        kind = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        shown = f"the option {option.name} is a {kind}"
        if option.is_prefix:
            if not _is_dict(schema):
                yield f"cannot be configured: {shown}; under a name that ends in a dot it must be a dict[str, str]"
        elif _is_dict(schema):
            yield f"cannot be configured: {shown}; end its name in a dot, to have all properties under it"
        elif not _is_parsable(schema):
            yield f"cannot be configured: {shown}, and a line of a file holds a text; it may be {KINDS}"


def _schema(annotation: Any) -> Any:
    """Return pydantic's schema for a type."""
    try:
        return pydantic.TypeAdapter(annotation, config=_ANY).core_schema
    except pydantic.PydanticUserError:  # a model, dataclass or TypedDict has a configuration of its own
        return pydantic.TypeAdapter(annotation).core_schema


def _is_dict(schema: Any) -> bool:
    """Return True for the schema of a dictionary, also within a wrapper such as a default."""
    return schema["type"] == "dict" or ("schema" in schema and _is_dict(schema["schema"]))


def _is_parsable(schema: Any) -> bool:
    """Return True if some text can be converted to a value of that schema."""
    if schema["type"] == "union":
        choices = (choice[0] if isinstance(choice, tuple) else choice for choice in schema["choices"])
        return any(map(_is_parsable, choices))
    if schema["type"] == "literal":
        return any(isinstance(value, str) for value in schema["expected"])
    if schema["type"] in ("list", "nullable", "default"):
        inner = schema.get("items_schema", schema.get("schema"))
        return inner is None or _is_parsable(inner)
    return schema["type"] not in NON_TEXT_SCHEMAS

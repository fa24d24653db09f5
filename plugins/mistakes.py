"""What the author of a component's class got wrong, as far as it can be seen without an instance of it."""

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
ITERATED = ("batches", "check_connectivity", "tailed_files", "exclusive_resources")
"""Methods that may yield what they answer: it is read from them."""
NO_TEXT = {"is-instance", "is-subclass", "callable", "set", "frozenset", "model", "dataclass", "typed-dict", "dict"}
"""Pydantic's words for what no text becomes."""
_ANY = pydantic.ConfigDict(arbitrary_types_allowed=True)
KINDS = "str, int, float, bool, Literal['a', 'b'], list[str], SecretStr, one of these | None"


def mistakes(cls: type[Component[Any]]) -> Iterator[tuple[str, Any]]:
    """Sentences of why it cannot be used, without a subject, each with the function or class that it is about."""
    for base in CONTRACT:
        for name, ours in vars(base).items() if issubclass(cls, base) else ():
            theirs = getattr(cls, name)
            if inspect.isfunction(ours) and ours is not theirs and (wrong := _wrong(base, cls, name)):
                yield wrong, theirs
    declared: Any = cls.declared_metrics
    if not (isinstance(declared, tuple) and all(isinstance(one, Metric) for one in declared)):
        yield 'has other declared_metrics than a tuple of Metric(name, "counter", unit, help)', cls
    for wrong in _unreadable(cls.config_class):
        yield wrong, cls.config_class


def _wrong(base: type, cls: type, name: str) -> str:
    ours, theirs = vars(base)[name], getattr(cls, name)
    if inspect.iscoroutinefunction(theirs) or inspect.isasyncgenfunction(theirs):
        return f"has an `async def {name}`, which nothing here awaits: write `def {name}`; it may block its thread"
    if inspect.isgeneratorfunction(theirs) and name not in ITERATED:
        return f"has a {name} that yields, so that it would never run: write it without `yield`"
    if name.startswith("__") or not inspect.isfunction(theirs):
        return ""
    passed = [one for one in inspect.signature(ours).parameters.values() if one.default is one.empty]
    words = {one.name: None for one in passed if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(theirs).bind(*[None] * (len(passed) - len(words)), **words)
    except TypeError:
        return f"has a `def {header(cls, name)}`: write `def {header(base, name)}`, as it is called"
    return ""


def header(cls: type, name: str) -> str:
    """How its method of that name begins, behind `def` and without types."""
    function = getattr(cls, name)
    if not callable(function):  # a property
        return f"{name}(self)"
    parameters = inspect.signature(function).parameters.values()
    return f"{name}{inspect.Signature([one.replace(annotation=one.empty) for one in parameters])}"


def _unreadable(config: type[Config]) -> Iterator[str]:
    """What is wrong with options, each of which gets a text out of a file."""
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
        elif not _from_text(schema):
            yield f"cannot be configured: {shown}, and a line of a file holds a text; it may be {KINDS}"


def _schema(annotation: Any) -> Any:
    """Pydantic's for values of it."""
    try:
        return pydantic.TypeAdapter(annotation, config=_ANY).core_schema
    except pydantic.PydanticUserError:  # a model, dataclass or TypedDict has a configuration of its own
        return pydantic.TypeAdapter(annotation).core_schema


def _is_dict(schema: Any) -> bool:
    return schema["type"] == "dict" or ("schema" in schema and _is_dict(schema["schema"]))


def _from_text(schema: Any) -> bool:
    """Whether some text becomes a value of it."""
    if schema["type"] == "union":
        choices = (one[0] if isinstance(one, tuple) else one for one in schema["choices"])
        return any(map(_from_text, choices))
    if schema["type"] == "literal":
        return any(isinstance(one, str) for one in schema["expected"])
    if schema["type"] in ("list", "nullable", "default"):
        inner = schema.get("items_schema", schema.get("schema"))
        return inner is None or _from_text(inner)
    return schema["type"] not in NO_TEXT

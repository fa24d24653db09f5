"""Suite `context`: one property as a component reads it, through an option of the wanted kind."""

from __future__ import annotations

from typing import Any

import pydantic

from flafka.agent.config.properties import JAVA_BLANKS
from flafka.plugins import Config, option

INT, LONG = {"ge": -(2**31), "le": 2**31 - 1}, {"ge": -(2**63), "le": 2**63 - 1}
KINDS: dict[str, tuple[Any, dict[str, int]]] = {
    "string": (str, {}),
    "boolean": (bool, {}),
    "int": (int, INT),
    "long": (int, LONG),
    "float": (float, {}),
    "double": (float, {}),
    "sub": (dict[str, str], {}),
}


def op_context(input: dict[str, Any]) -> Any:
    kind, bounds = KINDS[input["get"]]
    default = {} if kind == dict[str, str] else input.get("default")
    declared = option(default, name=input["key"], description="", **bounds)
    config_class = pydantic.create_model("Case", __base__=Config, value=(kind | None, declared))
    if input["get"] == "sub" and not next(config_class.options()).is_prefix:
        return {"error": "IllegalArgumentException"}
    config, problems = config_class.parse({name: text.strip(JAVA_BLANKS) for name, text in input["params"].items()})
    if config is None:
        return {"error": "NumberFormatException" if kind in (int, float) else "IllegalArgumentException"}
    assert all(problem.is_unknown_option for problem in problems)
    return {"value": config.value}


def normalise(op: str, value: Any) -> Any:
    """Return the value; the kind of error counts, not Java's message."""
    return value.get("error", value)

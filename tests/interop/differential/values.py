"""Single values: one property as a component reads it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy
import pydantic

from flafka.agent.config.properties import JAVA_BLANKS
from flafka.plugins import Config as ComponentConfig
from flafka.plugins import option
from tests.interop.differential.drawing import mutated, sometimes
from tests.interop.differential.search import Answers, Known, Operation, Settings, shrunk

INT, LONG = {"ge": -(2**31), "le": 2**31 - 1}, {"ge": -(2**63), "le": 2**63 - 1}
KINDS: dict[str, tuple[Any, dict[str, int]]] = {
    "string": (str, {}), "boolean": (bool, {}), "int": (int, INT), "long": (int, LONG), "float": (float, {}),
    "double": (float, {}), "sub": (dict[str, str], {}),
}  # fmt: skip


@cache
def _class(get: str, key: str) -> Any:
    kind, bounds = KINDS[get]
    declared = option({} if get == "sub" else None, name=key, description="", **bounds)
    return pydantic.create_model("Case", __base__=ComponentConfig, value=(kind | None, declared))


class ContextValue(Operation):
    """`Context`: one property as a component reads it."""

    name = "context"
    known = (
        Known(
            "A switch set to anything but true or false",
            lambda case: case.item["get"] == "boolean" and (case.theirs, case.ours) == (False, "error"),
        ),
        Known(
            "Numbers may have digits of any script",
            lambda case: (
                case.ours == "error"
                and case.item["get"] in ("int", "long", "float", "double")
                and not re.fullmatch(r"[+-]?[0-9]+|[+-]?[0-9.]+([eE][+-]?[0-9]+)?[fFdD]?", case.item["params"]["key"])
            ),
        ),
        Known(
            "A name that ends in a dot is an option without a name",
            lambda case: case.item["get"] == "sub" and {k: v for k, v in case.theirs.items() if k} == case.ours,
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        return {}, [self.item(draw) for _ in range(100)]

    def item(self, draw: random.Random) -> dict[str, Any]:
        get = draw.choice([*KINDS])
        number = draw.choice(
            [0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, draw.randrange(10**6)]
        )
        values = {
            "boolean": ("true", "false", "TRUE", "False", "yes", "on", "1", "0", "t", " true", "truE"),
            "float": (
                "1.5",
                "-0.5",
                ".5",
                "5.",
                "1e3",
                "1E-3",
                "0x10",
                "1f",
                "2d",
                "NaN",
                "Infinity",
                "-Infinity",
                "inf",
                "1_000",
                "1,5",
                "+1",
                "1e400",
                "nan",
            ),
        }
        choices = values.get(
            "float" if get == "double" else get,
            (
                str(number),
                f"+{number}",
                f"0{number}",
                f"{number}.0",
                f"{number}L",
                "1e3",
                "0x10",
                "1_000",
                "",
                "--1",
                "\u0663",
                "\u00bd",
                "-",
            ),
        )
        value = draw.choice(choices)
        value = (
            mutated(draw, value, (" ", "0", "-", "+", ".", "_", "e", "\u00a0", "\u0661", "x"))
            if sometimes(draw, 0.2)
            else value
        )
        key = "sub." if get == "sub" else "key"
        params = {key: value.strip(JAVA_BLANKS)}
        if get == "sub":
            params |= {f"sub.{name}": name for name in draw.sample(["a", "b.c", "", "sub.x"], 2)} | {"subx": "1"}
        return {"get": get, "key": key, "params": {name: text for name, text in params.items() if text}}

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        for less in shrunk(item["params"]):
            yield settings, {**item, "params": less}

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        return [self._answer(item) for item in items]

    def _answer(self, item: dict[str, Any]) -> Any:
        config, problems = _class(item["get"], item["key"]).parse(item["params"])
        return {"error": str(problems)} if config is None else [config.value]

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return numbers as numbers."""
        if isinstance(answer, dict) and "error" in answer:
            return "error"
        value = answer[0] if isinstance(answer, list) else answer
        if item["get"] == "float" and value is not None:
            with numpy.errstate(over="ignore"):
                return str(numpy.float32(value))
        return (
            str(float(value))
            if item["get"] in ("float", "double") and value is not None and value != "null"
            else None
            if value == "null"
            else value
        )

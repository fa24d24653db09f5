"""Morphline files: HOCON, and where in the file each command stands."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flafka.plugins.component import require

_TOKEN = re.compile(
    r'"""(?P<long>.*?)"""+ | "(?P<quoted>(?:\\.|[^"\\\n])*)" | (?:\#|//)[^\n]* | (?P<mark>[{}\[\]:=,]) '
    r'| (?P<word>[^\s{}\[\]:=,"\#]+)',
    re.DOTALL | re.VERBOSE,
)
_PLAIN = re.compile(r"[^\W\d_][\w-]*")
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Scalar(NamedTuple):
    """A value as it is written, and what it is: `string`, `number` or `boolean`."""

    written: str
    kind: str

    @property
    def value(self) -> Any:
        """What Java's library makes of it: 1e3 and 2.0 are whole numbers."""
        if self.kind == "boolean":
            return _TRUTH[self.written]
        if self.kind != "number":
            return self.written
        number = float(self.written)
        if re.fullmatch(r"-?[0-9]+", self.written):
            return int(self.written)
        return int(number) if number.is_integer() and abs(number) < 2**63 else number


Tree = dict[str, Any] | list[Any] | Scalar | None


class MorphlineFile:
    """A file read, with its substitutions resolved.

    `variables` come before what the file says at its top. Raises ValueError, in words for the user, OSError where it
    cannot be read, and MissingExtra.
    """

    def __init__(self, path: str, variables: Mapping[str, str]) -> None:
        hocon = require("hocon", "morphlines")
        self.path = path
        source = Path(path).read_text("utf-8")
        try:
            config = hocon.parse(_before(path, variables)) if variables else hocon.parse_file(path)
            self.tree = _tree(config.get_value("morphlines"))
        except (hocon.ParseError, hocon.ResolveError) as e:
            raise ValueError(f"{e.file or path}:{e.line}: {e}") from None
        except hocon.ConfigError as e:
            raise ValueError(f"{path}: {e}") from None
        self._lines = _lines(source, self.tree)

    def morphline(self, name: str | None) -> dict[str, Any]:
        """The one with that id, or the first. ValueError where there is none."""
        found = [one for one in self.tree if isinstance(one, dict)] if isinstance(self.tree, list) else []
        if not found:
            raise ValueError(f"{self.path}: has no morphlines")
        if not name:
            return found[0]
        ids = {one["id"].written: one for one in reversed(found) if isinstance(one.get("id"), Scalar)}
        if name not in ids:
            known = ", ".join(map(repr, ids))
            raise ValueError(f"{self.path}: has no morphline {name!r}; it has {known}")
        return ids[name]

    def place(self, command: dict[str, Any]) -> str:
        """`file:line` of a command, or the file alone where it comes from another one."""
        line = self._lines.get(id(command))
        return f"{self.path}:{line}" if line else self.path


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Values by their paths: those of objects within count, too, and nulls do not."""
    found = {}
    for path, value in _paths(tree, ()):
        name = ".".join(one if _PLAIN.fullmatch(one) else json.dumps(one, ensure_ascii=False) for one in path)
        found[name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name] = value
    return in_java_order(found)


def in_java_order(values: dict[str, Any]) -> dict[str, Any]:
    """In the order in which Java's hash maps give them, as commands with several fields go by it."""
    size = 16
    while len(values) > size * 3 // 4:
        size *= 2

    def bucket(name: str) -> int:
        code = 0
        for unit in memoryview(name.encode("utf-16-le", "surrogatepass")).cast("H"):
            code = (31 * code + unit) & 0xFFFFFFFF
        return (code ^ code >> 16) & (size - 1)

    return {name: values[name] for name in sorted(values, key=bucket)}


def _before(path: str, variables: Mapping[str, str]) -> str:
    """A text that is that file, with these values instead of its own."""
    lines = [f"include file({json.dumps(str(Path(path).absolute()))})"]
    for name, value in variables.items():
        lines.append(f"{'.'.join(map(json.dumps, name.split('.')))} : {json.dumps(value)}")
    return "\n".join(lines)


def _tree(value: Any) -> Tree:
    match getattr(value, "kind", None):
        case "object":
            return {name: _tree(one) for name, one in value.fields.items()}
        case "array":
            return [_tree(one) for one in value.items]
        case "scalar" if value.value_type != "null":
            return Scalar(value.raw, value.value_type)
    return None


def _paths(tree: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
        elif value is not None:
            yield (*above, name), value


def _lines(source: str, tree: Tree) -> dict[int, int]:
    """By the identity of each object that begins as a command does: its line.

    The library tells no places of values; objects of one name come in the same order in the file and in the tree.
    """
    written: dict[str, list[int]] = defaultdict(list)
    before = ["", "", ""]
    places = [0, 0, 0]
    for token in _TOKEN.finditer(source):
        text = token["mark"] or token["word"] or token["quoted"]
        if text is None:
            if token["long"] is None:
                continue  # a comment
            text = '"""'
        if token["mark"] in (":", "=") and before[2] not in ("{", "}", "[", "]", ","):
            continue
        if token["mark"] == "{" and before[1] == "{":
            written[before[2]].append(places[2])
        before = [*before[1:], text]
        places = [*places[1:], source.count("\n", 0, token.start()) + 1]
    there: dict[str, list[int]] = defaultdict(list)
    for command in _objects(tree):
        there[next(iter(command))].append(id(command))
    return {
        one: line
        for name, ids in there.items()
        if len(ids) == len(written[name])
        for one, line in zip(ids, written[name], strict=True)
    }


def _objects(tree: Tree) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if isinstance(next(iter(tree.values()), None), dict):
            yield tree
        for value in tree.values():
            yield from _objects(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _objects(value)

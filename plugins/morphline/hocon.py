"""Morphline files in HOCON, with the line of each command."""

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
    """A scalar value: its source text, and its type `string`, `number` or `boolean`."""

    source: str
    kind: str

    @property
    def value(self) -> Any:
        """Value as in Java's library, where 1e3 and 2.0 are integers."""
        if self.kind == "boolean":
            return _TRUTH[self.source]
        if self.kind != "number":
            return self.source
        number = float(self.source)
        if re.fullmatch(r"-?[0-9]+", self.source):
            return int(self.source)
        return int(number) if number.is_integer() and abs(number) < 2**63 else number


Tree = dict[str, Any] | list[Any] | Scalar | None


class MorphlineFile:
    """Content of a morphline file, with resolved substitutions.

    `variables` override values at the top level. Raises ValueError with a message for the user, OSError if the file
    cannot be read, and MissingExtra.
    """

    def __init__(self, path: str, variables: Mapping[str, str]) -> None:
        hocon = require("hocon", "morphlines")
        self.path = path
        source = Path(path).read_text("utf-8")
        try:
            config = hocon.parse(_with_variables(path, variables)) if variables else hocon.parse_file(path)
            self.tree = _tree(config.get_value("morphlines"))
        except (hocon.ParseError, hocon.ResolveError) as e:
            raise ValueError(f"{e.file or path}:{e.line}: {e}") from None
        except hocon.ConfigError as e:
            raise ValueError(f"{path}: {e}") from None
        self._lines = _lines(source, self.tree)

    def morphline(self, name: str | None) -> dict[str, Any]:
        """Return the morphline with this id; the first if None. Raises ValueError if there is none."""
        morphlines = [item for item in self.tree if isinstance(item, dict)] if isinstance(self.tree, list) else []
        if not morphlines:
            raise ValueError(f"{self.path}: has no morphlines")
        if not name:
            return morphlines[0]
        by_id = {item["id"].source: item for item in reversed(morphlines) if isinstance(item.get("id"), Scalar)}
        if name not in by_id:
            known = ", ".join(map(repr, by_id))
            raise ValueError(f"{self.path}: has no morphline {name!r}; it has {known}")
        return by_id[name]

    def location(self, command: dict[str, Any]) -> str:
        """Return `file:line` of a command; only the file if the command comes from an included file."""
        line = self._lines.get(id(command))
        return f"{self.path}:{line}" if line else self.path


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Return values by path, such as `a.b`, of nested objects too, without nulls.

    Their order is the iteration order of Java's HashMap.
    """
    values = {}
    for path, value in _paths(tree, ()):
        name = ".".join(key if _PLAIN.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path)
        values[name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name] = value
    return _in_java_order(values)


def _in_java_order(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values in the order of Java's HashMap. Commands with several fields depend on that order."""
    size = 16
    while len(values) > size * 3 // 4:
        size *= 2

    def bucket(name: str) -> int:
        code = 0
        for unit in memoryview(name.encode("utf-16-le", "surrogatepass")).cast("H"):
            code = (31 * code + unit) & 0xFFFFFFFF
        return (code ^ code >> 16) & (size - 1)

    return {name: values[name] for name in sorted(values, key=bucket)}


def _with_variables(path: str, variables: Mapping[str, str]) -> str:
    """Return the source text of a file that includes `path` and overrides these values, by their paths."""
    lines = [f"include file({json.dumps(str(Path(path).absolute()))})"]
    for name, value in variables.items():
        lines.append(f"{'.'.join(map(json.dumps, name.split('.')))} : {json.dumps(value)}")
    return "\n".join(lines)


def _tree(value: Any) -> Tree:
    """Return a value of the library `hocon` as dictionaries, lists and `Scalar`; None for null."""
    match getattr(value, "kind", None):
        case "object":
            return {name: _tree(field) for name, field in value.fields.items()}
        case "array":
            return [_tree(item) for item in value.items]
        case "scalar" if value.value_type != "null":
            return Scalar(value.raw, value.value_type)
    return None


def _paths(tree: dict[str, Any], parents: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and value of each value that is no object, depth first, without nulls."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _paths(value, (*parents, name))
        elif value is not None:
            yield (*parents, name), value


def _lines(source: str, tree: Tree) -> dict[int, int]:
    """Return the line of each object that has the form of a command, by `id` of the object.

    The library gives no lines of values. Objects of one name have the same order in the file and in the tree.
    """
    name_lines: dict[str, list[int]] = defaultdict(list)
    previous = ["", "", ""]
    previous_lines = [0, 0, 0]
    for token in _TOKEN.finditer(source):
        text = token["mark"] or token["word"] or token["quoted"]
        if text is None:
            if token["long"] is None:
                continue  # a comment
            text = '"""'
        if token["mark"] in (":", "=") and previous[2] not in ("{", "}", "[", "]", ","):
            continue
        if token["mark"] == "{" and previous[1] == "{":
            name_lines[previous[2]].append(previous_lines[2])
        previous = [*previous[1:], text]
        previous_lines = [*previous_lines[1:], source.count("\n", 0, token.start()) + 1]
    name_objects: dict[str, list[int]] = defaultdict(list)
    for command in _objects(tree):
        name_objects[next(iter(command))].append(id(command))
    return {
        identity: line
        for name, identities in name_objects.items()
        if len(identities) == len(name_lines[name])
        for identity, line in zip(identities, name_lines[name], strict=True)
    }


def _objects(tree: Tree) -> Iterator[dict[str, Any]]:
    """Yield the objects whose first value is an object, which is the form of a command, in the order of the file."""
    if isinstance(tree, dict):
        if isinstance(next(iter(tree.values()), None), dict):
            yield tree
        for value in tree.values():
            yield from _objects(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _objects(value)

"""Unique names: a class, and a duration, stands for one thing in the whole product."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "plugins", "sources", "channels", "interceptors", "sinks")


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return [(file.relative_to(ROOT), ast.parse(file.read_text())) for file in files]


def test_no_two_classes_have_one_name() -> None:
    definitions: dict[str, list[str]] = defaultdict(list)
    for file, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                definitions[node.name].append(f"{file}:{node.lineno}")
    assert {name: files for name, files in definitions.items() if len(files) > 1} == {}


def test_no_two_times_have_one_name() -> None:
    definitions: dict[str, list[str]] = defaultdict(list)
    for file, tree in modules():
        for node in tree.body:
            for name in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(name, ast.Name) and name.id.endswith("SECONDS"):
                    definitions[name.id].append(f"{file}:{node.lineno}")
    assert {name: files for name, files in definitions.items() if len(files) > 1} == {}

"""Unique names: a class, and a duration, stands for one thing in the whole product."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "plugins", "sources", "channels", "interceptors", "sinks")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            yield file.relative_to(ROOT), ast.parse(file.read_text())


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for file, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{file}:{node.lineno}")
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_no_two_times_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for file, tree in modules():
        for node in tree.body:
            for name in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(name, ast.Name) and name.id.endswith("SECONDS"):
                    found[name.id].append(f"{file}:{node.lineno}")
    assert {name: files for name, files in found.items() if len(files) > 1} == {}

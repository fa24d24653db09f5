"""Functions of a source file, and the number of statements in each."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """One function of the project; `line` is that of its `def`, or of its first decorator."""

    file: str
    line: int
    name: str
    statements: int


def function_at(file: str, line: int, name: str) -> Function | None:
    """Return the function to which code of that first line and qualified name belongs.

    A comprehension or lambda belongs to the enclosing function. Code of a module or a class belongs to none.
    """
    functions = _functions(file)
    if line in functions and functions[line].name == name:
        return functions[line]
    inner = name.rpartition(".")[2]
    if not inner.startswith("<") or inner == "<module>":
        return None
    enclosing = [function for first, function in functions.items() if first <= line <= _last_lines(file)[first]]
    return max(enclosing, key=lambda function: function.line) if enclosing else Function(file, line, name, 1)


@functools.cache
def _functions(file: str) -> dict[int, Function]:
    """Return the functions of a file by first line."""
    return {
        _first_line(node): Function(file, _first_line(node), name, sum(1 for _ in statements(node)))
        for name, node in _definitions(_parsed(file), "")
    }


@functools.cache
def _last_lines(file: str) -> dict[int, int]:
    return {_first_line(node): node.end_lineno or node.lineno for _, node in _definitions(_parsed(file), "")}


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def _first_line(node: Definition) -> int:
    """Return the first line of the function's code: that of its first decorator or its `def`."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Yield every function below a node with its qualified name."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, Definition):
            yield prefix + child.name, child
            inner = f"{prefix}{child.name}.<locals>."
        elif isinstance(child, ast.ClassDef):
            inner = f"{prefix}{child.name}."
        yield from _definitions(child, inner)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within a node, without docstrings.

    A function defined within is one statement: its own body counts when it runs.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and not _is_docstring(child):
            yield child
        if not isinstance(child, Definition):
            yield from statements(child)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

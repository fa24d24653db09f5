"""Finding a user's function, with a sentence for all that can be wrong with it."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from plugins.errors import ANY_FAILURE
from plugins.problems import suggestion

Processor = Callable[[Any, dict[str, str]], Any]


def load(processor: str, path: str | None) -> Processor:
    """The function that `module:function` names. ValueError says what is wrong with it."""
    name, colon, attribute = processor.partition(":")
    if not (name and colon and attribute):
        raise ValueError(f"must be module:function, not {processor!r}")
    module = _import(name, path)
    function: Processor | None = getattr(module, attribute, None)
    if function is None:
        own = [n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == name]
        near = suggestion(attribute, own) or f"; its functions: {', '.join(own) or 'none'}"
        raise ValueError(f"module {name} has no {attribute!r}{near}")
    if not callable(function):
        raise ValueError(f"{processor} is no function")
    try:
        inspect.signature(function).bind(None, {})
    except TypeError:
        raise ValueError(
            f"{processor} must take two arguments, the events and its options: "
            f"def {attribute}(events, options), not def {attribute}{inspect.signature(function)}"
        ) from None
    return function


def place_in(error: BaseException, module: ModuleType | None) -> str:
    """` (jobs.py, line 12)`: where, in the user's own file, an error came from; nothing where that is not known."""
    file = getattr(module, "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename:
        file, lines = error.filename, [error.lineno]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""


def _import(name: str, path: str | None) -> ModuleType:
    if path is not None:
        if not Path(path).is_dir():
            raise ValueError(f"processor.path {path} is no directory")
        directory = Path(path).absolute()
        sys.path[:] = [str(directory), *(entry for entry in sys.path if entry != str(directory))]
        _forget_namesake(name, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name == name:
            where = f"in {path} or on " if path else "on "
            hint = "" if path else "; name its directory with processor.path"
            raise ValueError(f"there is no module {name} {where}Python's path{hint}") from None
        extra = "; pip install 'flafka[spark]'" if (e.name or "").split(".")[0] == "pyspark" else ""
        raise ValueError(f"module {name} cannot be imported: {e}{extra}") from None
    except ANY_FAILURE as e:  # a module may raise anything
        raise ValueError(
            f"module {name} cannot be imported: {type(e).__name__}: {e}{place_in(e, _spec_of(name))}"
        ) from None


def _forget_namesake(name: str, directory: Path) -> None:
    """Two sinks may each have a `counts.py`, in directories of their own."""
    there, own = sys.modules.get(name), directory.joinpath(*name.split("."))
    if there is None or not (own.with_suffix(".py").exists() or own.is_dir()):
        return
    if there.__file__ is None or not Path(there.__file__).is_relative_to(directory):
        top = name.partition(".")[0]
        for module in [module for module in sys.modules if module.partition(".")[0] == top]:
            del sys.modules[module]


def _spec_of(name: str) -> Any:
    """Something with the `__file__` of a module that could not be imported."""
    spec = importlib.util.find_spec(name)
    module = ModuleType(name)
    module.__file__ = spec.origin if spec is not None else None
    return module

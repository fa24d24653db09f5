"""Import of a user's function, with a sentence for each possible failure."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.problems import suggest

Processor = Callable[[Any, dict[str, str]], Any]

_NO_SESSION = "[SESSION_OR_CONTEXT_NOT_EXISTS]"
"""Beginning of PySpark's message for a call without a session."""


class SessionRequired(ValueError):
    """Failure to import a module that needs a Spark session."""


def load_processor(processor: str, path: str | None) -> Processor:
    """Return the function that `module:function` names.

    `path` is the directory of the module, which becomes the first of Python's path; None searches that path only.
    Raises ValueError, with a sentence for the user. Raises SessionRequired if the import needs a session, and this
    process has none.
    """
    name, colon, attribute = processor.partition(":")
    if not (name and colon and attribute):
        raise ValueError(f"must be module:function, not {processor!r}")
    module = _import(name, path)
    function: Processor | None = getattr(module, attribute, None)
    if function is None:
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == name]
        near = suggest(attribute, functions) or f"; its functions: {', '.join(functions) or 'none'}"
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


def error_location(error: BaseException, module: ModuleType | None) -> str:
    """Return the last line of the module's file that raised an error, as ` (jobs.py, line 12)`; empty if unknown.

    For a SyntaxError it is the line of that error.
    """
    file = getattr(module, "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename:
        file, lines = error.filename, [error.lineno]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""


def _import(name: str, path: str | None) -> ModuleType:
    """Return the imported module. Raises ValueError, with a sentence, and SessionRequired as `load_processor`."""
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
    except ANY_FAILURE as e:  # importing a module runs the user's code
        location = error_location(e, _module_stub(name))
        if _lacks_session(e):
            raise SessionRequired(f"module {name} needs a Spark session when it is imported{location}") from None
        raise ValueError(f"module {name} cannot be imported: {type(e).__name__}: {e}{location}") from None


def _lacks_session(error: BaseException) -> bool:
    """Return True if PySpark has raised this error because the process has no SparkContext.

    `udf("string")` raises an error whose message has a code for this; `col("x")` fails at an `assert` in PySpark.
    """
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._active_spark_context is not None:
        return False
    if isinstance(error, AssertionError):
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        return Path(last).is_relative_to(Path(str(pyspark.__file__)).parent)
    return str(error).startswith(_NO_SESSION)


def _forget_namesake(name: str, directory: Path) -> None:
    """Drop an imported module of this name, with its package, if it is from another directory.

    Another sink may have imported it. Nothing is dropped if `directory` has no module of this name.
    """
    imported, own = sys.modules.get(name), directory.joinpath(*name.split("."))
    if imported is None or not (own.with_suffix(".py").exists() or own.is_dir()):
        return
    if imported.__file__ is None or not Path(imported.__file__).is_relative_to(directory):
        top = name.partition(".")[0]
        for module in [module for module in sys.modules if module.partition(".")[0] == top]:
            del sys.modules[module]


def _module_stub(name: str) -> Any:
    """Return an empty module with the `__file__` of a module that could not be imported; None if not found."""
    spec = importlib.util.find_spec(name)
    module = ModuleType(name)
    module.__file__ = spec.origin if spec is not None else None
    return module

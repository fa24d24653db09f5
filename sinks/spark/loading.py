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

from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.problems import suggestion

Processor = Callable[[Any, dict[str, str]], Any]


_NO_SESSION = "[SESSION_OR_CONTEXT_NOT_EXISTS]"
"""Begin of PySpark's message where a call needs a session and there is none."""


class SessionNeeded(ValueError):
    """The module cannot be imported without a Spark session, so what is in it is not known here."""


def load(processor: str, path: str | None) -> Processor:
    """Return the function that `module:function` names. ValueError says what is wrong with it.

    Raises SessionNeeded if the module needs a session when it is imported, and this process has none.
    """
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
        place = place_in(e, _spec_of(name))
        if _lacks_session(e):
            raise SessionNeeded(f"module {name} needs a Spark session when it is imported{place}") from None
        raise ValueError(f"module {name} cannot be imported: {type(e).__name__}: {e}{place}") from None


def _lacks_session(error: BaseException) -> bool:
    """Return True if a call of PySpark's raised this because the process has no SparkContext.

    `udf("string")` raises an error with a name for it; `col("x")` fails at an `assert` of PySpark's own.
    """
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._active_spark_context is not None:
        return False
    if isinstance(error, AssertionError):
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        return Path(last).is_relative_to(Path(str(pyspark.__file__)).parent)
    return str(error).startswith(_NO_SESSION)


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

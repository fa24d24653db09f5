"""Flafka: the names that authors of plugins import, such as `from flafka import Source, hookimpl`.

All are defined in `flafka.plugins`, which is imported only when one of them is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a checker that sees `__getattr__` takes every misspelt name for one that there is
    from flafka.plugins import *  # noqa: F403  # all of `__all__`, for type checkers
else:

    def __getattr__(name: str) -> Any:
        plugins = importlib.import_module("flafka.plugins")
        if name not in plugins.__all__:
            raise AttributeError(f"module 'flafka' has no attribute {name!r}")
        return getattr(plugins, name)

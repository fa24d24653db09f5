"""Names for authors of plugins, as in `from flafka import Source, hookimpl`.

The package `flafka.plugins` defines the names. It is imported at the first access to one of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a type checker would accept every misspelt name because of `__getattr__`
    from flafka.plugins import *  # noqa: F403  # all of `__all__`, for type checkers
else:

    def __getattr__(name: str) -> Any:
        plugins = importlib.import_module("flafka.plugins")
        if name not in plugins.__all__:
            raise AttributeError(f"module 'flafka' has no attribute {name!r}")
        return getattr(plugins, name)

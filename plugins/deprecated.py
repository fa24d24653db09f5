"""Names of before: they go on working for one version, with a warning that says where each is now."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SHARED = "avrorpc flumeevent javaregex jodatime regex tls keystore kafkaclient offsets frames"
MODULES = {
    "plugins.components": "plugins",
    **{f"plugins.{name}": f"plugins.shared.{name}" for name in SHARED.split()},
    "plugins.bucketpath": "sinks.bucketpath",
    "plugins.audit": "agent.audit.sums",
}
"""Modules that moved."""
NAMES = {"Claim": "PartitionClaim", "Owner": "RebalanceListener"}
"""Names of `plugins` that changed."""


class Moved(MetaPathFinder, Loader):
    """Imports a module by its old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only of those that moved."""
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """It is the new one."""
        new = MODULES[module.__name__]
        _warn(module.__name__, new)
        sys.modules[module.__name__] = importlib.import_module(new)


def renamed(name: str) -> Any:
    """What `plugins` called so. Raises AttributeError."""
    if name not in NAMES:
        raise AttributeError(f"module 'plugins' has no attribute {name!r}")
    _warn(f"plugins.{name}", f"plugins.{NAMES[name]}")
    return getattr(importlib.import_module("plugins"), NAMES[name])


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is {new} now; the old name goes with the next version", DeprecationWarning, stacklevel=3)


sys.meta_path.append(Moved())

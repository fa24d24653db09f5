"""Keeps pandas out of an agent that has no use for it.

The first time that pyarrow makes an array of Python's values it imports pandas where that is installed, as it is
beside pyspark, to see whether they are pandas' own: 0.2 s of CPU, and 45 MB that every agent would keep.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence

import pyarrow as pa

from flafka.plugins.installed import plugins


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        """As if pandas were not installed."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def do_without_pandas() -> None:
    """Have pyarrow look for pandas now and not find it: it never looks again in this process.

    Not where plugins are installed, as these may give values of pandas' to pyarrow: built-in components never do.
    """
    if "pandas" in sys.modules or not all(plugin.built_in for plugin in plugins()):
        return
    missing = _Missing()
    sys.meta_path.insert(0, missing)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(missing)

"""Prevention of pyarrow's import of pandas.

pyarrow imports an installed pandas when it first makes an array of Python values, to detect values of pandas. That
costs 0.2 s of CPU and 45 MB of memory in every agent. pandas is installed beside pyspark, for instance.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence

import pyarrow as pa

from flafka.plugins.installed import read_plugins


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas, as if it were not installed."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def block_pandas_import() -> None:
    """Make pyarrow try to import pandas now and fail; pyarrow tries once per process.

    No effect if pandas is imported already, or if plugins are installed: these may pass values of pandas to pyarrow.
    """
    if "pandas" in sys.modules or not all(plugin.is_built_in for plugin in read_plugins()):
        return
    missing = _Missing()
    sys.meta_path.insert(0, missing)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(missing)

"""Suite `real_files`: configurations from public repositories → the parts that Flume keeps of each.

`tests/conformance/real_files.py` tests whether they run here.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.adapters import config

agree = config.agree


def op_real_file(input: dict[str, Any]) -> Any:
    return config.op_config(input)

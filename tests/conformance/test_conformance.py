"""Flume's behaviour as data: every case of every suite that has an adapter.

The cases lie in the directory `FLUME_CASES` (default: beside the repository). `adapters/__init__.py` describes
adapters; `deviations.toml` has the intended differences. A suite without an adapter is one skip.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import operator
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conformance import adapters

DEVIATIONS: list[dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("deviations.toml").read_text("utf-8"),
).get("deviation", [])


def adapter_of(suite: str) -> ModuleType | None:
    """Return the suite's adapter, or None."""
    name = f"{adapters.__name__}.{suite}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def parameters() -> list[Any]:
    """Return one parameter for each case, and a plain skip for each suite that cannot be run."""
    params: list[Any] = []
    for file in sorted(adapters.cases().glob("*.json")):
        adapter = adapter_of(file.stem)
        if adapter is None:
            reason = f"suite {file.stem} has no adapter"
            params.append(pytest.param(file.stem, {}, id=file.stem, marks=pytest.mark.skip(reason=reason)))
            continue
        suite = json.loads(file.read_text("utf-8"))
        params += [pytest.param(file.stem, case, id=case["id"]) for case in suite["cases"]]
    if not params:
        reason = f"no conformance cases in {adapters.cases()} (set FLUME_CASES)"
        params.append(pytest.param("", {}, id="none", marks=pytest.mark.skip(reason=reason)))
    return params


def deviation_of(suite: str, case: dict[str, Any]) -> dict[str, str] | None:
    """Return the entry with an intended difference for this case."""
    text = f"{case.get('note', '')}\n{json.dumps(case['input'], sort_keys=True)}"
    for entry in DEVIATIONS:
        if entry.get("case") == case["id"] or (entry.get("suite") == suite and re.search(entry["match"], text)):
            return entry
    return None


@pytest.mark.parametrize(("suite", "case"), parameters())
def test_case(suite: str, case: dict[str, Any]) -> None:
    adapter = adapter_of(suite)
    op = case.get("op", suite)
    run = getattr(adapter, f"op_{op}", None)
    assert run is not None, f"the adapter of {suite} has no op_{op}"
    normalise = getattr(adapter, "normalise", lambda op, value: value)
    actual = normalise(op, run(copy.deepcopy(case["input"])))
    expected = normalise(op, copy.deepcopy(case["expected"]))
    agree = getattr(adapter, "agree", operator.eq)
    if (deviation := deviation_of(suite, case)) is not None:
        assert not agree(actual, expected), f"no deviation any more, remove it: {deviation['reason']}"
    elif agree is operator.eq:
        assert actual == expected, f"{case['id']} ({case.get('note') or case.get('source', '')})"
    else:
        assert agree(actual, expected), f"{case['id']}: {actual} for {expected}"


def test_every_deviation_has_its_rule_and_reason() -> None:
    for entry in DEVIATIONS:
        assert set(entry) in ({"case", "reason"}, {"suite", "match", "reason"}), entry
        assert len(entry["reason"].split()) > 5, entry
        re.compile(entry.get("match", ""))

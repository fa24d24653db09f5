"""Evaluation of the alerts of conf/monitoring on an agent's metrics, from two scrapes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml
from prometheus_client.parser import text_string_to_metric_families

RULES = Path(__file__).parents[2] / "conf" / "monitoring" / "alerts.yml"
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = Mapping[str, Vector]
"""Series by name of a metric."""

_COMPARISONS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge}
_ARITHMETIC = {"*": operator.mul, "+": operator.add, "-": operator.sub, "/": operator.truediv}


def rules() -> dict[str, str]:
    """Return the expression of each alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def hold_minutes() -> dict[str, int]:
    """Return for each alert the minutes for which its expression has to hold."""
    found = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: int(rule.get("for", "0m").removesuffix("m")) for rule in found}


def series(scraped: str | None) -> Scrape:
    """Return the series of one scrape, or of a failed one."""
    found: dict[str, Vector] = {"up": {frozenset({("job", "flafka")}): float(scraped is not None)}}
    for family in text_string_to_metric_families(scraped or ""):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def firing(before: Scrape, after: Scrape) -> dict[str, set[str]]:
    """Return for each firing alert its components, once it has lasted long enough."""
    found = {}
    for alert, expression in rules().items():
        result = _evaluated(promql.parse(expression), before, after)
        assert isinstance(result, dict), expression
        if result:
            found[alert] = {dict(labels).get("name", "") for labels in result}
    return found


def names(expression: str) -> set[str]:
    """Return the metrics of an expression."""
    found: set[str] = set()

    def visit(one: Any) -> bool:
        selector = one.vector_selector if isinstance(one, promql.MatrixSelector) else one
        if isinstance(selector, promql.VectorSelector):
            found.add(selector.name)
        return True

    promql.walk(promql.parse(expression), visit)
    return found


def _evaluated(one: Any, before: Scrape, after: Scrape) -> Vector | float:
    """Evaluate the part of PromQL that the rules need; a KeyError for any other."""
    if isinstance(one, promql.NumberLiteral):
        return float(one.val)
    if isinstance(one, promql.ParenExpr):
        return _evaluated(one.expr, before, after)
    if isinstance(one, promql.VectorSelector):
        return _selected(one, after)
    if isinstance(one, promql.Call):
        assert one.func.name == "rate"
        selector = one.args[0].vector_selector
        old, new = _selected(selector, before), _selected(selector, after)
        return {labels: new[labels] - old[labels] for labels in old.keys() & new.keys()}
    assert isinstance(one, promql.BinaryExpr), one
    left, right = _evaluated(one.lhs, before, after), _evaluated(one.rhs, before, after)
    sign = str(one.op)
    if not isinstance(left, dict):
        assert not isinstance(right, dict)
        return float(_ARITHMETIC[sign](left, right))
    limits = right if isinstance(right, dict) else dict.fromkeys(left, right)
    holds = _COMPARISONS[sign]
    return {labels: value for labels, value in left.items() if labels in limits and holds(value, limits[labels])}


def _selected(selector: Any, seen: Scrape) -> Vector:
    wanted = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    return {
        labels: value
        for labels, value in seen.get(selector.name, {}).items()
        if all(dict(labels).get(name) == text for name, text in wanted.items())
    }

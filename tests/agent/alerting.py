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
    alerting_rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: int(rule.get("for", "0m").removesuffix("m")) for rule in alerting_rules}


def series(scraped: str | None) -> Scrape:
    """Return the series of one scrape, or of a failed one."""
    vectors: dict[str, Vector] = {"up": {frozenset({("job", "flafka")}): float(scraped is not None)}}
    for family in text_string_to_metric_families(scraped or ""):
        for sample in family.samples:
            vectors.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return vectors


def firing(before: Scrape, after: Scrape) -> dict[str, set[str]]:
    """Return for each firing alert its components, once it has lasted long enough."""
    components = {}
    for alert, expression in rules().items():
        result = _evaluated(promql.parse(expression), before, after)
        assert isinstance(result, dict), expression
        if result:
            components[alert] = {dict(labels).get("name", "") for labels in result}
    return components


def names(expression: str) -> set[str]:
    """Return the metrics of an expression."""
    metrics: set[str] = set()

    def visit(node: Any) -> bool:
        selector = node.vector_selector if isinstance(node, promql.MatrixSelector) else node
        if isinstance(selector, promql.VectorSelector):
            metrics.add(selector.name)
        return True

    promql.walk(promql.parse(expression), visit)
    return metrics


def _evaluated(node: Any, before: Scrape, after: Scrape) -> Vector | float:
    """Evaluate the part of PromQL that the rules need; a KeyError for any other."""
    if isinstance(node, promql.NumberLiteral):
        return float(node.val)
    if isinstance(node, promql.ParenExpr):
        return _evaluated(node.expr, before, after)
    if isinstance(node, promql.VectorSelector):
        return _selected(node, after)
    if isinstance(node, promql.Call):
        assert node.func.name == "rate"
        selector = node.args[0].vector_selector
        old, new = _selected(selector, before), _selected(selector, after)
        return {labels: new[labels] - old[labels] for labels in old.keys() & new.keys()}
    assert isinstance(node, promql.BinaryExpr), node
    left, right = _evaluated(node.lhs, before, after), _evaluated(node.rhs, before, after)
    sign = str(node.op)
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

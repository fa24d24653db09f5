"""What Prometheus would make of an agent's metrics: the alerts of conf/monitoring, by two looks at them."""

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
Look = Mapping[str, Vector]
"""By name of a metric: its series."""

_COMPARISONS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge}
_ARITHMETIC = {"*": operator.mul, "+": operator.add, "-": operator.sub, "/": operator.truediv}


def rules() -> dict[str, str]:
    """By alert: its expression."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def patience() -> dict[str, int]:
    """By alert: for how many minutes its expression has to hold."""
    found = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: int(rule.get("for", "0m").removesuffix("m")) for rule in found}


def look(scraped: str | None) -> Look:
    """The series of one scrape, or of one that failed."""
    found: dict[str, Vector] = {"up": {frozenset({("job", "flafka")}): float(scraped is not None)}}
    for family in text_string_to_metric_families(scraped or ""):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def firing(before: Look, after: Look) -> dict[str, set[str]]:
    """By alert: the components that it is about, once it has lasted."""
    found = {}
    for alert, expression in rules().items():
        result = _evaluated(promql.parse(expression), before, after)
        assert isinstance(result, dict), expression
        if result:
            found[alert] = {dict(labels).get("name", "") for labels in result}
    return found


def names(expression: str) -> set[str]:
    """The metrics in it."""
    found: set[str] = set()

    def visit(one: Any) -> bool:
        selector = one.vector_selector if isinstance(one, promql.MatrixSelector) else one
        if isinstance(selector, promql.VectorSelector):
            found.add(selector.name)
        return True

    promql.walk(promql.parse(expression), visit)
    return found


def _evaluated(one: Any, before: Look, after: Look) -> Vector | float:
    """Of PromQL what the rules need; a KeyError is what they should not."""
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


def _selected(selector: Any, seen: Look) -> Vector:
    wanted = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    return {
        labels: value
        for labels, value in seen.get(selector.name, {}).items()
        if all(dict(labels).get(name) == text for name, text in wanted.items())
    }

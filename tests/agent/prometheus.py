"""Verdicts of Prometheus' own `promtool` on the rules in conf/monitoring, if it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.alerting import RULES, Scrape


def promtool(directory: Path) -> str:
    """Return this host's program, or Debian's, unpacked into that directory, on a CI machine; else skip."""
    if path := shutil.which("promtool"):
        return path
    if not os.environ.get("CI") or os.geteuid() != 0:
        pytest.skip("there is no promtool here: Debian's package prometheus has it")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "download", "-qq", "prometheus"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=directory)
        if done.returncode:
            pytest.skip(f"there is no promtool, and {' '.join(command[:2])} failed: {done.stderr[-300:]}")
    (package,) = directory.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(directory)], check=True)
    return str(directory / "usr/bin/promtool")


def judged(tool: str, directory: Path, before: Scrape, after: Scrape, firing: dict[int, set[tuple[str, str]]]) -> str:
    """Return promtool's messages if other alerts fire at those minutes; empty if exactly these do.

    `before` holds for ten minutes, `after` from then on. `firing` are pairs of an alert and a component's name.
    """
    series = [
        {"series": _written(name, labels), "values": f"{_of(before, name, labels)}x10 {_of(after, name, labels)}x40"}
        for name in before.keys() | after.keys()
        for labels in before.get(name, {}).keys() | after.get(name, {}).keys()
    ]
    query = 'group by (alertname, name) (ALERTS{alertstate="firing"})'
    checks: list[dict[str, Any]] = [
        {
            "expr": query,
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": f"{{alertname={alert!r}{f', name={name!r}' * bool(name)}}}".replace("'", '"'), "value": 1}
                for alert, name in sorted(expected)
            ],
        }
        for minute, expected in firing.items()
    ]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    file = directory / "test.yml"
    file.write_text(yaml.safe_dump(test))
    command = [tool, "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _written(name: str, labels: frozenset[tuple[str, str]]) -> str:
    return f"{name}{{{', '.join(f'{key}={value!r}' for key, value in sorted(labels))}}}".replace("'", '"')


def _of(look: Scrape, name: str, labels: frozenset[tuple[str, str]]) -> str:
    value = look.get(name, {}).get(labels)
    return "_" if value is None else f"{value:f}+0"

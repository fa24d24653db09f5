"""Metrics and their declarations: every counted, shown or requested metric is declared."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flafka.agent import explain
from flafka.agent.monitoring import definitions, kafkamonitor
from flafka.agent.monitoring.history import CHARTED, PROCESS, RATED
from flafka.agent.monitoring.registry import UNDECLARED, Registry
from flafka.agent.runner import retries
from flafka.agent.runner.local import outage
from flafka.agent.runner.spark.progress import gauges_of
from flafka.plugins import Component, Components, Metric, Metrics, Source
from flafka.plugins.contractcheck import find_contract_violations

ROOT = Path(__file__).parents[2]
COMPONENTS = [(kind, cls) for kind in explain.KINDS for cls in Components().all(kind)]
DECLARED = [
    *((f"{group.kind} {group.condition}", metric) for group in definitions.GROUPS for metric in group.metrics),
    *((f"{kind} {cls.type_name}", metric) for kind, cls in COMPONENTS for metric in cls.declared_metrics),
]
NAMES = {metric.name for _, metric in DECLARED}
CALLS = {"add", "set", "set_function", "timed"}
UNUSED = {"CheckpointBackupWriteErrorCount", "Closed", "EventTakeErrorCount"}
"""Metrics of Flume's file channel that are always 0."""
WITH_TLS = {"CertificateSecondsLeft"}
"""Metrics that every listening source sets, and that only a source with TLS declares."""


def calls(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the first argument of each call of `Metrics` that counts or sets."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CALLS
            and ast.unparse(node.func.value).endswith("metrics")
        ):
            yield node.args[0]


def counted(source: str) -> set[str]:
    """Return the names that this code counts or sets."""
    texts = (node for name in calls(ast.parse(source)) for node in ast.walk(name))
    return {node.value for node in texts if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@functools.cache
def counted_in(file: Path) -> set[str]:
    return counted(file.read_text("utf-8"))


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split(".")[1:])
    return next(
        (candidate for candidate in (path.with_suffix(".py"), path / "__init__.py") if candidate.is_file()), None
    )


@functools.cache
def imported(file: Path) -> set[Path]:
    """Return the files of components, and of their shared modules, that this one imports."""
    modules = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    shared = ("flafka.plugins.kafka", "flafka.plugins.java", "flafka.plugins.net", "flafka.plugins.wire")
    starts = ("flafka.sources", "flafka.channels", "flafka.interceptors", "flafka.sinks", *shared)
    return {
        imported_file
        for module in modules
        if module.startswith(starts) and (imported_file := file_of(module)) is not None
    }


@functools.cache
def files_of(cls: type[Component]) -> set[Path]:
    """Return the files with the code of a component."""
    files: set[Path] = set()
    due = {file for base in cls.__mro__ if (file := file_of(base.__module__)) is not None}
    while due:
        file = due.pop()
        files.add(file)
        due |= imported(file) - files
    return files


def own(cls: type[Component]) -> set[str]:
    return {metric.name for metric in cls.declared_metrics}


@pytest.mark.parametrize(("kind", "cls"), COMPONENTS, ids=[f"{kind}-{cls.type_name}" for kind, cls in COMPONENTS])
def test_a_component_declares_what_it_counts_and_nothing_else(kind: str, cls: type[Component]) -> None:
    known = own(cls) | {metric.name for metric in definitions.common_metrics(kind.upper())}
    bases = [base for base in cls.__mro__ if base.__module__.startswith("flafka.") and base is not Component]
    in_classes = {name for base in bases for name in counted(textwrap.dedent(inspect.getsource(base)))}
    assert in_classes - known <= WITH_TLS
    assert own(cls) - UNUSED <= {name for file in files_of(cls) for name in counted_in(file)}


def test_every_counted_metric_is_declared_by_a_component_that_uses_it() -> None:
    files = [path for kind in explain.KINDS for path in (ROOT / f"{kind}s").rglob("*.py")]
    count = 0
    for file in [
        *files,
        *(path for name in ("kafka", "java", "net", "wire") for path in (ROOT / "plugins" / name).glob("*.py")),
    ]:
        users = [(kind, cls) for kind, cls in COMPONENTS if file in files_of(cls)]
        declared = {name for _, cls in users for name in own(cls)}
        declared |= {metric.name for kind, _ in users for metric in definitions.common_metrics(kind.upper())}
        assert counted_in(file) <= declared, file
        count += len(counted_in(file))
        names = calls(ast.parse(file.read_text("utf-8")))
        assert not [node for node in names if isinstance(node, (ast.Name, ast.Attribute))], "write the name as a text"
    assert count > 80


def test_an_undeclared_metric_is_detected() -> None:
    code = """
    self._source.metrics.add("OneCount" if well else "OtherCount", 1)
    with metrics.timed("SomeTimer"):
        metrics.set("Size", 1)
    """
    assert counted(textwrap.dedent(code)) == {"OneCount", "OtherCount", "SomeTimer", "Size"}


def test_the_agent_declares_what_it_counts() -> None:
    declared = {metric.name for group in definitions.GROUPS for metric in group.metrics}
    files = [*(ROOT / "agent").rglob("*.py")]
    assert {name for file in files for name in counted_in(file)} <= declared
    assert {*retries.RETRY, *kafkamonitor.BACKLOG, *kafkamonitor.CLUSTER, *outage.COUNTERS} <= declared
    assert {*RATED, *(name for kind, names in CHARTED.items() if kind != PROCESS for name in names)} <= NAMES
    state = SimpleNamespace(numRowsTotal=1, memoryUsedBytes=1)
    progress = SimpleNamespace(batchDuration=1, processedRowsPerSecond=1.0, sources=[], stateOperators=[state])
    assert gauges_of(progress, {}).keys() <= declared
    texts = {
        node.value
        for file in (ROOT / "agent" / "runner").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {text for text in texts if text.isalnum() and text.endswith("Count")} <= declared


def test_a_name_has_one_meaning() -> None:
    meanings: dict[str, tuple[str, str, str]] = {}
    for where, metric in DECLARED:
        meaning = (metric.kind, metric.unit, metric.help)
        assert meanings.setdefault(metric.name, meaning) == meaning, where


@pytest.mark.parametrize(
    "metric", {metric.name: metric for _, metric in DECLARED}.values(), ids=lambda metric: metric.name
)
def test_its_help_is_a_sentence(metric: Metric) -> None:
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert metric.help.endswith(".")
    assert ". " not in metric.help
    assert len(metric.help.split()) <= 25
    assert metric.name.endswith("Timer") <= (metric.unit == "milliseconds")


def exposed(registry: Registry) -> list[str]:
    prometheus = CollectorRegistry()
    prometheus.register(registry)
    return generate_latest(prometheus).decode().splitlines()


def test_prometheus_has_help_and_type_of_the_declaration() -> None:
    registry, metrics = Registry("a1"), Metrics()
    metrics.add("ForeignCount", 2)
    metrics.set("Foreign", 3)
    declared = Metric("Level", "gauge", "litres", "Water in the tank.")
    later = Metric("SpillCount", "counter", "spills", "Times that water ran over.", "known")
    registry.add("SOURCE", "s1", metrics, [declared, later])
    lines = exposed(registry)
    assert "# HELP flafka_level Water in the tank." in lines
    assert "# TYPE flafka_level gauge" in lines
    assert 'flafka_level{agent="a1",kind="source",name="s1"} 0.0' in lines
    assert not [line for line in lines if "spill" in line]
    assert f"# HELP flafka_foreign_total {UNDECLARED}" in lines
    assert f"# HELP flafka_foreign {UNDECLARED}" in lines
    assert 'flafka_event_rejected_total{agent="a1",kind="source",name="s1"} 0.0' in lines
    shown = registry.flume()["SOURCE.s1"]
    assert (shown["Level"], shown["ForeignCount"]) == ("0", "2")
    assert not {"SpillCount", "EventRejectedCount"} & shown.keys()
    metrics.add("SpillCount")
    assert "# HELP flafka_spill_total Times that water ran over." in exposed(registry)


def test_names_that_are_not_declarations_are_a_mistake_of_the_author() -> None:
    class Wrong(Source[Any]):
        """Source with undeclared metrics."""

        declared_metrics = ("SomeCount",)  # type: ignore[assignment]

        def batches(self) -> Any:
            return iter(())

    ((sentence, _),) = find_contract_violations(Wrong)
    assert sentence == 'has other declared_metrics than a tuple of Metric(name, "counter", unit, help)'

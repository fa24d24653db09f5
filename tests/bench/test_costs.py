"""Costs of `agent size` fitted to results of benchmarks."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.frame import BROKERS, CPU, RATE, Row
from bench.frame.costs import (
    AGENT_CORES,
    BROKER_CORES,
    FITTED_LOADS,
    MEAN_BODY_BYTES,
    PREDICTED_LOADS,
    RATE_CURVE,
    fit,
    merged,
    model_figures,
    predictions,
    with_costs,
)
from bench.frame.plot import FULL_SPEED
from flafka.agent.sizing import COSTS, batch_rate, read_costs
from tests.bench.test_frame import MACHINE

FULL_RATE, LINGER = 1_000_000, 0.01
TRUE = {
    "source.syslog": {"event": 0.2, "byte": 0.002},
    "mask": {"event": 0.1},
    "process": {"idle": 0.002, "batch": 900.0, "delivery": 700.0},
    "kafka": {"idle": 0.01, "batch": 1_500.0, "byte": 0.003, "delivery": 400.0},
    "sink.hdfs-text": {"event": 0.4, "reader": 800_000},
}


def document(name: str, *rows: tuple[str, str, float]) -> dict[str, Any]:
    json = [Row(measure, unit, None, [(value, None)]).as_json() for measure, unit, value in rows]
    return {"name": name, "machine": MACHINE, "rows": json}


def measured() -> list[dict[str, Any]]:
    """Results that benchmarks would have if the true costs were exact."""
    curve = []
    for rate in (1, 10, 100, 1_000, 10_000, 100_000, FULL_RATE):
        batches = batch_rate(rate, LINGER)
        event = TRUE["source.syslog"]["event"] + TRUE["source.syslog"]["byte"] * MEAN_BODY_BYTES + 0.1
        point = f"{RATE_CURVE}: {FULL_SPEED if rate == FULL_RATE else f'{rate:,}'}"
        curve.append((point, CPU, (0.002 * 1e6 + batches * 900) / rate + event))
        curve.append((point, BROKERS, (0.03 * 1e6 + batches * 1_500) / rate + 0.003 * MEAN_BODY_BYTES))
    costs = merged(read_costs(), {**TRUE, "process": {**TRUE["process"], "linger": LINGER}})
    loads = {**FITTED_LOADS, **PREDICTED_LOADS}
    return [
        document("curves", (f"{RATE_CURVE}: {FULL_SPEED}", RATE, FULL_RATE), *curve),
        document("scaling", ("events, zstd: b of a + b · bytes", "µs CPU/KB", 2.0), ("one more mask", CPU, 0.1)),
        document("hdfs", ("channel to HDFS, text", CPU, 0.4), ("channel to HDFS, text", RATE, 800_000)),
        document(
            "sizing",
            *((name, unit, v) for name, load in loads.items() for unit, v in model_figures(load, costs).items()),
        ),
    ]


def test_exact_results_give_the_costs_back_and_predict_other_loads() -> None:
    costs, missing = fit(measured())
    for table, values in TRUE.items():
        for key, value in values.items():
            assert costs[table][key] == pytest.approx(value, rel=0.05), f"{table}.{key}"
    assert costs["process"]["linger"] == pytest.approx(LINGER, rel=0.05)
    assert any("append" in reason for reason in missing)
    rows = list(predictions(measured(), merged(read_costs(), costs)))
    assert {(row.load, row.unit) for row in rows} == {
        (name, unit) for name in PREDICTED_LOADS for unit in (AGENT_CORES, BROKER_CORES)
    }
    for row in rows:
        assert row.error == pytest.approx(0, abs=0.03), row


def test_costs_without_results_stay() -> None:
    costs, missing = fit([])
    assert costs == {}
    assert len(missing) == len(set(missing)) > 5
    assert merged(read_costs(), costs) == read_costs()
    assert with_costs(COSTS.read_text(), costs) == COSTS.read_text()


def test_costs_are_never_negative() -> None:
    results = copy.deepcopy(measured())
    for row in results[0]["rows"]:
        if row["unit"] == BROKERS:  # falls with the rate: idle brokers and nothing else
            rate = row["measure"].rpartition(": ")[2]
            row["runs"] = [[30_000 / (FULL_RATE if rate == FULL_SPEED else float(rate.replace(",", ""))), None]]
    costs, _ = fit(results)
    assert min(value for values in costs.values() for value in values.values()) >= 0


def test_written_costs_are_read_again(tmp_path: Any) -> None:
    costs, _ = fit(measured())
    file = tmp_path / "costs.toml"
    file.write_text(with_costs(COSTS.read_text(), costs))
    read, before = read_costs(file), read_costs()
    assert read["process"]["batch"] == pytest.approx(900, rel=0.05)
    assert read["process"]["from"] == before["process"]["from"]
    assert read["sink"]["solr"] == before["sink"]["solr"]

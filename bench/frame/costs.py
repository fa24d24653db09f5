"""Costs of `agent size`, fitted to kept results of benchmarks, and the error of its predictions.

`python -m bench.frame.costs` prints both; with `--write` it also writes the costs into agent/sizing/costs.toml.

CPU time by rate is fitted by `idle + batch · batches/s + event · events/s`. The number of batches per second follows
from the rate and the linger. The error is for loads of `./dev bench sizing` that no cost is fitted to.
Costs without a result keep their values, and so do Spark's micro-batches.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench.frame import BROKERS, CPU, RATE
from bench.frame.plot import FULL_SPEED, POINT
from bench.frame.report import describe_machine
from bench.frame.results import load_results
from bench.frame.varied import Events
from flafka.agent.sizing import COSTS, Load, batch_rate, read_costs, requirements

RATE_CURVE = "syslog by events a second"
AGENT_CORES, BROKER_CORES, EXECUTOR_CORES = "cores of the agent", "cores of brokers", "cores of executors"
ROLL_SECONDS = 5
SAMPLE_EVENTS = 10_000
MEAN_BODY_BYTES, MEAN_LINE_BYTES = (
    float(np.mean([len(text) for text in array.to_pylist()]))
    for array in (Events(SAMPLE_EVENTS).bodies(masked=True), Events(SAMPLE_EVENTS).lines())
)
"""Mean sizes of the events of benchmarks: parsed and masked, and as a whole line."""
_LOAD = Load(events=50_000, bytes=MEAN_BODY_BYTES, busy=1, roll=ROLL_SECONDS)
FITTED_LOADS = {
    "syslog to HDFS, 50,000 events/s": _LOAD,
    "syslog to HDFS on Spark, 50,000 events/s": Load(**{**vars(_LOAD), "runner": "spark"}),
}
"""Loads of `./dev bench sizing` whose results are used for the fit, or for costs that are set by hand."""
PREDICTED_LOADS = {
    "syslog to HDFS, 500 events/s": Load(**{**vars(_LOAD), "events": 500}),
    "1,000 files to Solr, 1,000 events/s": Load(
        **{**vars(_LOAD), "events": 1_000, "bytes": MEAN_LINE_BYTES, "source": "taildir", "masks": 0, "sink": "solr"}
    ),
    "Avro to HBase, 5,000 events/s": Load(
        **{**vars(_LOAD), "events": 5_000, "source": "avro", "masks": 0, "sink": "hbase"}
    ),
}
"""Loads of `./dev bench sizing` that are not used for the fit."""
LINGERS: list[float] = np.geomspace(0.001, 0.05, 80).tolist()
"""Lingers that are tried, in seconds."""
Costs = dict[str, dict[str, float]]
"""Table of costs.toml, such as `source.syslog` → key → fitted cost."""


class MissingResult(Exception):
    """Result that a cost needs and that is not kept, with the name of the benchmark."""


class Results:
    """Medians of Flafka in kept results."""

    def __init__(self, results: Sequence[Mapping[str, Any]]) -> None:
        self._rows: dict[tuple[str, str, str], float] = {
            (result["name"], row["measure"], row["unit"]): statistics.median(own for own, _ in row["runs"])
            for result in results
            for row in result["rows"]
        }

    def median(self, name: str, measure: str, unit: str = CPU) -> float:
        """Return the median of a measure of a benchmark. Raises MissingResult."""
        try:
            return self._rows[name, measure, unit]
        except KeyError:
            raise MissingResult(f"./dev bench {name} --keep, for {measure}, {unit}") from None

    def curve(self, unit: str) -> list[tuple[float, float]]:
        """Return events per second and cores at each rate of `RATE_CURVE`. Raises MissingResult."""
        full = self.median("curves", f"{RATE_CURVE}: {FULL_SPEED}", RATE)
        points = []
        for name, measure, row_unit in self._rows:
            match = POINT.match(measure)
            if name == "curves" and match and match["curve"] == RATE_CURVE and row_unit == unit:
                number = match["number"]
                rate = full if number == FULL_SPEED else float(number.replace(",", ""))
                points.append((rate, rate * self.median(name, measure, unit) / 1e6))
        return sorted(points)


@dataclass(frozen=True)
class _Fit:
    """Idle cores, and CPU microseconds for a batch and for an event."""

    idle: float
    batch: float
    event: float
    error: float
    """Root of the mean square of relative errors."""


def fit(results: Sequence[Mapping[str, Any]]) -> tuple[Costs, list[str]]:
    """Return the costs that kept results determine, and the reasons why others are missing.

    `results` are as in bench/results/NAME.json.
    """
    medians, costs, missing = Results(results), dict[str, dict[str, float]](), []
    before = read_costs()

    def current(table: str, key: str) -> float:
        """Return a cost that was fitted, or that the file has."""
        value: Any = before
        for name in table.split("."):
            value = value[name]
        return costs.get(table, {}).get(key, float(value[key]))

    def fit_source(source: str, micros: float, size: float) -> None:
        """Split the cost of an event of this size. Its bytes cost as much as bytes of words, up to all of it."""
        slope = medians.median("scaling", "events, zstd: b of a + b · bytes", "µs CPU/KB") / 1_000
        byte = min(slope, micros / size)
        costs[f"source.{source}"] = {"event": micros - byte * size, "byte": byte}

    def fit_mask() -> None:
        costs["mask"] = {"event": medians.median("scaling", "one more mask")}

    def fit_agent() -> None:
        points = medians.curve(CPU)
        fits = {linger: _fit(points, linger) for linger in LINGERS}
        linger = min(LINGERS, key=lambda tried: fits[tried].error)
        best = fits[linger]
        costs["process"] = {"idle": best.idle, "batch": best.batch, "linger": linger, "cores": points[-1][1]}
        fit_source("syslog", max(0.0, best.event - current("mask", "event")), MEAN_BODY_BYTES)

    def fit_brokers() -> None:
        best = _fit(medians.curve(BROKERS), current("process", "linger"))
        costs["kafka"] = {"idle": best.idle / 3, "batch": best.batch, "byte": best.event / MEAN_BODY_BYTES}

    def fit_taildir() -> None:
        fit_source("taildir", medians.median("taildir", "files to Kafka channel, from the start"), MEAN_LINE_BYTES)

    def fit_avro() -> None:
        fit_source("avro", medians.median("append", "appendBatch of 1,000"), MEAN_BODY_BYTES)

    def fit_sink(sink: str, name: str, measure: str) -> None:
        costs[f"sink.{sink}"] = {
            "event": medians.median(name, measure),
            "reader": round(medians.median(name, measure, RATE), -3),
        }

    def fit_spark(form: str) -> None:
        rate = medians.median("spark", f"channel, mask, {form} on Spark", RATE)
        costs[f"spark.hdfs-{form.lower()}"] = {"core": round(rate / 2, -3)}  # local[2]

    def fit_delivery() -> None:
        (name, load), *_ = FITTED_LOADS.items()
        batches = batch_rate(load.events, current("process", "linger"))
        for table, unit, resource in (
            ("process", AGENT_CORES, "cores of agents"),
            ("kafka", BROKER_CORES, "cores of brokers"),
        ):
            without = {**costs, table: {**costs.get(table, {}), "delivery": 0.0}}
            rest = medians.median("sizing", name, unit) - amounts(load, merged(before, without))[resource]
            costs.setdefault(table, {})["delivery"] = max(0.0, rest / batches * 1e6)

    steps: list[tuple[Callable[..., None], tuple[str, ...]]] = [
        (fit_mask, ()),
        (fit_agent, ()),
        (fit_brokers, ()),
        (fit_taildir, ()),
        (fit_avro, ()),
        (fit_sink, ("hdfs-text", "hdfs", "channel to HDFS, text")),
        (fit_sink, ("hdfs-parquet", "hdfs", "channel to HDFS, Parquet")),
        (fit_sink, ("hbase", "stores", "channel to HBase")),
        (fit_sink, ("solr", "stores", "channel to Solr")),
        (fit_spark, ("text",)),
        (fit_spark, ("Parquet",)),
        (fit_delivery, ()),  # the last one, as it is the rest of a sum
    ]
    for step, arguments in steps:
        try:
            step(*arguments)
        except MissingResult as reason:
            missing.append(str(reason))
    return costs, list(dict.fromkeys(missing))


def _fit(points: Sequence[tuple[float, float]], linger: float) -> _Fit:
    """Return the least squares of relative errors for events per second and cores, without negative costs."""
    rates, cores = np.array(points).T
    columns = np.column_stack([np.ones(len(rates)), batch_rate(rates, linger), rates]) / cores[:, None]
    kept, solution = [0, 1, 2], np.zeros(3)
    while kept:
        solution = np.zeros(3)
        solution[kept] = np.linalg.lstsq(columns[:, kept], np.ones(len(rates)), rcond=None)[0]
        if solution.min() >= 0:
            break
        kept.remove(int(solution.argmin()))
    error = float(np.sqrt(np.mean((columns @ solution - 1) ** 2)))
    return _Fit(float(solution[0]), float(solution[1]) * 1e6, float(solution[2]) * 1e6, error)


def merged(before: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    """Return the tables of costs.toml with fitted costs in place of earlier ones."""
    tables: dict[str, Any] = {
        name: {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
        for name, table in before.items()
    }
    for name, values in costs.items():
        table, _, entry = name.partition(".")
        (tables[table][entry] if entry else tables[table]).update(values)
    return tables


def with_costs(text: str, costs: Costs) -> str:
    """Return the text of costs.toml with fitted costs, of three significant digits, in place of earlier ones."""
    for name, values in costs.items():
        for key, value in values.items():
            number = f"{round(value)}" if value >= 1_000 else f"{float(f'{value:.3g}'):g}"
            pattern = rf"(^\[{re.escape(name)}\]\n(?:[^\[].*\n)*?{key} = ).*$"
            text, count = re.subn(pattern, rf"\g<1>{number}", text, flags=re.MULTILINE)
            assert count == 1, f"costs.toml has no {key} in [{name}]"
    return text


def amounts(load: Load, costs: Mapping[str, Any]) -> dict[str, float]:
    """Return the amounts that `agent size` computes, by resource."""
    return {need.resource: need.amount for need in requirements(load, costs)}


def model_figures(load: Load, costs: Mapping[str, Any]) -> dict[str, float]:
    """Return the amounts of the model that `./dev bench sizing` measures, by unit."""
    computed = amounts(load, costs)
    figures = {
        AGENT_CORES: computed["cores of agents"] + computed.get("cores of the driver", 0.0),
        BROKER_CORES: computed["cores of brokers"],
    }
    return figures | ({EXECUTOR_CORES: computed[EXECUTOR_CORES]} if EXECUTOR_CORES in computed else {})


class Prediction(NamedTuple):
    """Measured and predicted cores of a load."""

    load: str
    unit: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Difference of the prediction as a share of the measured value."""
        return self.predicted / self.measured - 1


def predictions(
    results: Sequence[Mapping[str, Any]], costs: Mapping[str, Any], loads: Mapping[str, Load] = PREDICTED_LOADS
) -> Iterator[Prediction]:
    """Yield the predictions for loads that `./dev bench sizing` has measured."""
    medians = Results(results)
    for name, load in loads.items():
        for unit, predicted in model_figures(load, costs).items():
            try:
                yield Prediction(name, unit, medians.median("sizing", name, unit), predicted)
            except MissingResult:
                continue


def main() -> None:
    """Print fitted costs beside earlier ones, and predictions beside measured values."""
    results, before = load_results(), read_costs()
    costs, missing = fit(results)
    machines = {describe_machine(result["machine"]) for result in results}
    if len(machines) > 1:
        print(
            "The results come from several machines or versions, which costs should not:",
            *sorted(machines),
            sep="\n  ",
        )
    for reason in missing:
        print(f"Not fitted: run {reason}")
    for name, values in costs.items():
        table: Any = before
        for part in name.split("."):
            table = table[part]
        for key, value in values.items():
            print(f"{name}.{key}: {table[key]:g} → {value:.3g}")
    for which, loads in (("fitted", FITTED_LOADS), ("not used for the fit", PREDICTED_LOADS)):
        for row in predictions(results, merged(before, costs), loads):
            print(
                f"{row.load} ({which}): {row.unit}: measured {row.measured:.3g}, predicted {row.predicted:.3g}, "
                f"error {row.error:+.0%}"
            )
    if "--write" in sys.argv[1:]:
        COSTS.write_text(with_costs(COSTS.read_text(), costs))


if __name__ == "__main__":
    main()

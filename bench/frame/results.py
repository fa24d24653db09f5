"""Kept results for the documentation: bench/results/NAME.json, and a picture and table rows of each."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.frame.plot import draw
from bench.frame.report import describe_machine, median_and_spread, short_number

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PICTURES = ROOT / "docs" / "pictures"


def keep_result(result: Mapping[str, Any]) -> None:
    """Write a result to `RESULTS` and its picture to `PICTURES`, with today's date and the commit in each row.

    Earlier rows of other measures stay if machine and versions are the same.
    """
    RESULTS.mkdir(exist_ok=True)
    origin = {"date": datetime.date.today().isoformat(), "commit": measured_commit()}
    result = {**result, "rows": [{**row, **origin} for row in result["rows"]]}
    file = RESULTS / f"{result['name']}.json"
    before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"machine": None}
    new = {row["measure"] for row in result["rows"]}
    kept_rows = before["rows"] if before["machine"] == result["machine"] else []
    rows = [*result["rows"], *(row for row in kept_rows if row["measure"] not in new)]
    result = {**result, "rows": sorted(rows, key=lambda row: _natural(row["measure"]))}
    head = json.dumps({"name": result["name"], "machine": result["machine"]}, ensure_ascii=False, indent=1)
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in result["rows"])
    file.write_text(f'{head[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n')
    (PICTURES / f"bench-{result['name']}.svg").write_text(draw(result))


def measured_commit() -> str:
    """Return the abbreviated hash of the checkout's commit; with a `+` if files differ from it, results apart."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!bench/results", ":!docs/pictures")
    return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)


def _natural(measure: str) -> str:
    """Return a name by which measures are sorted, numbers in it by their size."""
    return re.sub(r"\d[\d,]*", lambda number: number[0].replace(",", "").zfill(12), measure)


def load_results() -> list[dict[str, Any]]:
    """Return all kept results, sorted by name."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def table_rows(results: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield rows for the documentation: benchmark, measure, unit, Flafka, peer, name of the peer, ratio."""
    for result in results:
        for row in result["rows"]:
            peers = [peer for _, peer in row["runs"] if peer is not None]
            yield (
                f"`{result['name']}`",
                row["measure"],
                row["unit"],
                median_and_spread([own for own, _ in row["runs"]]),
                median_and_spread(peers),
                row["peer_name"] or "",
                short_number(row["ratio"]) if row["ratio"] is not None else "",
            )


def machines(results: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield for each machine the names of its benchmarks with dates and commits, and its description."""
    names_by_machine: dict[str, list[str]] = {}
    for result in results:
        origins = sorted({f"{row['date']} at {row['commit']}" for row in result["rows"]})
        name = f"`{result['name']}` ({', '.join(origins)})"
        names_by_machine.setdefault(describe_machine(result["machine"]), []).append(name)
    yield from ((", ".join(names), machine) for machine, names in names_by_machine.items())

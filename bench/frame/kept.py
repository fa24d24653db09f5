"""Results that are kept for the documentation: bench/results/NAME.json, a picture and a table of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.frame.plot import drawing
from bench.frame.report import named, short, spread

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PICTURES = ROOT / "docs" / "pictures"


def keep(result: Mapping[str, Any]) -> None:
    """Write the result and its picture. What was kept before of other measures stays, if of the same machine."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{result['name']}.json"
    before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"machine": None}
    new = {row["measure"] for row in result["rows"]}
    others = before["rows"] if before["machine"] == result["machine"] else []
    rows = [*result["rows"], *(row for row in others if row["measure"] not in new)]
    result = {**result, "rows": sorted(rows, key=lambda row: row["measure"])}
    head = json.dumps({"name": result["name"], "machine": result["machine"]}, ensure_ascii=False, indent=1)
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in result["rows"])
    file.write_text(f'{head[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n')
    (PICTURES / f"bench-{result['name']}.svg").write_text(drawing(result))


def results() -> list[dict[str, Any]]:
    """All that are kept, by name."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def rows(results: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Those of the documentation's table: benchmark, measure, unit, ours, peer, its name, ratio."""
    for result in results:
        for row in result["rows"]:
            peers = [peer for _, peer in row["runs"] if peer is not None]
            yield (
                f"`{result['name']}`",
                row["measure"],
                row["unit"],
                spread([mine for mine, _ in row["runs"]]),
                spread(peers),
                row["peer_name"] or "",
                short(row["ratio"]) if row["ratio"] is not None else "",
            )


def machines(results: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Where the results come from: benchmarks, and the machine."""
    where: dict[str, list[str]] = {}
    for result in results:
        where.setdefault(named(result["machine"]), []).append(f"`{result['name']}`")
    yield from ((", ".join(names), machine) for machine, names in where.items())

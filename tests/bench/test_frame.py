"""Features of all benchmarks: rounds, absent peers, rows, the table, the picture."""

from __future__ import annotations

import contextlib
import itertools
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.frame import RATE, Bench, Figures, PeerMissing, without_setup
from bench.frame import report as reports
from bench.frame import results as kept
from bench.frame.plot import draw
from bench.frame.report import as_json, median_and_spread, print_table, short_number
from bench.frame.results import machines, table_rows

MACHINE = {
    "cpu": "Any CPU of some length at 3.00 GHz",
    "cores": 2,
    "memory_gib": 23.5,
    "os": "Linux 6.1",
    "java": 17,
    "versions": {"python": "3.11.7", "kafka": "4.3.1"},
}


def counting(name: str, seen: list[str], by: float = 1.0) -> contextlib.AbstractContextManager[Callable[[], Figures]]:
    numbers = itertools.count(1)

    def run() -> Figures:
        seen.append(name)
        return {RATE: next(numbers) * by}

    return without_setup(run)


@contextlib.contextmanager
def absent() -> Iterator[Callable[[], Figures]]:
    raise PeerMissing("apt-get install peer")
    yield


def result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(reports, "machine", lambda: MACHINE)
    with Bench("sample", rounds=5) as bench:
        seen: list[str] = []
        long = "a measure whose name is far longer than its column is wide"
        peers = {"one & another": counting("a", seen, 2), "third": counting("b", seen, 1e6), "absent": absent()}
        bench.compare(long, counting("o", seen), peers)
        bench.compare("alone", counting("o", seen), {}, rounds=1)
        assert bench.skipped == {"absent": "apt-get install peer"}
        return as_json(bench)


def test_peers_take_turns_and_each_round_begins_with_another(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    with Bench("sample", rounds=3) as bench:
        bench.compare("m", counting("o", seen), {"a": counting("a", seen), "b": counting("b", seen)})
    assert ["".join(seen[n : n + 3]) for n in range(0, len(seen), 3)] == ["oab", "abo", "boa", "oab"]
    assert "round 3 of 3: ours: 4 events/s" in capsys.readouterr().err


def test_the_first_round_does_not_count_unless_it_is_a_smoke_run() -> None:
    for smoke, runs in ((False, [(2.0, 4.0), (3.0, 6.0)]), (True, [(1.0, 2.0)])):
        with Bench("sample", rounds=2, smoke=smoke) as bench:
            bench.compare("m", counting("o", []), {"a": counting("a", [], 2)})
        assert [row.runs for row in bench.rows] == [runs]
        assert bench.rows[0].ratio == 0.5


def test_json_has_one_row_for_each_peer_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(json.dumps(result(monkeypatch)))
    assert list(document) == ["name", "machine", "rows"]
    for row in document["rows"]:
        assert list(row) == ["measure", "ours", "peer", "peer_name", "unit", "ratio", "runs"]
    assert [row["peer_name"] for row in document["rows"]] == ["one & another", "third", None]
    assert document["rows"][0]["runs"] == [[n, 2 * n] for n in range(2, 7)]
    assert document["rows"][0]["ours"] == 4
    assert document["rows"][2]["peer"] is document["rows"][2]["ratio"] is None


def test_an_interrupted_run_has_its_complete_rounds() -> None:
    calls = itertools.count()

    def interrupted() -> Figures:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return {RATE: 10}

    bench = Bench("sample", rounds=5)
    with bench, pytest.raises(KeyboardInterrupt):
        bench.compare("m", counting("o", []), {"a": without_setup(interrupted)})
    assert [row.runs for row in bench.rows] == [[(2, 10), (3, 10)]]


def test_only_the_measures_that_were_asked_for_are_taken() -> None:
    seen: list[str] = []
    with Bench("sample", smoke=True, only="two") as bench:
        bench.compare("one", counting("o", seen), {})
        bench.compare("number two", counting("t", seen), {})
    assert seen == ["t"]
    assert [row.measure for row in bench.rows] == ["number two"]


def test_other_measures_of_the_same_machine_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    monkeypatch.setattr(kept, "PICTURES", tmp_path)
    measured = result(monkeypatch)
    kept.keep_result(measured)
    remeasured = {**measured, "rows": [{**row, "ours": 0} for row in measured["rows"] if row["measure"] == "alone"]}
    kept.keep_result(remeasured)
    (kept_result,) = kept.load_results()
    assert len(kept_result["rows"]) == len(measured["rows"])
    assert [row["measure"] for row in kept_result["rows"] if row["ours"] == 0] == ["alone"]
    assert {row["commit"] for row in kept_result["rows"]} == {kept.measured_commit()}
    kept.keep_result({**remeasured, "machine": {**MACHINE, "cores": 4}})
    assert [row["measure"] for row in kept.load_results()[0]["rows"]] == ["alone"]


def test_the_table_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(result(monkeypatch), {"absent": "apt-get install peer"})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "4 ±50% 8 ±50% one & another 0.5" in text
    assert "skipped: absent: apt-get install peer" in text
    assert "2 cores of Any CPU" in text


def test_the_picture_and_the_page_have_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = result(monkeypatch)
    texts = {element.text for element in ET.fromstring(draw(measured)).iter() if element.text}
    assert {"Flafka", "one & another", "third", "alone", RATE} <= texts
    assert len(list(table_rows([measured]))) == 3
    dated = {**measured, "rows": [{**row, "date": "2026-11-20", "commit": "01ab"} for row in measured["rows"]]}
    ((names, machine),) = machines([dated, dated])
    assert names == "`sample` (2026-11-20 at 01ab), `sample` (2026-11-20 at 01ab)"
    assert machine.startswith("2 cores of Any CPU")


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1.614, "1.61"), (999.6, "1 k"), (689_123, "689 k"), (1.2e6, "1.2 M"), (1e9, "1 G")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short_number(number) == text


def test_spread_is_half_of_the_range() -> None:
    assert median_and_spread([90, 100, 110]) == "100 ±10%"
    assert median_and_spread([5]) == "5"
    assert median_and_spread([]) == ""

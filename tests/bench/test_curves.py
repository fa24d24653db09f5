"""Pictures of curves: points, axes, and bends."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import pytest

from bench.frame import Row
from bench.frame import results as kept
from bench.frame.plot import FULL_SPEED, bend, draw
from tests.bench.test_frame import MACHINE

NAME = "{http://www.w3.org/2000/svg}"


def result(*rows: Row) -> dict[str, Any]:
    return {"name": "sample", "machine": MACHINE, "rows": [row.as_json() for row in rows]}


def curve(costs: Mapping[object, float], peers: Mapping[object, float] | None = None) -> list[Row]:
    peers = peers or {}
    return [
        Row(f"files by number: {number}", "MiB", "peer" if number in peers else None, [(cost, peers.get(number))])
        for number, cost in costs.items()
    ]


def picture(*rows: Row) -> tuple[list[str], ET.Element]:
    root = ET.fromstring(draw(result(*rows)))
    return [element.text for element in root.iter() if element.text], root


def heights(root: ET.Element) -> list[float]:
    return [float(circle.attrib["cy"]) for circle in root.iter(f"{NAME}circle")]


def test_points_of_a_curve_are_one_line_and_other_measures_are_bars() -> None:
    texts, root = picture(
        *curve({"1": 10, "1,000": 20, "2,000": 30}, {"1": 5, "1,000": 6}), Row("alone", "s", None, [(7, None)])
    )
    assert {"files by number: MiB", "Flafka", "peer", "10", "20", "30", "2 k", "alone"} <= set(texts)
    assert len(heights(root)) == 5
    assert not any("1,000" in text for text in texts)
    assert len([path for path in root.iter(f"{NAME}path") if path.attrib.get("class") == "straight"]) == 1


def test_a_single_point_is_a_bar() -> None:
    texts, root = picture(*curve({FULL_SPEED: 10}))
    assert (heights(root), f"files by number: {FULL_SPEED}" in texts) == ([], True)


def test_proportional_growth_is_on_the_straight_line_and_a_bend_is_reported() -> None:
    texts, root = picture(*curve({"1": 100.1, "1,000": 200, "2,000": 300}))
    first, middle, last = heights(root)
    assert middle == pytest.approx((first + last) / 2, abs=0.2)
    assert not any("bends" in text for text in texts)
    texts, _ = picture(*curve({"1": 100, "1,000": 110, "2,000": 300}))
    assert "bends upwards, up to 30% below the straight line" in texts


def test_a_bend_downwards_is_none() -> None:
    assert bend([(0, 10), (50, 100), (100, 110)]) == 0
    assert bend([(0, 10), (50, 10), (100, 110)]) == pytest.approx(50 / 110)


def test_costs_that_fall_have_logarithmic_axes_which_end_with_full_speed() -> None:
    costs = {"1": 1000.0, "10": 100.0, "100": 10.0, FULL_SPEED: 1.0}
    texts, root = picture(*curve(costs))
    places = [(float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in root.iter(f"{NAME}circle")]
    steps = [(x - left, y - above) for (left, above), (x, y) in itertools.pairwise(places)]
    assert steps == [pytest.approx(steps[0], abs=0.2)] * 3
    assert FULL_SPEED in texts


def test_far_larger_peers_are_left_out_and_named() -> None:
    texts, root = picture(*curve({"1": 10, "2": 20}, {"1": 500, "2": 30}))
    assert len(heights(root)) == 3
    texts, root = picture(*curve({"1": 10, "2": 20}, {"1": 500, "2": 600}))
    assert "peer: more than 40" in texts


def test_kept_measures_are_in_the_order_of_their_numbers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    monkeypatch.setattr(kept, "PICTURES", tmp_path)
    kept.keep_result(result(*curve({FULL_SPEED: 1, "10": 1, "1,000": 1, "2": 1})))
    measures = [row["measure"].rpartition(": ")[2] for row in kept.load_results()[0]["rows"]]
    assert measures == ["2", "10", "1,000", FULL_SPEED]

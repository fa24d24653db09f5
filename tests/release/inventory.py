"""Bill of materials and licences of all dependencies, and what each extra weighs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.release.building import OUTPUT, PROJECT, ROOT, UV, VERSION, uv_environment
from tests.release.report import Report, directory_bytes, megabytes, run

RUNTIME_EXTRAS = [extra for extra in PROJECT["optional-dependencies"] if extra != "dev"]
CYCLONEDX = ("tool", "run", "--from", "cyclonedx-bom>=7.2,<8", "cyclonedx-py", "environment")
DECLARED = """
import importlib.metadata, json
metadata = [one.metadata for one in importlib.metadata.distributions()]
print(json.dumps({one["Name"]: one.get("License", "").partition(chr(10))[0] for one in metadata}))
"""
HEAVY = ("libparquet", "libarrow_flight", "libarrow_substrait", "libarrow_dataset")
"""Parts of pyarrow that are measured alone."""


def write_inventory(report: Report, wheel: Path, directory: Path) -> None:
    """Write a CycloneDX file with all that the extras install, and a text with the licence of each package.

    Advisories are never reported as checked: no source of them is asked.
    """
    bill, licences = OUTPUT / f"flafka-{VERSION}.cdx.json", OUTPUT / f"flafka-{VERSION}-licences.txt"
    components: list[dict[str, Any]] = []
    with report.check(bill, "CycloneDX file of all dependencies, valid"):
        requirement = f"flafka[{','.join(RUNTIME_EXTRAS)}] @ {wheel.as_uri()}"
        environment = uv_environment(directory / "inventory", requirement)
        options = (
            "--pyproject",
            ROOT / "pyproject.toml",
            "--output-reproducible",
            "--output-file",
            bill,
            "--validate",
        )
        run(*UV, *CYCLONEDX, *options, environment / "bin" / "python")
        content = json.loads(bill.read_text())
        components = content["components"]
        _add_declared(components, environment)
        bill.write_text(json.dumps(content, indent=2) + "\n")
        names = {component["name"].lower().replace("_", "-") for component in components}
        assert {"pyarrow", "pyspark", "pydantic", "msgspec"} <= names, names
    with report.check(licences, "each dependency has a licence"):
        assert components
        lines = {f"{one['name']} {one['version']}: {', '.join(_licences(one))}" for one in components}
        licences.write_text("\n".join(sorted(lines, key=str.lower)) + "\n")
        without = [one["name"] for one in components if not any(_licences(one))]
        assert not without, without
    report.untried(bill, "advisories", "no source of them is asked; give the file to a scanner that has one")
    shutil.rmtree(directory / "inventory", ignore_errors=True)


def _add_declared(components: list[dict[str, Any]], environment: Path) -> None:
    """Add the licences that packages declare in their own words, which the tool leaves out."""
    declared = json.loads(run(environment / "bin" / "python", "-c", DECLARED))
    for component in components:
        if not any(_licences(component)) and (text := declared.get(component["name"])):
            component["licenses"] = [{"license": {"name": text, "acknowledgement": "declared"}}]


def _licences(component: Mapping[str, Any]) -> Iterator[str]:
    """Yield the licences of a component, each once: an identifier of SPDX, or the name that its authors gave."""
    seen = {}
    for entry in component.get("licenses", ()):
        licence = entry.get("license", {})
        text = entry.get("expression") or licence.get("id") or licence.get("name") or ""
        seen[text.partition("\n")[0]] = None
    yield from filter(None, seen)


def measure_extras(report: Report, wheel: Path, directory: Path) -> None:
    """Measure the bytes that an installation takes without extras, and what each extra adds to it."""
    base = _installed(wheel, "", directory / "size")
    report.fact(wheel, f"without extras, all libraries take {megabytes(base)}")
    for extra in RUNTIME_EXTRAS:
        size = _installed(wheel, f"[{extra}]", directory / "size")
        report.fact(wheel, f"the extra {extra} adds {megabytes(size - base)}")
    arrow = directory / "arrow"
    run(*UV, "pip", "install", "--python", sys.executable, "--target", arrow, "--no-deps", "pyarrow")
    report.fact(wheel, f"pyarrow takes {megabytes(directory_bytes(arrow))} of that")
    for name in HEAVY:
        size = sum(file.stat().st_size for file in arrow.rglob(f"{name}.*"))
        report.fact(wheel, f"{name} of pyarrow takes {megabytes(size)}")
    shutil.rmtree(arrow)


def _installed(wheel: Path, extra: str, target: Path) -> int:
    """Return the bytes of an installation with an extra, written as in a requirement; empty for none."""
    run(*UV, "pip", "install", "--python", sys.executable, "--target", target, f"flafka{extra} @ {wheel.as_uri()}")
    size = directory_bytes(target)
    shutil.rmtree(target)
    return size

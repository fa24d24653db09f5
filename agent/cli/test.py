"""`agent test`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import click

from flafka.agent.cli.output import json_option, show_json
from flafka.agent.pipelinetests import PipelineTestResult, run_tests
from flafka.plugins import FlafkaError


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="Output file for the results as JUnit XML."
)
@json_option
def test(files: tuple[Path, ...], junit: Path | None, as_json: bool) -> None:
    """Run sample events through interceptors, selectors and sinks' destinations without servers; compare the outputs.

    FILE is in TOML, such as agent.test.toml beside agent.conf; `agent new test` writes one. Exit code: 0 if all tests
    pass, 1 if a test fails, 2 if a file is invalid.
    """
    began = time.monotonic()
    results: list[PipelineTestResult] = []
    mistakes: list[str] = []
    for file in files:
        try:
            results += run_tests(file)
        except FlafkaError as e:
            mistakes.append(str(e))
    failed = [result for result in results if result.differences]
    if junit is not None:
        _write_junit(junit, results, mistakes)
    if as_json:
        tests = [{**asdict(result), "ok": not result.differences} for result in results]
        show_json({"ok": not (failed or mistakes), "tests": tests, "mistakes": mistakes})
    else:
        for result in results:
            mark = click.style("✗" if result.differences else "✓", fg="red" if result.differences else "green")
            click.echo(f"{mark} {result.file}: {result.name}")
            for difference in result.differences:
                click.echo(f"    {difference}")
        for mistake in mistakes:
            click.secho(f"error: {mistake}", fg="red", err=True)
        count = f"{len(results)} test{'s' * (len(results) != 1)}, {len(failed)} failed"
        click.echo(f"{count} ({time.monotonic() - began:.1f} s)")
    sys.exit(2 if mistakes else 1 if failed else 0)


def _write_junit(file: Path, results: Sequence[PipelineTestResult], mistakes: Sequence[str]) -> None:
    """Write the results as JUnit XML; an invalid test file is an error there. Raises ClickException."""
    counts = {"tests": str(len(results)), "failures": str(sum(bool(result.differences) for result in results))}
    suite = ET.Element("testsuite", {"name": "agent test", **counts, "errors": str(len(mistakes))})
    for result in results:
        case = ET.SubElement(suite, "testcase", {"classname": result.file, "name": result.name})
        if result.differences:
            failure = ET.SubElement(case, "failure", {"message": result.differences[0].partition("\n")[0]})
            failure.text = "\n".join(result.differences)
    for mistake in mistakes:
        case = ET.SubElement(suite, "testcase", {"classname": "agent test", "name": "file"})
        ET.SubElement(case, "error", {"message": mistake})
    try:
        file.write_bytes(ET.tostring(suite, "utf-8", xml_declaration=True))
    except OSError as e:
        raise click.ClickException(f"{file} cannot be written: {e.strerror}") from e

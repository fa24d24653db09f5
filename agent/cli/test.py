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
from flafka.agent.pipelinetests import PipelineTestResult, tests_of
from flafka.plugins import FlafkaError


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="File to write the results to, as JUnit's XML."
)
@json_option
def test(files: tuple[Path, ...], junit: Path | None, as_json: bool) -> None:
    """Test pipelines: events go through interceptors and selectors, to where sinks would put them, without servers.

    FILE is in TOML, such as agent.test.toml beside agent.conf; `agent new test` writes one. Exit code: 0 where all is
    as expected, 1 where not, 2 where a file is no test.
    """
    began = time.monotonic()
    results: list[PipelineTestResult] = []
    mistakes: list[str] = []
    for file in files:
        try:
            results += tests_of(file)
        except FlafkaError as e:
            mistakes.append(str(e))
    failed = [one for one in results if one.differences]
    if junit is not None:
        _write(junit, results, mistakes)
    if as_json:
        told = [{**asdict(one), "ok": not one.differences} for one in results]
        show_json({"ok": not (failed or mistakes), "tests": told, "mistakes": mistakes})
    else:
        for one in results:
            mark = click.style("✗" if one.differences else "✓", fg="red" if one.differences else "green")
            click.echo(f"{mark} {one.file}: {one.name}")
            for difference in one.differences:
                click.echo(f"    {difference}")
        for mistake in mistakes:
            click.secho(f"error: {mistake}", fg="red", err=True)
        count = f"{len(results)} test{'s' * (len(results) != 1)}, {len(failed)} failed"
        click.echo(f"{count} ({time.monotonic() - began:.1f} s)")
    sys.exit(2 if mistakes else 1 if failed else 0)


def _write(file: Path, results: Sequence[PipelineTestResult], mistakes: Sequence[str]) -> None:
    counts = {"tests": str(len(results)), "failures": str(sum(bool(one.differences) for one in results))}
    suite = ET.Element("testsuite", {"name": "agent test", **counts, "errors": str(len(mistakes))})
    for one in results:
        case = ET.SubElement(suite, "testcase", {"classname": one.file, "name": one.name})
        if one.differences:
            failure = ET.SubElement(case, "failure", {"message": one.differences[0].partition("\n")[0]})
            failure.text = "\n".join(one.differences)
    for mistake in mistakes:
        case = ET.SubElement(suite, "testcase", {"classname": "agent test", "name": "file"})
        ET.SubElement(case, "error", {"message": mistake})
    try:
        file.write_bytes(ET.tostring(suite, "utf-8", xml_declaration=True))
    except OSError as e:
        raise click.ClickException(f"{file} cannot be written: {e.strerror}") from e

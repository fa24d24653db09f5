"""`agent new`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TextIO

import click

from flafka.agent import scaffold
from flafka.agent.cli.output import json_option, show_json


@click.command()
@click.argument("kind", type=click.Choice((*scaffold.KINDS, "test")))
@click.argument("name")
@click.argument("events", required=False, type=click.File())
@click.option("-c", "--conf", type=click.Path(dir_okay=False, path_type=Path), help="Of a test: the configuration.")
@click.option(
    "--source", help="Of a test: the source that its events come from. May be left out if there is only one."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to make. If unset, one of that name, here.",
)
@json_option
def new(
    kind: str,
    name: str,
    events: TextIO | None,
    conf: Path | None,
    source: str | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Make a directory with an agent, a component or a processor that works, and its test; or a test of a pipeline.

    \b
    agent new agent my-agent          a configuration that runs as it is.
    agent new source my-source        a package: source, test, configuration.
    agent new channel|sink|interceptor NAME
                                      the same for these.
    agent new processor my-processor  a PySpark function with its test.
    agent new test NAME -c agent.conf [EVENTS]
                                      NAME.test.toml, for `agent test`.

    EVENTS of a test are a file, or - for standard input: lines, or what `agent tap --json` prints. What they become
    now is what the test expects.
    """
    if kind == "test":
        _new_test(name, events, conf, source, as_json)
        return
    if events is not None or conf is not None or source is not None:
        raise click.UsageError("EVENTS, -c and --source are for a test")
    directory = directory or Path(name)
    made = scaffold.files(kind, name, directory)
    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} is there already, and is not empty")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if kind == "agent":
            for one in ("in", "out"):
                (directory / one).mkdir(exist_ok=True)
        for file, text in made.items():
            (directory / file).write_text(text, "utf-8")
    except OSError as e:
        raise click.ClickException(f"{e.filename} cannot be made: {e.strerror}") from e
    if as_json:
        show_json({"directory": str(directory), "files": sorted(made)})
        return
    click.echo(f"{directory}: {', '.join(sorted(made))}. Next:")
    there = shlex.quote(str(directory))
    if kind in scaffold.COMPONENTS:
        click.echo(f"  pip install -e {there} pytest")
    elif kind != "agent":
        click.echo("  pip install pytest")
    if kind != "agent":
        click.echo(f"  python -m pytest {there}")
    click.echo(f"  agent check -c {there}/agent.conf")
    if kind == "agent":
        click.echo(f"  agent test {there}/agent.test.toml")
        click.echo(f"  agent start -c {there}/agent.conf")


def _new_test(name: str, events: TextIO | None, conf: Path | None, source: str | None, as_json: bool) -> None:
    from flafka.agent.cli.configured import Chosen, load_or_exit
    from flafka.agent.pipelinetests import SUFFIX, events_of_lines, written
    from flafka.plugins import Event

    if conf is None:
        raise click.UsageError("of which configuration? Name it with -c FILE")
    if not scaffold.NAME.fullmatch(name):
        raise click.ClickException(f"{name!r} is no name for a test: write lower-case letters, digits and -")
    spec = load_or_exit(Chosen(conf, None, "normal", {}))
    file = conf.parent / f"{name}{SUFFIX}"
    if file.exists():
        raise click.ClickException(f"{file} is there already")
    found = events_of_lines(events.read().splitlines()) if events is not None else [Event(b"hello")]
    if not found:
        raise click.ClickException("there are no events to make a test of")
    text = written(spec, name, source, found, conf.name)
    try:
        file.write_text(text, "utf-8")
    except OSError as e:
        raise click.ClickException(f"{file} cannot be written: {e.strerror}") from e
    if as_json:
        show_json({"directory": str(conf.parent), "files": [file.name]})
    else:
        click.echo(f"{file}: read what it expects, then run: agent test {shlex.quote(str(file))}")

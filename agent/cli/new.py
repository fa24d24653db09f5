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
@click.option("-c", "--conf", type=click.Path(dir_okay=False, path_type=Path), help="Of a test: configuration file.")
@click.option("--source", help="Of a test: the source of its events. Optional if there is only one source.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to create. If unset, NAME.",
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
    """Create a working agent, component or processor, with its test, in a directory; or a test of a pipeline.

    \b
    agent new agent my-agent          a configuration.
    agent new source my-source        a package: source, test, configuration.
    agent new channel my-channel      likewise for channel, sink, interceptor.
    agent new processor my-processor  a PySpark function with its test.
    agent new test NAME -c agent.conf [EVENTS]
                                      NAME.test.toml, for `agent test`.

    EVENTS of a test are a file, or - for standard input: lines, or output of `agent tap --json`. The test expects the
    present outputs for these events.
    """
    if kind == "test":
        _new_test(name, events, conf, source, as_json)
        return
    if events is not None or conf is not None or source is not None:
        raise click.UsageError("EVENTS, -c and --source are for a test")
    directory = directory or Path(name)
    files = scaffold.render_files(kind, name, directory)
    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} exists and is not empty: choose another --directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if kind == "agent":
            for subdirectory in ("in", "out"):
                (directory / subdirectory).mkdir(exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(text, "utf-8")
    except OSError as e:
        raise click.ClickException(f"{e.filename} cannot be created: {e.strerror}") from e
    if as_json:
        show_json({"directory": str(directory), "files": sorted(files)})
        return
    click.echo(f"{directory}: {', '.join(sorted(files))}. Next:")
    path = shlex.quote(str(directory))
    if kind in scaffold.COMPONENTS:
        click.echo(f"  pip install -e {path} pytest")
    elif kind != "agent":
        click.echo("  pip install pytest")
    if kind != "agent":
        click.echo(f"  python -m pytest {path}")
    click.echo(f"  agent check -c {path}/agent.conf")
    if kind == "agent":
        click.echo(f"  agent test {path}/agent.test.toml")
        click.echo(f"  agent start -c {path}/agent.conf")


def _new_test(name: str, events: TextIO | None, conf: Path | None, source: str | None, as_json: bool) -> None:
    """Write a test that expects the present outputs for these events, and print its path. Raises ClickException."""
    from flafka.agent.cli.configuration import ChosenConfiguration, load_or_exit
    from flafka.agent.pipelinetests import SUFFIX, generate_test, parse_events
    from flafka.plugins import Event

    if conf is None:
        raise click.UsageError("a test needs a configuration: name it with -c FILE")
    if not scaffold.NAME.fullmatch(name):
        raise click.ClickException(f"{name!r} is not a valid name of a test: use lower-case letters, digits and -")
    spec = load_or_exit(ChosenConfiguration(conf, None, "normal", {}))
    file = conf.parent / f"{name}{SUFFIX}"
    if file.exists():
        raise click.ClickException(f"{file} exists: choose another NAME")
    sample = parse_events(events.read().splitlines()) if events is not None else [Event(b"hello")]
    if not sample:
        raise click.ClickException("EVENTS is empty: a test needs at least one event")
    text = generate_test(spec, name, source, sample, conf.name)
    try:
        file.write_text(text, "utf-8")
    except OSError as e:
        raise click.ClickException(f"{file} cannot be written: {e.strerror}") from e
    if as_json:
        show_json({"directory": str(conf.parent), "files": [file.name]})
    else:
        click.echo(f"{file}: review its expectations, then run: agent test {shlex.quote(str(file))}")

"""`agent new`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from agent import scaffold
from agent.cli.output import json_option


@click.command()
@click.argument("kind", type=click.Choice(scaffold.KINDS))
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to make. If unset, one of that name, here.",
)
@json_option
def new(kind: str, name: str, directory: Path | None, as_json: bool) -> None:
    """Make a directory with an agent, a component or a processor that works, and its test.

    \b
    agent new agent my-agent             a configuration that runs as it is
    agent new source my-source           an installable package: source, test, configuration
    agent new sink|interceptor NAME      the same for these
    agent new processor my-processor     a PySpark function with its test
    """
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
        click.echo(json.dumps({"directory": str(directory), "files": sorted(made)}, indent=2))
        return
    click.echo(f"{directory}: {', '.join(sorted(made))}. Next:")
    there = shlex.quote(str(directory))
    if kind in scaffold.COMPONENTS:
        click.echo(f"  pip install -e {there}")
    if kind != "agent":
        click.echo(f"  python -m pytest {there}")
    click.echo(f"  agent check -c {there}/agent.conf")

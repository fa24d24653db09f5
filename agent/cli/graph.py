"""`agent graph`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from flafka.agent import graph as drawing
from flafka.agent.cli.configured import Chosen, configuration_options, load_or_exit
from flafka.agent.cli.output import json_option


@click.command()
@configuration_options
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    type=click.Choice(["text", "mermaid", "svg", "json"]),
    help="What to print.",
)
@json_option
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write it to.")
def graph(chosen: Chosen, form: str, as_json: bool, output: Path | None) -> None:
    """Draw a configuration: the ways that events take from sources to sinks. Starts nothing."""
    drawn = drawing.graph_of(load_or_exit(chosen))
    if as_json or form == "json":
        text = json.dumps(asdict(drawn), indent=2)
    elif form == "text":
        text = "\n".join(drawing.ways(drawn))
    else:
        text = {"mermaid": drawing.mermaid, "svg": drawing.svg}[form](drawn)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(f"{text}\n", "utf-8")
    except OSError as e:
        raise click.ClickException(f"{output} cannot be written: {e.strerror}") from e

"""`agent graph`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_or_exit
from flafka.agent.cli.output import json_option
from flafka.agent.graph import graph_of, render_mermaid, render_svg, text_lines


@click.command()
@configuration_options
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    type=click.Choice(["text", "mermaid", "svg", "json"]),
    help="Output format.",
)
@json_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Output file. If unset, standard output."
)
def graph(chosen: ChosenConfiguration, form: str, as_json: bool, output: Path | None) -> None:
    """Draw a configuration: the flow of events from sources to sinks. Starts nothing."""
    agent_graph = graph_of(load_or_exit(chosen))
    if as_json or form == "json":
        text = json.dumps(asdict(agent_graph), indent=2)
    elif form == "text":
        text = "\n".join(text_lines(agent_graph))
    else:
        text = {"mermaid": render_mermaid, "svg": render_svg}[form](agent_graph)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(f"{text}\n", "utf-8")
    except OSError as e:
        raise click.ClickException(f"{output} cannot be written: {e.strerror}") from e

"""`agent new`."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from flafka.agent import scaffold
from flafka.agent.cli.output import json_option, show_json

if TYPE_CHECKING:
    from flafka.agent.pipelinetemplate import Pipeline
    from flafka.plugins import Components


AGENT, TEST = "agent", "test"


@click.command()
@click.argument("kind", type=click.Choice((AGENT, *scaffold.KINDS, TEST)))
@click.argument("name")
@click.argument("events", required=False, type=click.File())
@click.option("-c", "--conf", type=click.Path(dir_okay=False, path_type=Path), help="Of a test: configuration file.")
@click.option(
    "--source",
    help="Of an agent: type of the source, such as syslogtcp. Of a test: the source of its events; optional if there "
    "is only one source.",
)
@click.option("--channel", metavar="TYPE", help="Of an agent: type of the channel: file, kafka, memory …")
@click.option("--sink", metavar="TYPE", help="Of an agent: type of the sink, such as hdfs.")
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
    channel: str | None,
    sink: str | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Create a working agent, component or processor, with its test, in a directory; or a test of a pipeline.

    \b
    agent new agent my-agent          a configuration; asks on a terminal.
    agent new agent my-agent --source syslogtcp --channel kafka --sink hdfs
                                      the same without questions.
    agent new source my-source        a package: source, test, configuration.
    agent new channel my-channel      likewise for channel, sink, interceptor.
    agent new processor my-processor  a PySpark function with its test.
    agent new test NAME -c agent.conf [EVENTS]
                                      NAME.test.toml, for `agent test`.

    EVENTS of a test are a file, or - for standard input: lines, or output of `agent tap --json`. The test expects the
    present outputs for these events.
    """
    chosen = {"source": source, "channel": channel, "sink": sink}
    if kind == TEST:
        if channel is not None or sink is not None:
            raise click.UsageError("--channel and --sink are for an agent")
        _new_test(name, events, conf, source, as_json)
        return
    if events is not None or conf is not None:
        raise click.UsageError("EVENTS and -c are for a test")
    if kind != AGENT and any(chosen.values()):
        raise click.UsageError("--source, --channel and --sink are for an agent")
    directory = directory or Path(name)
    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} exists and is not empty: choose another --directory")
    if kind == AGENT:
        files = _agent_files(name, directory, chosen, ask=not as_json and sys.stdin.isatty())
    else:
        files = scaffold.render_files(kind, name, directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for subdirectory in ("in", "out") if kind == AGENT else ():
            if f"= {directory.absolute()}/{subdirectory}" in files["agent.conf"]:
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
    elif kind != AGENT:
        click.echo("  pip install pytest")
    if kind != AGENT:
        click.echo(f"  python -m pytest {path}")
    click.echo(f"  agent check -c {path}/agent.conf")
    if kind == AGENT:
        click.echo(f"  agent test {path}/agent.test.toml")
        click.echo(f"  agent start -c {path}/agent.conf")


def _agent_files(name: str, directory: Path, chosen: Mapping[str, str | None], *, ask: bool) -> dict[str, str]:
    """Return file name → content for a new agent. With `ask`, and if no type is chosen, ask on the terminal.

    Raises FlafkaError for a type that no template knows.
    """
    from flafka.agent.pipelinetemplate import DEFAULTS, Pipeline, known_type, render, render_test
    from flafka.plugins import Components

    components = Components()
    ask = ask and not any(chosen.values())
    types = _ask_types(components) if ask else chosen
    pipeline = Pipeline(**{kind: known_type(components, kind, types[kind] or DEFAULTS[kind]) for kind in DEFAULTS})
    answers = _ask_values(components, pipeline, name, directory) if ask else {}
    text = render(components, pipeline, name, directory, answers)
    return {"agent.conf": text, "agent.test.toml": render_test(pipeline)}


QUESTIONS = {"source": "What comes in?", "channel": "Where do events wait?", "sink": "Where do they go?"}


def _ask_types(components: Components) -> dict[str, str]:
    """Ask for the type of each component, and return them by kind."""
    from flafka.agent.pipelinetemplate import DEFAULTS, SETTINGS, describe_type

    types = {}
    for kind, question in QUESTIONS.items():
        click.secho(question, bold=True)
        width = max(map(len, SETTINGS[kind]))
        for type_name in SETTINGS[kind]:
            clause = textwrap.shorten(describe_type(components, kind, type_name), 76 - width, placeholder=" …")
            click.echo(f"  {type_name.ljust(width)}  {clause}")
        choice = click.Choice([*SETTINGS[kind]], case_sensitive=False)
        types[kind] = click.prompt(kind, default=DEFAULTS[kind], type=choice, show_choices=False)
    return types


def _ask_values(components: Components, pipeline: Pipeline, name: str, directory: Path) -> dict[tuple[str, str], str]:
    """Ask for the values that depend on the host, and return them by kind and option."""
    from flafka.agent.pipelinetemplate import describe_setting, filled

    answers = {}
    for kind, type_name in pipeline.parts():
        for setting in pipeline.settings(kind):
            if setting.asked:
                click.echo(f"{describe_setting(components, kind, type_name, setting.option)}.")
                default = filled(setting.value, name, directory)
                answers[kind, setting.option] = click.prompt(f"{kind} {type_name}: {setting.option}", default=default)
    return answers


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

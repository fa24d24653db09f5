"""`agent migrate`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click

from flafka.agent.cli.configuration import print_diagnostics, system_properties
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector
from flafka.agent.config.load import load_partially
from flafka.agent.config.migration import MigratedLine, Migration, Verdict
from flafka.agent.config.migration import migrate as migrate_file
from flafka.agent.flumechannel.importing import import_events
from flafka.plugins import Components, FlafkaError

HEADINGS: dict[Verdict, tuple[str, str]] = {
    "needs porting": ("Needs porting", "red"),
    "differs": ("Differs from Flume", "yellow"),
    "runs": ("Runs", "green"),
}
"""Verdict → heading of its lines, and colour."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-n", "--name", metavar="AGENT", help="Name of the agent; required only if the file has several agents."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file. If unset, NAME-flafka.conf beside NAME.conf.",
)
@click.option(
    "--import-channel",
    "channel",
    metavar="CHANNEL",
    help="Instead, import the undelivered events of Flume's file channel into this channel of FILE's agent.",
)
@click.option("--force", is_flag=True, help="Replace an existing output file.")
@click.option("--all", "everything", is_flag=True, help="Show every line with all its notes.")
@click.option(
    "-c",
    "--conf",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Flume's conf directory, with Hadoop's files.",
)
@click.option(
    "-D", "define", metavar="KEY=VALUE", multiple=True, help="System property, for ${sys:KEY} in the configuration."
)
@json_option
def migrate(
    file: Path,
    name: str | None,
    output: Path | None,
    channel: str | None,
    force: bool,
    everything: bool,
    conf: str | None,
    define: tuple[str, ...],
    as_json: bool,
) -> None:
    """Convert a Flume configuration into one that runs, and show a verdict on each line.

    A line runs as in Flume, differs, or needs porting. Lines that differ or need porting are shown with their
    replacements; of all other lines only the number and the warnings. No server is contacted. FILE is not changed.

    With --import-channel, a channel `file` takes over the undelivered events of Flume's file channel in the same
    directories, exactly once. Stop Flume and the agent before. After an interrupt, run the command again. Flume's
    files are moved to directories flume-… .

    Exit code: 0 if no line needs porting and each event could be read, else 2.
    """
    if conf is not None:
        os.environ["FLUME_CONF_DIR"] = str(Path(conf).absolute())
    system = system_properties(define)
    components = Components()
    if channel is not None:
        _import(file, name, channel, components, system, as_json=as_json)
    migration = migrate_file(file, name, components=components, system=system)
    target = output or _default_output(file, migration)
    refusal = _write(file, target, migration, force=force)
    if as_json:
        show_json(_as_json(file, None if refusal else target, migration))
    elif migration.agent is None:
        print_diagnostics((reason for line in migration.lines for reason in line.reasons()), sys.stdout)
    else:
        _show(file, migration, everything=everything)
    if refusal:
        raise FlafkaError(refusal)
    if migration.content is not None and not as_json:
        _show_next_steps(file, target, migration)
    sys.exit(0 if migration.is_complete else 2)


def _import(
    file: Path, name: str | None, channel: str, components: Components, system: Mapping[str, str], *, as_json: bool
) -> NoReturn:
    """Import the undelivered events of Flume's channel, print the result, and exit.

    The exit code is 2 if events are lost, else 0. Raises FlafkaError.
    """
    collector = DiagnosticCollector("normal")
    spec = load_partially(file, name, collector, components=components, system=system)
    channels = [one for one in spec.channels if one.name == channel] if spec is not None else []
    if not channels:
        print_diagnostics((d for d in collector.diagnostics() if d.severity == "error"), sys.stderr)
        raise FlafkaError(f"{file} has no valid channel {channel}")
    try:
        result = import_events(channels[0].make())
    except OSError as e:
        raise FlafkaError(f"{e.filename or file}: {e.strerror}") from e
    if as_json:
        show_json({"channel": channel, **asdict(result)})
    else:
        for damage in result.damages:
            click.echo(damage, err=True)
        if not result.moved_to:
            click.echo(f"channel {channel}: there are no files of Flume to import")
        else:
            click.echo(
                f"channel {channel}: imported {result.events} undelivered events in this run; Flume's files are in "
                f"directories {result.moved_to} of checkpointDir and dataDirs: delete these if Flume is not needed"
            )
        if result.lost:
            click.echo(f"{result.lost} events are lost: they could not be read", err=True)
    sys.exit(2 if result.lost else 0)


def _default_output(file: Path, migration: Migration) -> Path:
    """Return the path for the new configuration beside the old one, with the agent's name if the file has several."""
    agents, agent = migration.agents, migration.agent
    suffix = "-" + re.sub(r"[^\w.-]", "_", agent) if agent and len(agents) > 1 else ""
    return file.with_name(f"{file.stem}{suffix}-flafka{file.suffix}")


def _write(file: Path, target: Path, migration: Migration, *, force: bool) -> str:
    """Write the new configuration with the file mode of the old one, atomically, and return an empty text.

    Return the error if that is not possible, or if `target` exists and `force` is False. Writes nothing without
    content, or if the target has it already.
    """
    if migration.content is None:
        return ""
    try:
        if target.exists() and not target.is_file():
            return f"{target} is not a file: name a file with -o"
        if target.exists():
            if target.samefile(file):
                return f"{target} is the file to migrate: name another file with -o"
            if target.read_bytes() == migration.content:
                return ""
            if not force:
                return f"{target} exists: --force replaces it, -o names another file"
        new = target.with_name(f".{target.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(migration.content)
        shutil.copymode(file, new)
        new.replace(target)
    except OSError as e:
        return f"{target} cannot be written: {e.strerror}; name another file with -o"
    return ""


def _show(file: Path, migration: Migration, *, everything: bool) -> None:
    """Print the lines by verdict, the notes, and a count. `everything` includes lines that run and all notes."""
    for verdict, (heading, colour) in HEADINGS.items():
        lines = migration.lines_with(verdict)
        if not lines or (verdict == "runs" and not everything):
            continue
        click.secho(f"{heading}:", fg=colour, bold=True)
        if verdict == "runs":
            for line in lines:
                _print_item(f"{_line_numbers([line])}{line.name}")
        else:
            _show_diagnostics((line, reason) for line in lines for reason in line.reasons())
    notes = [(line, note) for line in migration.lines for note in line.notes()]
    shown = notes if everything else [(line, note) for line, note in notes if note.severity == "warning"]
    if shown:
        click.secho("Notes:", fg="blue", bold=True)
        _show_diagnostics(shown)
    click.secho(f"{file}, agent {migration.agent}: {_verdict_counts(migration)}", bold=True)
    if number := len({note.message for _, note in notes} - {note.message for _, note in shown}):
        click.echo(f"--all shows every line, and {number} more note{'s' * (number > 1)}.")


def _show_diagnostics(pairs: Iterable[tuple[MigratedLine, Diagnostic]]) -> None:
    """Print each message once, with the numbers of all its lines, components and replacements."""
    by_message: dict[str, list[tuple[MigratedLine, Diagnostic]]] = {}
    for line, diagnostic in pairs:
        by_message.setdefault(diagnostic.message, []).append((line, diagnostic))
    for message, reasons in by_message.items():
        components = ", ".join(dict.fromkeys(reason.component for _, reason in reasons if reason.component))
        numbers = _line_numbers(line for line, _ in reasons)
        _print_item(f"{numbers}{components}{': ' * bool(components)}{message}")
        for line, reason in reasons:
            if reason.replacement is not None and line.replacement is not None:
                _print_item(f"written: {'; '.join(line.replacement) or 'nothing, the line is left out'}", "    ")


def _line_numbers(lines: Iterable[MigratedLine]) -> str:
    """Return `line 3: ` or `lines 3, 5: `; empty for the whole file."""
    numbers = list(dict.fromkeys(line.number for line in lines))
    if numbers == [0]:
        return ""
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: "


def _print_item(text: str, indent: str = "  ") -> None:
    """Print one line in a pipe; on a terminal, wrap the text to its width."""
    if _on_a_terminal():
        width = max(40, shutil.get_terminal_size().columns)
        text = textwrap.fill(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        click.echo(text)
    else:
        click.echo(indent + text)


def _on_a_terminal() -> bool:
    return sys.stdout.isatty()


def _verdict_counts(migration: Migration) -> str:
    """Return a text such as `2 lines differ, 7 lines run`."""
    counts: dict[Verdict, int] = {verdict: len(migration.lines_with(verdict)) for verdict in HEADINGS}
    plural = {"needs porting": "need porting", "differs": "differ", "runs": "run"}
    parts = [f"{n} lines {plural[verdict]}" if n > 1 else f"1 line {verdict}" for verdict, n in counts.items() if n]
    return ", ".join(parts) or "no lines"


def _show_next_steps(file: Path, target: Path, migration: Migration) -> None:
    """Print the name of the new file, the number of changes, and the next command."""
    changed = sum(line.replacement is not None for line in migration.lines)
    changes = f"{changed} line{'s' * (changed != 1)} changed" if changed else "no line changed"
    if marked := len(migration.lines_with("needs porting")):
        changes += f", {marked} marked"
    click.echo(f"written: {target}, {changes}; {file} is unchanged")
    if migration.is_complete:
        agent = migration.agent
        name = f" -n {shlex.quote(agent)}" if agent and len(migration.agents) > 1 else ""
        click.echo(f"start it with: agent start{name} -c {shlex.quote(str(target))}")
    elif lists := _lists_to_port(migration):
        click.echo(
            "the agent does not start while a line needs porting: change it as its comment says, or remove its "
            "component from "
            f"{', '.join(lists)}"
        )


def _lists_to_port(migration: Migration) -> list[str]:
    """Return the lists with the components that need porting in parentheses: `a1.sinks (k1 k2)`."""
    names: dict[str, dict[str, None]] = {}
    for line in migration.lines_with("needs porting"):
        for reason in line.reasons():
            match reason.component.split("."):
                case [agent, "sources" | "channels" | "sinks" | "sinkgroups" as kind, name, *_]:
                    names.setdefault(f"{agent}.{kind}", {})[name] = None
    return [f"{path} ({' '.join(components)})" for path, components in names.items()]


def _as_json(file: Path, target: Path | None, migration: Migration) -> dict[str, object]:
    """Return the migration as JSON values. `target` is None if nothing was written."""
    return {
        "file": str(file),
        "agent": migration.agent,
        "ok": migration.is_complete,
        "output": str(target) if target and migration.content is not None else None,
        "counts": {verdict: len(migration.lines_with(verdict)) for verdict in HEADINGS},
        "lines": [
            {
                "line": line.number,
                "property": line.name,
                "verdict": line.verdict,
                "messages": [reason.message for reason in line.reasons()],
                "notes": [note.message for note in line.notes()],
                "written": None if line.replacement is None else list(line.replacement),
            }
            for line in migration.lines
        ],
    }

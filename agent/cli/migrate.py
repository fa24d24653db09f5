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

from flafka.agent.cli.configured import show, system_properties
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector
from flafka.agent.config.load import load_part
from flafka.agent.config.migration import Line, Migration, Verdict
from flafka.agent.config.migration import migrate as migrated
from flafka.agent.flumechannel.importing import import_events
from flafka.plugins import Components, FlafkaError

HEADINGS: dict[Verdict, tuple[str, str]] = {
    "needs porting": ("Needs porting", "red"),
    "differs": ("Differs from Flume", "yellow"),
    "runs": ("Runs", "green"),
}
"""Heading of the lines of each verdict, and its colour."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-n", "--name", metavar="AGENT", help="Name of the agent; needed only if the file has several.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; if unset, NAME-flafka.conf beside NAME.conf.",
)
@click.option(
    "--import-channel",
    "channel",
    metavar="CHANNEL",
    help="Instead, move what Flume has not delivered into this channel of FILE's agent, which has stopped.",
)
@click.option("--force", is_flag=True, help="Replace the file to write if there is one.")
@click.option("--all", "everything", is_flag=True, help="Show every line and every note on it.")
@click.option("-c", "--conf", metavar="DIR", help="Flume's conf directory, where Hadoop's files are looked for.")
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
    """Say what becomes of each line of a Flume configuration, and write the configuration that runs.

    A line runs as in Flume, differs, or needs porting. Lines that differ and lines that need porting are shown, with
    what to write instead, and warnings on any line; of the others, their number. No server is asked. FILE stays as
    it is.

    With --import-channel, a channel `file` gets what Flume's file channel has left in the same directories: each
    event that was put and not taken, once. Flume and the agent have to be stopped. Killed, the command is run again.
    Flume's files are in directories flume-… there afterwards.

    Exit code: 0 if nothing needs porting, and each event could be read, else 2.
    """
    if conf is not None:
        os.environ["FLUME_CONF_DIR"] = str(Path(conf).absolute())
    system = system_properties(define)
    components = Components()
    if channel is not None:
        _import(file, name, channel, components, system, as_json=as_json)
    found = migrated(file, name, components=components, system=system)
    target = output or _beside(file, found)
    refused = _write(file, target, found, force=force)
    if as_json:
        show_json(_as_json(file, None if refused else target, found))
    elif found.agent is None:
        show((one for line in found.lines for one in line.reasons()), sys.stdout)
    else:
        _show(file, found, everything=everything)
    if refused:
        raise FlafkaError(refused)
    if found.content is not None and not as_json:
        _say_what_is_written(file, target, found)
    sys.exit(0 if found.ok else 2)


def _import(
    file: Path, name: str | None, channel: str, components: Components, system: Mapping[str, str], *, as_json: bool
) -> NoReturn:
    report = DiagnosticCollector("normal")
    spec = load_part(file, name, report, components=components, system=system)
    chosen = next((one for one in spec.channels if one.name == channel), None) if spec is not None else None
    if chosen is None:
        show((one for one in report.diagnostics() if one.severity == "error"), sys.stderr)
        raise FlafkaError(f"{file} has no channel {channel} that can be read")
    try:
        done = import_events(chosen.make())
    except OSError as e:
        raise FlafkaError(f"{e.filename or file}: {e.strerror}") from e
    if as_json:
        show_json({"channel": channel, **asdict(done)})
    else:
        for damage in done.damages:
            click.echo(damage, err=True)
        if not done.moved_to:
            click.echo(f"channel {channel}: Flume has left nothing to import")
        else:
            click.echo(
                f"channel {channel}: imported what Flume had not delivered, {done.events} events now; its files are "
                f"in directories {done.moved_to} of checkpointDir and dataDirs: delete them when nobody goes back"
            )
        if done.lost:
            click.echo(f"events that could not be read, and are lost: {done.lost}", err=True)
    sys.exit(2 if done.lost else 0)


def _beside(file: Path, found: Migration) -> Path:
    """Path of the new configuration; each agent of a file has its own."""
    own = "-" + re.sub(r"[^\w.-]", "_", found.agent) if found.agent and len(found.agents) > 1 else ""
    return file.with_name(f"{file.stem}{own}-flafka{file.suffix}")


def _write(file: Path, target: Path, found: Migration, *, force: bool) -> str:
    """Write the new configuration with the mode of the old one; return why it is not written, or an empty text."""
    if found.content is None:
        return ""
    try:
        if target.exists() and not target.is_file():
            return f"{target} is no file: name one with -o"
        if target.exists():
            if target.samefile(file):
                return f"{target} is the file to migrate, which stays as it is: name another one with -o"
            if target.read_bytes() == found.content:
                return ""
            if not force:
                return f"{target} is there already: --force replaces it, -o names another file"
        new = target.with_name(f".{target.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(found.content)
        shutil.copymode(file, new)
        new.replace(target)
    except OSError as e:
        return f"{target} cannot be written: {e.strerror}; name another file with -o"
    return ""


def _show(file: Path, found: Migration, *, everything: bool) -> None:
    for verdict, (heading, colour) in HEADINGS.items():
        lines = found.of(verdict)
        if not lines or (verdict == "runs" and not everything):
            continue
        click.secho(f"{heading}:", fg=colour, bold=True)
        if verdict == "runs":
            for line in lines:
                _item(f"{_at([line])}{line.name}")
        else:
            _show_diagnostics((line, reason) for line in lines for reason in line.reasons())
    notes = [(line, note) for line in found.lines for note in line.notes()]
    shown = notes if everything else [(line, note) for line, note in notes if note.severity == "warning"]
    if shown:
        click.secho("Notes:", fg="blue", bold=True)
        _show_diagnostics(shown)
    click.secho(f"{file}, agent {found.agent}: {_counted(found)}", bold=True)
    if number := len({note.message for _, note in notes} - {note.message for _, note in shown}):
        click.echo(f"--all shows every line, and {number} more note{'s' * (number > 1)}.")


def _show_diagnostics(found: Iterable[tuple[Line, Diagnostic]]) -> None:
    """Show each message once, with all its lines."""
    concerned: dict[str, list[tuple[Line, Diagnostic]]] = {}
    for line, one in found:
        concerned.setdefault(one.message, []).append((line, one))
    for message, ones in concerned.items():
        owners = ", ".join(dict.fromkeys(reason.component for _, reason in ones if reason.component))
        _item(f"{_at(line for line, _ in ones)}{owners}{': ' * bool(owners)}{message}")
        for line, reason in ones:
            if reason.instead is not None and line.written is not None:
                _item(f"written: {'; '.join(line.written) or 'nothing, the line is left out'}", "    ")


def _at(lines: Iterable[Line]) -> str:
    numbers = list(dict.fromkeys(line.number for line in lines))
    if numbers == [0]:
        return ""
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: "


def _item(text: str, indent: str = "  ") -> None:
    """A line in a pipe; on a terminal as many as its width asks for."""
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


def _counted(found: Migration) -> str:
    numbers: dict[Verdict, int] = {one: len(found.of(one)) for one in HEADINGS}
    several = {"needs porting": "need porting", "differs": "differ", "runs": "run"}
    parts = [f"{n} lines {several[one]}" if n > 1 else f"1 line {one}" for one, n in numbers.items() if n]
    return ", ".join(parts) or "no lines"


def _say_what_is_written(file: Path, target: Path, found: Migration) -> None:
    changed = sum(line.written is not None for line in found.lines)
    what = f"{changed} line{'s' * (changed != 1)} changed" if changed else "no line changed"
    if marked := len(found.of("needs porting")):
        what += f", {marked} marked"
    click.echo(f"written: {target}, {what}; {file} stays as it is")
    if found.ok:
        name = f" -n {shlex.quote(found.agent)}" if found.agent and len(found.agents) > 1 else ""
        click.echo(f"start it with: agent start{name} -c {shlex.quote(str(target))}")
    elif lists := _lists_to_port(found):
        click.echo(
            "nothing starts while a line needs porting: change it as its comment says, or take its component out of "
            f"{', '.join(lists)}"
        )


def _lists_to_port(found: Migration) -> list[str]:
    """Return the lists of components with the names that need porting: `a1.sinks (k1 k2)`."""
    names: dict[str, dict[str, None]] = {}
    for line in found.of("needs porting"):
        for reason in line.reasons():
            match reason.component.split("."):
                case [agent, "sources" | "channels" | "sinks" | "sinkgroups" as kind, name, *_]:
                    names.setdefault(f"{agent}.{kind}", {})[name] = None
    return [f"{path} ({' '.join(those)})" for path, those in names.items()]


def _as_json(file: Path, target: Path | None, found: Migration) -> dict[str, object]:
    return {
        "file": str(file),
        "agent": found.agent,
        "ok": found.ok,
        "output": str(target) if target and found.content is not None else None,
        "counts": {verdict: len(found.of(verdict)) for verdict in HEADINGS},
        "lines": [
            {
                "line": line.number,
                "property": line.name,
                "verdict": line.verdict,
                "messages": [one.message for one in line.reasons()],
                "notes": [one.message for one in line.notes()],
                "written": None if line.written is None else list(line.written),
            }
            for line in found.lines
        ],
    }

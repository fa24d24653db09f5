"""Options and errors of the commands that take a configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import IO, Any

import click

from flafka.agent.config import Diagnostic, Mode, load
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components


@dataclass(frozen=True)
class Chosen:
    """Configuration that a command was given, and how strictly to read it."""

    file: Path
    name: str | None
    mode: Mode
    system: dict[str, str]
    """`-D` properties."""
    more: tuple[Path, ...] = ()
    """Files read after it; what they set wins."""
    as_flume: bool = False
    """True if it was named in Flume's spelling."""

    def load(self, *, notes: bool = False) -> tuple[AgentSpec | None, list[Diagnostic]]:
        """Read and check it; with `notes`, what is only to be known is among what is found."""
        components = Components()
        return load(
            self.file,
            self.name,
            more=self.more,
            components=components,
            mode=self.mode,
            system=self.system,
            notes=notes,
        )


def configuration_options(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """Add the options that name a configuration, in Flume's spelling too; the command gets a `chosen: Chosen`.

    A command that also works without one (not `required`) gets None then.
    """

    @click.option("-c", "--conf", metavar="FILE", help="Configuration file, or Flume's conf directory.")
    @click.option(
        "-f",
        "--conf-file",
        metavar="FILE",
        multiple=True,
        help="Configuration file, as with flume-ng. Of several files, a later one overrides an earlier one.",
    )
    @click.option(
        "-n", "--name", metavar="AGENT", help="Name of the agent; needed only if the configuration has several."
    )
    @click.option(
        "-D",
        "define",
        metavar="KEY=VALUE",
        multiple=True,
        help="System property, for ${sys:KEY} in the configuration.",
    )
    @click.option("--strict", is_flag=True, help="Treat warnings as errors.")
    @wraps(command)
    def wrapped(
        *args: Any,
        conf: str | None,
        conf_file: tuple[str, ...],
        name: str | None,
        define: tuple[str, ...],
        strict: bool,
        **more: Any,
    ) -> Any:
        if not (required or conf or conf_file):
            return command(*args, chosen=None, **more)
        mode: Mode = "strict" if strict else "normal"
        file, *later = _files(conf, conf_file)
        system = system_properties(define)
        return command(*args, chosen=Chosen(file, name, mode, system, tuple(later), bool(conf_file)), **more)

    return wrapped


def load_or_exit(chosen: Chosen, *, warnings: bool = False) -> AgentSpec:
    """Return the agent of a configuration; with errors, show these on standard error and end with exit code 2.

    Warnings are shown with `warnings` alone: `check`, `start` and `reload` show them, and every other command would
    repeat them.
    A library that is not installed here is an error with `warnings` alone: other commands are about an agent that
    runs already, perhaps elsewhere.
    """
    spec, diagnostics = chosen.load()
    if warnings and any(one.severity == "error" for one in diagnostics):
        spec = None
    if warnings or spec is None:
        show(diagnostics, sys.stderr)
    if spec is None:
        click.echo(counted(diagnostics) + "; nothing was started", err=True)
        sys.exit(2)
    return spec


def load_with_cluster(chosen: Chosen) -> AgentSpec:
    """Return the agent as `load_or_exit` does, for a command that asks the brokers of its Kafka components."""
    from flafka.agent.cli.own_cluster import with_own_cluster

    return with_own_cluster(load_or_exit(chosen), ask=True)


def show(diagnostics: Iterable[Diagnostic], stream: IO[str]) -> None:
    """One line each: in colours on a terminal, plain elsewhere."""
    for diagnostic in diagnostics:
        if not stream.isatty():
            click.echo(str(diagnostic), stream)
            continue
        mark, colour = _MARKS[diagnostic.severity]
        component = click.style(f"{diagnostic.component}: ", fg="cyan") if diagnostic.component else ""
        place = click.style(f"{diagnostic.place}:", bold=True)
        click.echo(f"{click.style(mark, fg=colour)} {place} {component}{diagnostic.message}", stream)


_MARKS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "note": ("·", "blue")}


def counted(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`."""
    found = [diagnostic.severity for diagnostic in diagnostics]
    parts = [(found.count(severity), severity) for severity in ("error", "warning", "note")]
    return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in parts if n or word == "error")


def _files(conf: str | None, conf_files: tuple[str, ...]) -> list[Path]:
    if conf_files:
        if conf is not None and Path(conf).is_file():
            raise click.UsageError(f"both -c {conf} and -f {conf_files[0]} are files; give one of them")
        if conf is not None:  # components look there for Hadoop's files, in this process and those it starts
            os.environ["FLUME_CONF_DIR"] = str(Path(conf).absolute())
        return [Path(file) for file in conf_files]
    if conf is None:
        raise click.UsageError("which configuration? Name it with -c FILE")
    directory = Path(conf)
    if not directory.is_dir():
        return [directory]
    there = sorted(str(file) for file in directory.iterdir() if file.suffix in (".conf", ".properties"))
    hint = f": -f {there[0]}" if there else ""
    raise click.UsageError(f"{conf} is a directory (Flume's conf directory); name the configuration with -f{hint}")


def system_properties(define: Iterable[str]) -> dict[str, str]:
    """Return the properties that options `-D KEY=VALUE` give."""
    pairs = (text.partition("=") for text in define)
    return {key: value for key, _, value in pairs}

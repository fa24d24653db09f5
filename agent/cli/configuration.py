"""Options and diagnostics of the commands that read a configuration."""

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
class ChosenConfiguration:
    """Configuration named on the command line, and the strictness of its checks."""

    file: Path
    name: str | None
    mode: Mode
    system: dict[str, str]
    """System properties of the options `-D`."""
    more: tuple[Path, ...] = ()
    """Further files; a later file overrides an earlier one."""
    as_flume: bool = False
    """True if it was named with `-f`, as for flume-ng."""

    def load(self, *, notes: bool = False) -> tuple[AgentSpec | None, list[Diagnostic]]:
        """Read and check the configuration, and return the agent and the diagnostics. Connects to no server.

        The agent is None after errors of the file; a missing library is no such error. Notes are among the
        diagnostics only with `notes`.
        """
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
    """Return the command with the options that name a configuration; it gets a `chosen: ChosenConfiguration`.

    With `required` False, `chosen` is None without these options.
    """

    @click.option(
        "-c", "--conf", metavar="FILE", type=click.Path(), help="Configuration file, or Flume's conf directory."
    )
    @click.option(
        "-f",
        "--conf-file",
        metavar="FILE",
        type=click.Path(),
        multiple=True,
        help="Configuration file, as with flume-ng. May be repeated; a later file overrides an earlier one.",
    )
    @click.option(
        "-n",
        "--name",
        metavar="AGENT",
        help="Name of the agent; required only if the configuration has several agents.",
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
        return command(
            *args, chosen=ChosenConfiguration(file, name, mode, system, tuple(later), bool(conf_file)), **more
        )

    return wrapped


def load_or_exit(chosen: ChosenConfiguration, *, warnings: bool = False) -> AgentSpec:
    """Return the agent of a configuration; after errors, print them to standard error and exit with code 2.

    With `warnings`, warnings are printed too, and a missing library is an error. Only `check`, `start` and `reload`
    need either: other commands are about an agent that runs already, perhaps on another host.
    """
    spec, diagnostics = chosen.load()
    if warnings and any(diagnostic.severity == "error" for diagnostic in diagnostics):
        spec = None
    if warnings or spec is None:
        print_diagnostics(diagnostics, sys.stderr)
    if spec is None:
        click.echo(count_by_severity(diagnostics) + "; nothing was started", err=True)
        sys.exit(2)
    return spec


def load_with_brokers(chosen: ChosenConfiguration) -> AgentSpec:
    """Return the agent as `load_or_exit` does, with the project's cluster where the configuration names no brokers.

    Raises FlafkaError if that cluster was never started, or another one answers.
    """
    from flafka.agent.cli.default_brokers import with_default_brokers

    return with_default_brokers(load_or_exit(chosen), verify_cluster=True)


def print_diagnostics(diagnostics: Iterable[Diagnostic], stream: IO[str]) -> None:
    """Print one line for each diagnostic to `stream`, coloured on a terminal."""
    for diagnostic in diagnostics:
        if not stream.isatty():
            click.echo(str(diagnostic), stream)
            continue
        mark, colour = _MARKS[diagnostic.severity]
        component = click.style(f"{diagnostic.component}: ", fg="cyan") if diagnostic.component else ""
        place = click.style(f"{diagnostic.place}:", bold=True)
        click.echo(f"{click.style(mark, fg=colour)} {place} {component}{diagnostic.message}", stream)


_MARKS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "note": ("·", "blue")}


def count_by_severity(diagnostics: Iterable[Diagnostic]) -> str:
    """Return a text such as `2 errors, 1 warning`. Errors are named even if there are none."""
    severities = [diagnostic.severity for diagnostic in diagnostics]
    counts = [(severities.count(severity), severity) for severity in ("error", "warning", "note")]
    return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n or word == "error")


def _files(conf: str | None, conf_files: tuple[str, ...]) -> list[Path]:
    """Return the configuration files. Raises UsageError for none, or for options that contradict each other.

    A directory in `conf` beside `conf_files` becomes FLUME_CONF_DIR of this process.
    """
    if conf_files:
        if conf is not None and Path(conf).is_file():
            raise click.UsageError(f"both -c {conf} and -f {conf_files[0]} are files; give one of them")
        if conf is not None:  # components of this process and its child processes read Hadoop's files from there
            os.environ["FLUME_CONF_DIR"] = str(Path(conf).absolute())
        return [Path(file) for file in conf_files]
    if conf is None:
        raise click.UsageError("which configuration? Name it with -c FILE")
    directory = Path(conf)
    if not directory.is_dir():
        return [directory]
    candidates = sorted(str(file) for file in directory.iterdir() if file.suffix in (".conf", ".properties"))
    hint = f": -f {candidates[0]}" if candidates else ""
    raise click.UsageError(f"{conf} is a directory (Flume's conf directory); name the configuration with -f{hint}")


def system_properties(define: Iterable[str]) -> dict[str, str]:
    """Return the properties set by options `-D KEY=VALUE`.

    The last one of a key wins; without `=` the value is empty.
    """
    pairs = (text.partition("=") for text in define)
    return {key: value for key, _, value in pairs}

"""The `agent` command. Subcommands are imported on first use, so that `agent --help` is fast."""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

COMMAND_GROUPS = {
    "Every day": {
        "new": "Create an agent, a component, a processor or a test.",
        "migrate": "Convert a Flume configuration, with a verdict on each line.",
        "check": "Check a configuration; start nothing.",
        "test": "Run sample events through a pipeline and compare its outputs.",
        "start": "Run an agent until SIGTERM or Ctrl-C.",
        "flume-ng": "Accept the command line of Flume's launcher.",
        "reload": "Make a running agent apply its changed configuration.",
        "spark": "Upload Spark's jars to the HDFS of a cluster.",
    },
    "Look into it": {
        "top": "Show a running agent: rates, lag, retries, failures.",
        "dashboard": "Show all agents of a fleet on one page, in a browser.",
        "tap": "Show events as they pass a component of a running agent.",
        "trace": "Show where an event came from and where it was delivered.",
        "audit": "Compare the events put into channels with those taken out.",
        "graph": "Draw the flow of events from sources to sinks.",
        "explain": "Describe components, their guarantees and their options.",
        "size": "Estimate the cores, brokers and disk that a load needs.",
    },
    "Repair": {
        "dlq": "List, show and replay dead letters: undeliverable events.",
        "replay": "Redeliver the events of a time range from a topic to one sink.",
        "group": "List, describe and reset consumer groups; move their commit logs.",
        "topic": "Create, describe and delete Kafka topics; produce and consume.",
    },
    "Develop": {
        "process": "Run a Spark processor on stored or sample events; write nothing.",
        "template": "Print a Python component that replaces a Java class.",
        "demo": "Run a complete pipeline with all its servers on this machine.",
        "cluster": "Run three brokers; elect leaders, move replicas, set quotas.",
        "sandbox": "Run Kafka, HDFS, HBase, Solr, Spark and YARN on this machine.",
        "grammar": "Print a grammar of configurations for editors.",
        "completion": "Print the completion script of a shell.",
        "env": "Show the addresses of the servers of cluster and sandbox.",
    },
}
"""Heading in `agent --help` → command → help text.

A command is the function of its name in the module of its name, with _ for -.
"""
COMMANDS = {name: text for commands in COMMAND_GROUPS.values() for name, text in commands.items()}
"""Command → help text."""


FIRST_STEPS = (
    ("agent new agent mine", "create a configuration that works"),
    ("agent migrate flume.conf", "or convert a configuration of Flume"),
    ("agent check -c mine/agent.conf", "list its errors"),
    ("agent start -c mine/agent.conf", "run it until Ctrl-C"),
    ("agent top -c mine/agent.conf", "show its rates and lag"),
)
"""Command lines for a new user, each with its purpose."""


class Root(click.Group):
    """Root of all commands: imports each on first use, and reports errors in one line."""

    debug = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of `COMMAND_GROUPS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, and import its module; None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # imported objects stay alive: collecting meanwhile costs 5 % of the time of a short command
        try:
            name = cmd_name.replace("-", "_")
            command: click.Command = getattr(importlib.import_module(f"{__name__}.{name}"), name)
        finally:
            gc.freeze()
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and remaining arguments, as click does. A mistyped name ends with a suggestion."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            import difflib

            matches = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(
                f"no command {name!r}" + (f", did you mean {matches[0]!r}?" if matches else "; see agent --help")
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first steps and the commands by heading, without importing the commands."""
        with formatter.section("First steps"):
            formatter.write_dl(FIRST_STEPS, col_max=32)
        width = max(map(len, COMMANDS))
        for heading, commands in COMMAND_GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of the word `incomplete`, without importing commands, which would be slow."""
        commands = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line. An error is printed as one line without a traceback, and the exit code is 1.

        With `--debug` the error is raised.
        """
        with one_line_errors():
            return super().main(*args, **extra)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error of the block as one line without a traceback, and exit with code 1.

    After `--debug` the error is raised.
    """
    try:
        yield
    except Exception as e:
        if Root.debug:
            raise
        click.secho(f"error: {_error_text(e)}", fg="red", err=True)
        sys.exit(1)


_REMEDIES = {
    errno.EMFILE: "this process has reached its limit of open files: raise `ulimit -n`, or LimitNOFILE of its unit",
    errno.ENFILE: "this host has reached its limit of open files: raise the sysctl fs.file-max",
    errno.ENOMEM: "this host has no memory left for this process",
    errno.ENOSPC: "free space on that disk",
}
"""Remedy by errno for errors of the operating system that are no bugs."""


def _error_text(error: Exception) -> str:
    """Return the line for an error: its message, its remedy, or the request to report a bug."""
    errors = sys.modules.get("flafka.plugins.errors")  # if not imported, none of its errors was raised
    if errors is not None and isinstance(error, errors.FlafkaError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}; {_REMEDIES[error.errno]}"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text}\nThis is a bug. Please report it{_issue_tracker()} with the output of `agent --debug` for it."


def _issue_tracker() -> str:
    """Return ` at URL` of the issue tracker; empty if the installed package names none."""
    try:
        links = importlib.metadata.metadata("flafka").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        links = []
    pairs = dict(link.split(", ", 1) for link in links)
    return f" at {pairs['Issues']}" if "Issues" in pairs else ""


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error. Write this option before the command.")
@click.version_option(package_name="flafka", prog_name="agent")
def main(debug: bool) -> None:
    """Flafka: an agent that runs Flume's configuration and stores events in Kafka until they are delivered."""
    Root.debug = debug


if __name__ == "__main__":
    main()

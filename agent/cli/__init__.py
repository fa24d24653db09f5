"""The `agent` command. Subcommands are imported when they are used, so that help comes at once."""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.metadata
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

COMMANDS = {
    "start": "Run an agent until it is told to stop.",
    "reload": "Have a running agent go over to its configuration as it is now.",
    "check": "Check a configuration; start nothing.",
    "top": "Show what a running agent does: rates, lag, retries, what is wrong.",
    "tap": "Show events as they pass a component of a running agent.",
    "trace": "Say where an event came from and where it went, from the stores themselves.",
    "replay": "Send what a channel's topic holds of a span of time to one sink again.",
    "test": "Test pipelines: sample events in, what comes out of each component compared.",
    "graph": "Draw a configuration: the ways that events take from sources to sinks.",
    "explain": "Say what components do and what their options mean.",
    "migrate": "Say what becomes of each line of a Flume configuration, and write the one that runs.",
    "process": "Run a Spark processor on the stored events and show its output; keep nothing.",
    "spark": "Put on a cluster what Spark needs there.",
    "demo": "Show a complete pipeline with all its servers on this machine.",
    "cluster": "Run the project's own Kafka cluster.",
    "sandbox": "Run Kafka, HDFS, HBase, Solr, Spark and YARN on this machine.",
    "env": "Show the addresses of those servers, also for the shell.",
    "topic": "List, create, describe and delete Kafka topics.",
    "group": "Show and reset consumer groups: lag, offsets.",
    "audit": "Compare what went into the channels with what was taken out of them.",
    "size": "Estimate what a load takes: cores, brokers, partitions, disk, files.",
    "new": "Make an agent, a component, a processor or a test to start from: files that work.",
    "template": "Print a component in Python to start from, for a Java class.",
    "dlq": "Show and replay dead letters: events that could not be delivered.",
}
"""Name → what `agent --help` says of it. Each is the command of that name in the module of that name."""


FIRST_STEPS = (
    ("agent new agent mine", "a configuration that works, to start from"),
    ("agent migrate flume.conf", "or: what becomes of one of Flume's"),
    ("agent check -c mine/agent.conf", "all that is wrong with it, at once"),
    ("agent start -c mine/agent.conf", "run it until Ctrl-C"),
    ("agent top -c mine/agent.conf", "what it does; agent tap: its events"),
)
"""What a new user writes, line by line, and what for."""


class Root(click.Group):
    """The root of all commands: imports them when they are used, and shows errors in one line."""

    debug = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All there are, in the order a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # all that is imported stays: to look through it for garbage is a twentieth of a short command
        try:
            command: click.Command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        finally:
            gc.freeze()
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a suggestion for a mistyped command."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            import difflib

            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"no command {name!r}" + (f", did you mean {near[0]!r}?" if near else "; see agent --help"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """First steps, and the list in `--help`, without importing the commands."""
        with formatter.section("First steps"):
            formatter.write_dl(FIRST_STEPS, col_max=32)
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does it, without importing the commands: the shell waits for it."""
        found = [CompletionItem(name, help=COMMANDS[name]) for name in self.list_commands(ctx)]
        return [one for one in found if one.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run; a user's mistake is one line on standard error and no traceback."""
        try:
            return super().main(*args, **extra)
        except Exception as e:
            if self.debug:
                raise
            click.secho(f"error: {_sentence(e)}", fg="red", err=True)
            sys.exit(1)


_LACKING = {
    errno.EMFILE: "this process may not open more files: raise `ulimit -n`, or LimitNOFILE in its systemd unit",
    errno.ENFILE: "this host may not open more files: raise the sysctl fs.file-max",
    errno.ENOMEM: "this host has no memory left for this process",
    errno.ENOSPC: "free some room on that disk",
}
"""Ways out where the system lacks something, by error number: such an error is no bug."""


def _sentence(error: Exception) -> str:
    errors = sys.modules.get("flafka.plugins.errors")  # not imported, none of it can have been raised
    if errors is not None and isinstance(error, errors.FlafkaError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _LACKING:
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}; {_LACKING[error.errno]}"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"{text}\nThis is a bug. Please report it{_where()} with what `agent --debug …` prints for the same command."
    )


def _where() -> str:
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
    """Flafka: an agent that runs Flume's configuration and keeps events in Kafka until they are delivered."""
    Root.debug = debug


if __name__ == "__main__":
    main()

"""`agent group describe` and `reset` for a channel `file`, whose checkpoint is on this host and not in Kafka."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flafka.agent.cli.kafka_admin import confirm
from flafka.agent.cli.output import show
from flafka.plugins import Components, FlafkaError

Command = Callable[..., Any]
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


def with_file_channel(run: Command) -> Callable[[Command], Command]:
    """Return a decorator that adds the options for a channel `file`; with these, `run` gets the channel.

    Without these options, the decorated command is called.
    """

    def decorated(command: Command) -> Command:
        @click.option(
            "--checkpoint-dir",
            type=DIRECTORY,
            help="checkpointDir of a channel file. NAME is then the name of the channel.",
        )
        @click.option("--data-dirs", metavar="DIR,…", help="dataDirs of the channel file. If unset, the default.")
        @functools.wraps(command)
        def wrapped(*args: Any, checkpoint_dir: Path | None, data_dirs: str | None, **options: Any) -> Any:
            if checkpoint_dir is None:
                if data_dirs is not None:
                    raise click.UsageError("--data-dirs needs --checkpoint-dir")
                if "to" in options and options["to"] is None:
                    raise click.UsageError("Missing option '--to'.")
                return command(*args, **options)
            properties = {"checkpointDir": str(checkpoint_dir), **({"dataDirs": data_dirs} if data_dirs else {})}
            cls = Components().get("channel", "file")
            config, problems = cls.config_class.parse(properties)
            if config is None:
                raise click.UsageError("; ".join(problem.message for problem in problems))
            try:
                return run(cls(config, options.pop("name")), **options)
            except FlafkaError as error:
                raise click.ClickException(str(error)) from None
            except OSError as error:
                raise click.ClickException(f"{error.filename}: {error.strerror}") from None

        return wrapped

    return decorated


def reset(channel: Any, *, to: str | None, yes: bool, as_json: bool, **of_kafka: object) -> None:
    """Accept losses that keep the channel from opening, after a confirmation. No agent may have it open.

    `to` is None, or "earliest" to redeliver all events that are left. Raises UsageError for options of groups in
    Kafka.
    """
    _refuse_kafka_options(of_kafka)
    if to not in (None, "earliest"):
        raise click.BadParameter("of a channel file: omit --to, or use earliest", param_hint="--to")

    def confirm_changes(changes: list[tuple[str, str]]) -> None:
        show(("what", "change"), changes, as_json=as_json)
        confirm(f"reset channel {channel.name}?", yes)

    channel.reset(confirm_changes, earliest=to == "earliest")


def describe(channel: Any, *, as_json: bool, **of_kafka: object) -> None:
    """Print the committed offset and the undelivered entries of each partition. The agent may run.

    Raises UsageError for options of groups in Kafka.
    """
    _refuse_kafka_options(of_kafka)
    columns = ("events", "partition", "current_offset", "log_end_offset", "lag", "epoch", "problem")
    show(columns, channel.describe(), as_json=as_json)


def _refuse_kafka_options(options: dict[str, object]) -> None:
    """Raise UsageError if one of these options is set."""
    for name, value in options.items():
        if value:
            option = {"topics": "topic"}.get(name, name).replace("_", "-")
            raise click.UsageError(f"--{option} is for groups in Kafka")

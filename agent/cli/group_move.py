"""`agent group move`: the commit log of a group's sinks, where it is to lie from now on."""

from __future__ import annotations

from dataclasses import replace

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_with_cluster
from flafka.agent.cli.kafka_admin import confirm, naming_brokers
from flafka.agent.cli.output import json_option, show
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import CommittingSink, FlafkaError
from flafka.plugins.kafka.topic import KafkaBackedChannel

PATH = "hdfs.path"


@click.command("move")
@click.argument("group_name", metavar="NAME")
@configuration_options
@click.option("--to", metavar="PATH", help=f"Move to this {PATH}. If unset, to that of the configuration.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def move(group_name: str, chosen: Chosen, to: str | None, yes: bool, as_json: bool) -> None:
    """Move the commit log of the sinks in a group to another path. All agents of the group must be stopped.

    An agent moves it by itself when it starts with a changed hdfs.path while nobody reads in the group. This command
    does the same before any agent starts, so that several agents of one group can be changed. Files that were
    delivered stay where they are. If the command is interrupted, run it again: nothing is lost or delivered twice.
    """
    spec = load_with_cluster(chosen)
    with naming_brokers(spec):
        found = [one for sink in spec.sinks if (one := _moving(spec, sink, to))]
        if group_name not in (groups := {group for group, *_ in found}):
            there = f"there are: {', '.join(sorted(groups))}" if groups else "it has no such sink at all"
            raise click.ClickException(f"{spec.name} has no sink hdfs in group {group_name}; {there}")
        if len({sink.make().commit_log for group, sink, _ in found if group == group_name}) > 1:
            raise click.ClickException(
                f"sinks of group {group_name} have different paths: say which one with --to PATH"
            )
        rows = [
            row for group, sink, channel in found if group == group_name for row in _move(group, sink, channel, yes)
        ]
    show(("sink", "partition", "commit_log", "moved"), rows, as_json=as_json)
    if to is not None:
        text = f"before you start agents of the group, write into their configurations: {PATH} = {to}"
        click.echo(text, err=True)


def _moving(spec: AgentSpec, sink: SinkSpec, to: str | None) -> tuple[str, SinkSpec, KafkaBackedChannel] | None:
    """Return a sink with a commit log that can be moved, its group and its channel; None for another sink."""
    if not issubclass(sink.cls, CommittingSink):
        return None
    channel = spec.channel(sink.channel).make()
    made: CommittingSink = sink.make()
    if not isinstance(channel, KafkaBackedChannel) or not made.commit_log:
        return None
    if to is not None:
        config, problems = sink.cls.config_class.parse({**sink.properties, PATH: to})
        if config is None:
            raise click.BadParameter("; ".join(problem.message for problem in problems), param_hint="--to")
        sink = replace(sink, config=config)
    return channel.kafka.stream(sink.group).group, sink, channel


def _move(group: str, spec: SinkSpec, channel: KafkaBackedChannel, yes: bool) -> list[tuple[str, str, str, bool]]:
    from flafka.agent.runner.moving import CommitLogMove

    sink: CommittingSink = spec.make()
    try:
        channel.open()
        committed = channel.kafka.committed(spec.group)
        places = sorted({one.generation.commit_log for one in committed} - {sink.commit_log, ""})
        where = f"from {', '.join(places)} to {sink.commit_log}" if places else f"to {sink.commit_log}"
        confirm(f"move the commit log of group {group} {where}?", yes)
        sink.open()
        moved = CommitLogMove().make(sink, channel, spec.group, joins=False)
    except FlafkaError as error:
        raise click.ClickException(str(error)) from None
    finally:
        sink.close()
        channel.close()
    partitions = sorted(one.topic_partition for one in committed)
    here = {one.partition for one in moved}
    return [(spec.path, str(one), sink.commit_log, one.partition in here) for one in partitions]

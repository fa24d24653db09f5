"""`agent group move`: move of the commit log of a group's sinks to another path."""

from __future__ import annotations

from dataclasses import replace

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_with_brokers
from flafka.agent.cli.kafka_admin import confirm, name_unreachable_brokers
from flafka.agent.cli.output import json_option, show
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import CommittingSink, FlafkaError
from flafka.plugins.kafka.topic import KafkaBackedChannel

PATH = "hdfs.path"


@click.command("move")
@click.argument("group_name", metavar="NAME")
@configuration_options
@click.option("--to", metavar="PATH", help=f"New {PATH}. If unset, the one of the configuration.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def move(group_name: str, chosen: ChosenConfiguration, to: str | None, yes: bool, as_json: bool) -> None:
    """Move the commit log of the sinks in a group to another path. All agents of the group must be stopped.

    An agent moves its commit log on a start with a changed hdfs.path if its group has no members. Use this command
    for several agents of one group, before any of them starts. Delivered files stay in place. After an interrupt, run
    the command again: no event is lost or duplicated.
    """
    spec = load_with_brokers(chosen)
    with name_unreachable_brokers(spec):
        movable = [result for sink in spec.sinks if (result := _movable_sink(spec, sink, to))]
        if group_name not in (groups := {group for group, *_ in movable}):
            known = f"its groups are: {', '.join(sorted(groups))}" if groups else "it has no sink with a commit log"
            raise click.ClickException(f"{spec.name} has no sink hdfs in group {group_name}; {known}")
        if len({sink.make().commit_log for group, sink, _ in movable if group == group_name}) > 1:
            raise click.ClickException(f"sinks of group {group_name} have different paths: name one with --to PATH")
        rows = [
            row for group, sink, channel in movable if group == group_name for row in _move(group, sink, channel, yes)
        ]
    show(("sink", "partition", "commit_log", "moved"), rows, as_json=as_json)
    if to is not None:
        text = f"before you start agents of the group, set in their configurations: {PATH} = {to}"
        click.echo(text, err=True)


def _movable_sink(spec: AgentSpec, sink: SinkSpec, to: str | None) -> tuple[str, SinkSpec, KafkaBackedChannel] | None:
    """Return group, sink and channel of a sink with a commit log in a Kafka group; None for another sink.

    With `to`, the sink has this path. Raises BadParameter if it is not valid.
    """
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
    """Move the commit logs of one sink after a confirmation, and return a row for each partition.

    Raises ClickException.
    """
    from flafka.agent.runner.commitlogmove import CommitLogMove

    sink: CommittingSink = spec.make()
    try:
        channel.open()
        committed = channel.kafka.committed(spec.group)
        paths = sorted({assignment.generation.commit_log for assignment in committed} - {sink.commit_log, ""})
        route = f"from {', '.join(paths)} to {sink.commit_log}" if paths else f"to {sink.commit_log}"
        confirm(f"move the commit log of group {group} {route}?", yes)
        sink.open()
        moved = CommitLogMove().make(sink, channel, spec.group, joins=False)
    except FlafkaError as error:
        raise click.ClickException(str(error)) from None
    finally:
        sink.close()
        channel.close()
    partitions = sorted(assignment.topic_partition for assignment in committed)
    moved_partitions = {assignment.partition for assignment in moved}
    return [(spec.path, str(one), sink.commit_log, one.partition in moved_partitions) for one in partitions]

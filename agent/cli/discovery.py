"""Discovery of a fleet: the members of the consumer groups of a configuration's Kafka channels."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import click

from flafka.agent.cli.configuration import ChosenConfiguration, load_with_brokers
from flafka.agent.cli.monitoring_client import MonitoringClient, client_of_options
from flafka.agent.topology import AgentSpec
from flafka.agent.web import is_loopback
from flafka.plugins import FlafkaError
from flafka.plugins.kafka.topic import KafkaBackedChannel, KafkaTopic

WAY_OUT = "name the agents with --agents HOST:PORT,…"


def discover_clients(chosen: ChosenConfiguration, token: str, authority: str | None) -> list[MonitoringClient]:
    """Return a client for each host of a configuration's consumer groups, with its monitoring port and TLS.

    `token` overrides the token of the configuration. `authority` names a file with the certificates to trust; None is
    the certificate in the keystore of the configuration. Raises ClickException if hosts or port are not known,
    and FlafkaError if brokers do not answer.
    """
    spec = load_with_brokers(chosen)
    client = client_of_options(spec.options, authority)
    if client is None:
        raise click.ClickException(f"{spec.name}.monitoring.port is 0, so the agents take any free ports: {WAY_OUT}")
    hosts = _hosts(spec)
    if is_loopback(own := spec.options.monitoring_host) and (others := [h for h in hosts if not is_loopback(h)]):
        click.echo(
            f"{spec.name}.monitoring.host is {own}, which no other host reaches: the agents on {', '.join(others)} "
            "answer only if theirs is another address",
            err=True,
        )
    return [replace(client, host=host, token=token or client.token) for host in hosts]


def _hosts(spec: AgentSpec) -> list[str]:
    """Return the hosts of the members of all groups, sorted. Raises ClickException if there are none."""
    groups = _groups(spec)
    if not groups:
        raise click.ClickException(
            f"agent {spec.name} has no sink of a channel kafka, so no consumer group has the hosts: {WAY_OUT}"
        )
    try:
        hosts = {host for (_, group), kafka in groups.items() for host in kafka.member_hosts(group)}
    except FlafkaError as e:  # its end may be a command that grants a right
        raise click.ClickException(f"without an answer of the brokers, {WAY_OUT}: {e}") from e
    if not hosts:
        names = ", ".join(sorted({group for _, group in groups}))
        raise click.ClickException(
            f"no consumer is in the group{'s' * (len(groups) > 1)} {names}: start the agents, or {WAY_OUT}. Agents "
            "with sources alone, and sinks on Spark, are in no group"
        )
    return sorted({_usual_form(host) for host in hosts})


def _groups(spec: AgentSpec) -> dict[tuple[str, str], KafkaTopic]:
    """Return the topic of the channel by channel and consumer group, for each sink of a Kafka channel."""
    channels = {channel.name: channel.make() for channel in spec.channels}
    groups = {}
    for sink in spec.sinks:
        channel = channels[sink.channel]
        if isinstance(channel, KafkaBackedChannel):
            groups[sink.channel, channel.kafka.stream(sink.group).group] = channel.kafka
    return groups


def _usual_form(host: str) -> str:
    """Return an address as it is usually written; brokers write `0:0:0:0:0:0:0:1` for `::1`."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host

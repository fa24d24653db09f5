"""Messages of commands about unavailable brokers, and about missing groups."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    NoError,
    NotCoordinatorError,
)
from kafka.structs import OffsetAndMetadata

from flafka.agent.cli import group as group_module
from flafka.agent.cli import main
from flafka.agent.services import ServiceError
from flafka.agent.services.running import free_ports, until
from flafka.plugins.kafka import admin
from tests.system.running import agent_command


@pytest.mark.parametrize("line", ["topic list", "topic describe x", "group list", "group describe x"])
def test_brokers_that_are_down_are_named(line: str, tmp_path: Path) -> None:
    ports, hasty = free_ports(2), tmp_path / "client.properties"
    hasty.write_text("default.api.timeout.ms=300\n")
    servers = [f"127.0.0.1:{port}" for port in ports]
    options = ["--bootstrap-server", ",".join(servers), "--command-config", str(hasty)]
    result = CliRunner().invoke(main, [*line.split(), *options])
    assert result.exit_code == 1
    assert f"no Kafka broker answers at {','.join(servers)}: Connection refused; is it running?" in result.stderr


@pytest.mark.parametrize("command", [["audit"], ["dlq", "list"]])
def test_brokers_of_an_agent_s_channel_that_are_down_are_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flafka.agent.runner.deadletters.reading.REQUEST_SECONDS", 0.2)
    (port,) = free_ports(1)
    file = tmp_path / "agent.conf"
    file.write_text(f"""
a1.channels = c1
a1.sinks = k1
a1.audit.topic = audit
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:{port}
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
""")
    result = CliRunner().invoke(main, [*command, "-c", str(file)])
    assert result.exit_code == 1
    assert f"no connection to 127.0.0.1:{port} (Connection refused)" in result.stderr, result.output


@pytest.mark.usefixtures("servers")
def test_check_connect_names_a_stopped_broker_beside_live_ones(brokers: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file = tmp_path / "agent.conf"
    lines = [
        "channels = c1",
        "sources = s1",
        "sinks = k1",
        "channels.c1.type = kafka",
        "sources.s1.type = kafka",
        "sources.s1.kafka.topics = x",
        "sources.s1.channels = c1",
        "sinks.k1.type = null",
        "sinks.k1.channel = c1",
        "monitoring.port = 0",
        *(
            f"{component}.kafka.bootstrap.servers = {brokers},127.0.0.1:{port}"
            for component in ("channels.c1", "sources.s1")
        ),
    ]
    file.write_text("".join(f"a1.{line}\n" for line in lines))
    outputs = [""]

    def named() -> bool:
        """Return the message once it is stable: on a busy machine live brokers may answer too late."""
        outputs.append(agent_command("check", "-c", str(file), "--connect").stdout)
        sentence = f"no connection to broker 127.0.0.1:{port} (Connection refused): is it running?"
        return outputs[-1].count(sentence) == 2 and "no Kafka broker answers" not in outputs[-1]

    try:
        until(named, "the broker to be named twice")
    except ServiceError:
        pytest.fail(outputs[-1])


def test_live_brokers_are_not_named(brokers: str) -> None:
    (port,) = free_ports(1)
    assert admin.unreachable_brokers(f"{brokers},PLAINTEXT://127.0.0.1:{port}") == [
        f"PLAINTEXT://127.0.0.1:{port} (Connection refused)"
    ]
    assert admin.unreachable_brokers("") == []


class NoGroups:
    """Cluster without groups ever: there is no topic of offsets, and so no coordinator."""

    def __init__(self, protocol: str) -> None:
        self.config = {"security_protocol": protocol}

    def list_groups(self) -> list[dict[str, str]]:
        return []

    def __getattr__(self, name: str) -> Any:
        def ask(*_: object) -> None:
            assert self.config["security_protocol"] != "PLAINTEXT", "without a login, nothing is hidden"
            raise CoordinatorNotAvailableError

        return ask


@pytest.mark.parametrize("line", ["describe nobody", "reset nobody --to 0 --yes"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
def test_a_missing_group(line: str, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(*_: object, **__: object) -> Any:
        yield NoGroups(protocol)

    monkeypatch.setattr(group_module, "connect", connect)
    result = CliRunner().invoke(main, ["group", *line.split()])
    assert result.exit_code == 1
    assert re.match("Error: no group nobody", result.stderr), result.output


@pytest.mark.parametrize(
    "answer", [GroupAuthorizationFailedError, {"error": "[Error 30] GroupAuthorizationFailedError"}]
)
def test_a_group_that_the_user_may_not_see_is_a_missing_right(answer: Any) -> None:
    def describe_groups(names: list[str]) -> dict[str, Any]:
        if isinstance(answer, dict):
            return dict.fromkeys(names, answer)
        raise answer

    admin: Any = NoGroups("SASL_SSL")
    admin.describe_groups = describe_groups
    with pytest.raises(GroupAuthorizationFailedError):
        group_module._refuse_unknown(admin, "hidden")


class MovingCoordinator:
    """Cluster of which a broker has just ended: another one becomes the group's coordinator."""

    offset = OffsetAndMetadata(7, "", None)
    key = TopicPartition("t", 0)

    def __init__(self) -> None:
        self.answers: list[Any] = [NotCoordinatorError(), CoordinatorLoadInProgressError()]

    def _answer(self, answer: Any) -> Any:
        if self.answers:
            raise self.answers.pop()
        return answer

    def list_groups(self) -> Any:
        return self._answer([{"group_id": "g"}])

    def list_group_offsets(self, name: str) -> Any:
        return self._answer({name: {self.key: self.offset}})

    def alter_group_offsets(self, _: str, offsets: Any) -> Any:
        if self.answers:
            return dict.fromkeys(offsets, type(self.answers.pop()))
        return dict.fromkeys(offsets, NoError)


def test_a_coordinator_that_moves_is_waited_for() -> None:
    assert group_module._committed(MovingCoordinator(), "g") == {MovingCoordinator.key: MovingCoordinator.offset}
    group_module._refuse_unknown(MovingCoordinator(), "g")
    admin = MovingCoordinator()
    group_module._write(admin, "g", {admin.key: admin.offset})
    assert not admin.answers

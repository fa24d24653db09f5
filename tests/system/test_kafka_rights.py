"""Each right that docs/production.md names: all together suffice, and without one the error names it.

The rights are those that the roles of Kafka's clients declare. A right without a proof here fails a test.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from flafka.agent.auxiliarytopics import AUDIT, new_auxiliary_producer
from flafka.agent.runner.spark.processing import create_missing_topics
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins import KafkaStream, Retry
from flafka.plugins.kafka.rights import Role
from tests.docs.test_pages import script
from tests.fixtures.secured import Right, SecuredKafka
from tests.system.running import agent_command, unique

KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,  # as confluent-kafka names it
}
CHANNEL = "the topic of a channel `kafka`"
GROUP = "the consumer groups of a channel `kafka` and of its sinks"
TRANSACTIONS = "the transactional ids that begin with `flafka.`"
POSITIONS = "`<topic>.positions`"
DEAD_LETTERS = "`<topic>.deadletters`"
AUDITED = "`audit.topic`"
WRITTEN = "topics that a sink `kafka` writes"
CONSUMED = "topics that a source `kafka` reads"
CONSUMERS = "the consumer group of a source `kafka`"
REPLAYS = "the consumer groups that begin with `<group>.replay.`"
OUTPUTS = "topics of the outputs of a sink `spark`"
LISTED_TOPICS = "the topics of `agent topic`"
LISTED_GROUPS = "the consumer groups of `agent group`"
TOPICS_OF_GROUPS = "the topics of the groups of `agent group`"
CONSOLE_GROUP = "the group of `agent topic consume --group`"
CLUSTER = "the cluster"
TOPICS_OF_CLUSTER = "the topics of `agent cluster`"
NAMES = {
    CHANNEL: "{}",
    GROUP: "{}.group",
    TRANSACTIONS: "flafka.",
    DEAD_LETTERS: "{}.deadletters",
    POSITIONS: "{}.positions",
    AUDITED: "{}.audit",
    WRITTEN: "{}.out",
    CONSUMED: "{}.in",
    CONSUMERS: "{}.in.group",
    REPLAYS: "{}.group.replay.",
    OUTPUTS: "{}.output",
    LISTED_TOPICS: "{}",
    LISTED_GROUPS: "{}.group",
    TOPICS_OF_GROUPS: "{}",
    CONSOLE_GROUP: "{}.console",
    CLUSTER: "kafka-cluster",
    TOPICS_OF_CLUSTER: "{}",
}
"""Name of each resource, by the topic of the channel."""


class Case(NamedTuple):
    """Pipeline whose user lacks operations on a resource."""

    component: str
    """Component that reports it, as in `/healthz`; empty if the log has it."""
    resource: str
    operations: str
    exists: bool = True
    """False if the resource is a topic that does not exist."""


CASES = [
    Case("SINK.k", CHANNEL, "Read"),
    Case("SOURCE.s", CHANNEL, "Write"),
    Case("CHANNEL.c", CHANNEL, "Create", exists=False),
    Case("CHANNEL.c", CHANNEL, "Read Write"),
    Case("SINK.k", GROUP, "Read"),
    Case("SINK.k", TRANSACTIONS, "Write"),
    Case("SINK.k", POSITIONS, "Read"),
    Case("SINK.k", POSITIONS, "Write"),
    Case("", POSITIONS, "Create", exists=False),
    Case("SINK.k", DEAD_LETTERS, "Write"),
    Case("SINK.k", DEAD_LETTERS, "Create", exists=False),
    Case("", AUDITED, "Write"),
    Case("SINK.k", WRITTEN, "Write"),
    Case("SOURCE.i", CONSUMED, "Read"),
    Case("SOURCE.i", CONSUMERS, "Read"),
]
"""Pipelines of one agent."""
LATER = {
    case: case
    for case in CASES
    if case.exists and case != Case("SINK.k", POSITIONS, "Read")  # read at a start
} | {Case("CHANNEL.c", CHANNEL, "Read Write"): Case("SOURCE.s", CHANNEL, "Write")}
"""Reports of rights that are revoked while the agent runs."""


class Command(NamedTuple):
    """Command whose user lacks an operation on a resource, and its arguments.

    In them `{}` is the topic, `{id}` the id of an event, `{begin}` and `{end}` a time range.
    """

    arguments: str
    resource: str
    operation: str


DLQ_REPLAY = "dlq replay --yes"
RESET = "group reset {}.group --topic {} --to latest --yes"
CONSUME = "topic consume {} --group {}.console --until-end --raw"
REPLAY = "replay --sink k0 --from {begin} --to {end} --yes --anyway"
COMMANDS = [
    Command("dlq list", DEAD_LETTERS, "Read"),
    Command(DLQ_REPLAY, DEAD_LETTERS, "Read"),
    Command(DLQ_REPLAY, DEAD_LETTERS, "Write"),
    Command(DLQ_REPLAY, CHANNEL, "Write"),
    Command(DLQ_REPLAY, TRANSACTIONS, "Write"),
    Command("audit", AUDITED, "Read"),
    Command("trace {id}", CHANNEL, "Read"),
    Command("trace {id}", GROUP, "Read"),
    Command(REPLAY, REPLAYS, "Read"),
    Command("check --connect", GROUP, "Read"),
    Command("check --connect", CONSUMED, "Read"),
    Command("check --connect", WRITTEN, "Write"),
    Command("topic describe {}", LISTED_TOPICS, "Describe"),
    Command("topic create {}.new", LISTED_TOPICS, "Create"),
    Command("topic create {}.new", LISTED_TOPICS, "Describe"),
    Command("topic delete {}.new --yes", LISTED_TOPICS, "Delete"),
    Command("group describe {}.group", LISTED_GROUPS, "Describe"),
    Command("group describe {}.group", TOPICS_OF_GROUPS, "Describe"),
    Command(RESET, LISTED_GROUPS, "Read"),
    Command(RESET, TOPICS_OF_GROUPS, "Read"),
    Command("topic produce {}", LISTED_TOPICS, "Write"),
    Command(CONSUME, LISTED_TOPICS, "Read"),
    Command(CONSUME, CONSOLE_GROUP, "Read"),
    Command("cluster elect-leaders --topic {}", CLUSTER, "Alter"),
    Command("cluster elect-leaders --topic {}", TOPICS_OF_CLUSTER, "Describe"),
    Command("cluster reassign list", CLUSTER, "Describe"),
    Command("cluster quotas list", CLUSTER, "DescribeConfigs"),
    Command("cluster quotas set --client-id {} --producer-byte-rate 1000000", CLUSTER, "AlterConfigs"),
]
"""Commands with the user of an agent's configuration, and those with a user of their own."""
OWN_USER = ("`agent topic", "`agent group", "`agent cluster")
"""Beginnings of commands that take their user from `--command-config`."""
OPTIONAL = {
    *((resource, "DescribeConfigs") for resource in (CHANNEL, WRITTEN, LISTED_TOPICS, CLUSTER, TOPICS_OF_CLUSTER)),
    *((resource, "AlterConfigs") for resource in (CLUSTER, TOPICS_OF_CLUSTER)),
}
"""Operations without which everything here works."""


@pytest.fixture(scope="module")
def roles() -> list[Role]:
    """Roles that the project declares, each with its rights."""
    roles: list[Role] = script("build").roles()
    return roles


def rights(roles: Iterable[Role], topic: str, resource: str = "", operations: str = "") -> list[Right]:
    """Return the rights that these roles need, if the channel has that topic, without operations on a resource."""
    omitted = (NAMES[resource], operations.split()) if resource else ("", [])
    kind_omitted = next((access.kind for role in roles for access in role.access if access.resource == resource), "")
    needed = {
        (access.kind, NAMES[access.resource], operation): None
        for role in roles
        for access in role.access
        for operation in access.operations
    }
    return [
        (KINDS[kind], name.format(topic), AclOperation[re.sub(r"(?<!^)([A-Z])", r"_\1", operation).upper()])
        for kind, name, operation in needed
        if not ((kind, name) == (kind_omitted, omitted[0]) and operation in omitted[1])
    ]


def of_configuration(roles: Iterable[Role]) -> list[Role]:
    """Return the roles of components, and of commands that use the configuration of an agent."""
    return [role for role in roles if not role.purpose.startswith(OWN_USER)]


def names_right(text: str, user: str, topic: str, resource: str, operations: str, roles: Iterable[Role]) -> bool:
    """Return True if an error names user, operations and resource, and the command that grants them."""
    kind = next(access.kind for role in roles for access in role.access if access.resource == resource)
    name, words = NAMES[resource].format(topic), operations.split()
    lacking = f"user {user} lacks the right{'s' * (len(words) > 1)} {' and '.join(words)} on "
    resource_pattern = f"(one of the )?{'consumer ' * (kind == 'group')}{kind}s? (\\S+, )*{re.escape(name)}"
    granting = f" --add --allow-principal User:{user} {' '.join(f'--operation {word}' for word in words)} .*"
    granting += f"--{kind.replace(' ', '-')} {re.escape(name)}( |$)"
    if kind == "cluster":  # which has no name
        resource_pattern, granting = "the cluster", granting.removesuffix(f" {re.escape(name)}( |$)") + "$"
    return re.search(f"{lacking}{resource_pattern}.* \\(.+\\): kafka-acls .*{granting}", text) is not None


def granted_by(text: str, user: str) -> list[Right]:
    """Return the rights that the command in an error grants this user."""
    kinds = {f"--{kind.replace(' ', '-')}": type for kind, type in KINDS.items()}
    words = shlex.split(text.partition("kafka-acls ")[2])
    pairs = [(word, following) for word, following in itertools.pairwise(words) if word.startswith("--")]
    assert ("--allow-principal", f"User:{user}") in pairs
    names = [(kinds[option], value) for option, value in pairs if option in kinds]
    operations = [value for option, value in pairs if option == "--operation"]
    return [(kind, name, AclOperation[operation.upper()]) for kind, name in names for operation in operations]


def pipeline(kafka: SecuredKafka, number: int, topic: str, user: str) -> str:
    """Return lines of one pipeline, whose components have this number in their names."""
    lines = f"""
sources.s{number}.type = stress
sources.s{number}.size = 10
sources.s{number}.maxEventsPerSecond = 2
sources.s{number}.channels = c{number}
sources.d{number}.type = stress
sources.d{number}.size = 10
sources.d{number}.maxEventsPerSecond = 1
sources.d{number}.channels = c{number}
sources.d{number}.interceptors = i
sources.d{number}.interceptors.i.type = static
sources.d{number}.interceptors.i.key = topic
sources.d{number}.interceptors.i.value = __consumer_offsets
channels.c{number}.type = kafka
channels.c{number}.replication = 1
channels.c{number}.partitions = 1
channels.c{number}.kafka.topic = {topic}
channels.c{number}.kafka.consumer.group.id = {topic}.group
sinks.k{number}.type = kafka
sinks.k{number}.channel = c{number}
sinks.k{number}.kafka.topic = {topic}.out
sources.i{number}.type = kafka
sources.i{number}.channels = m
sources.i{number}.kafka.topics = {topic}.in
sources.i{number}.kafka.consumer.group.id = {topic}.in.group
"""
    text = "\n".join(f"a1.{line}" for line in lines.split("\n") if line) + "\n"
    for component, kinds in (
        (f"sources.i{number}", ("consumer",)),
        (f"channels.c{number}", ("producer", "consumer")),
        (f"sinks.k{number}", ("producer",)),
    ):
        text += kafka.client("login", component=f"a1.{component}", kinds=kinds, user=user)
        if "consumer" in kinds:  # brokers remove former members, and refuse present ones, the sooner
            text += f"a1.{component}.kafka.consumer.session.timeout.ms = 6000\n"
            text += f"a1.{component}.kafka.consumer.heartbeat.interval.ms = 1000\n"
    return text


def configuration(kafka: SecuredKafka, topics: dict[str, str], audit: str) -> str:
    """Return the configuration of an agent with a pipeline for each user, whose topic is given."""
    numbers = range(len(topics))
    text = f"a1.sources = {' '.join(f's{n} d{n} i{n}' for n in numbers)}\na1.audit.topic = {audit}\n"
    text += f"a1.channels = m {' '.join(f'c{n}' for n in numbers)}\na1.channels.m.type = memory\n"
    text += f"a1.sinks = n {' '.join(f'k{n}' for n in numbers)}\na1.sinks.n.type = null\na1.sinks.n.channel = m\n"
    return text + "".join(pipeline(kafka, number, topic, user) for number, (user, topic) in enumerate(topics.items()))


def create(kafka: SecuredKafka, topics: Iterable[str]) -> None:
    """Create topics of one partition, all with one request."""
    for answer in kafka.admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        answer.result(30)


def test_without_one_right_the_error_names_it_and_the_command_that_grants_it(
    tmp_path: Path, secured_kafka: SecuredKafka, roles: list[Role]
) -> None:
    """Each pipeline of an agent has a user who lacks a right, from the start, and later while it runs."""
    kafka, test = secured_kafka, unique("rights")
    cases = {f"u{number}": case for number, case in enumerate(CASES)}
    topics = {user: f"{test}-{user}" for user in cases}
    own_roles, audit = of_configuration(roles), f"{test}.audit"
    suffixes = ("", ".deadletters", ".positions", ".out", ".in")
    missing = {NAMES[case.resource].format(topics[user]) for user, case in cases.items() if not case.exists}
    create(kafka, {audit, *(topic + suffix for topic in topics.values() for suffix in suffixes)} - missing)
    producer = Producer({"bootstrap.servers": kafka.servers["plain"], "log_level": 0})
    for topic in topics.values():
        producer.produce(f"{topic}.in", b"consumed")
        if f"{topic}.positions" not in missing:
            producer.produce(f"{topic}.positions", b"null", "another group", 0)
    assert producer.flush(30) == 0

    def named(right: Right) -> Right:  # one topic for the reports of all pipelines
        return (right[0], audit, right[2]) if right[1].endswith(".audit") else right

    granted = {
        user: [*map(named, rights(own_roles, topics[user], case.resource, case.operations))]
        for user, case in cases.items()
    }
    kafka.allow()
    kafka.grant(granted)

    def wait_for_errors(agent: RunningAgent, expected: dict[str, Case], log_start: int) -> dict[str, list[Right]]:
        """Wait until each of these rights is named; return, by user, the rights that the errors' commands grant."""
        granting: dict[str, list[Right]] = {}

        def all_named() -> bool:
            failing = agent.failing()
            for user, case in expected.items():
                number, topic = user.removeprefix("u"), test if case.resource == AUDITED else topics[user]
                named = (
                    [failing.get(case.component + number, "")]
                    if case.component
                    else agent.log[log_start:].splitlines()
                )
                for text in named:
                    if names_right(text, user, topic, case.resource, case.operations, own_roles):
                        granting[user] = granted_by(text, user)
            return granting.keys() == expected.keys()

        agent.until(all_named, "every missing right to be named", 120)
        return granting

    def wait_for_events(agent: RunningAgent) -> None:
        def delivered() -> list[int]:
            return [agent.count(f"SINK.k{number}", "EventDrainSuccessCount") for number in range(len(cases))]

        before = delivered()
        agent.until(
            lambda: not agent.failing() and all(now > old for now, old in zip(delivered(), before, strict=True)),
            "all pipelines to deliver",
            120,
        )

    with RunningAgent(tmp_path, configuration(kafka, topics, audit)) as agent:
        kafka.grant(wait_for_errors(agent, cases, 0))
        wait_for_events(agent)
        later = {user: LATER[case] for user, case in cases.items() if case in LATER}
        complete = {user: rights(own_roles, topics[user]) for user in later}
        kept = {user: rights(own_roles, topics[user], cases[user].resource, cases[user].operations) for user in later}
        revoked = {user: [*map(named, set(complete[user]) - set(kept[user]))] for user in later}
        log_start = len(agent.log)
        kafka.revoke(revoked)
        kafka.grant(wait_for_errors(agent, later, log_start))
        kafka.grant(revoked)
        wait_for_events(agent)


def test_each_declared_right_has_a_proof_here(roles: list[Role]) -> None:
    accesses = [access for role in roles for access in role.access]
    needed = {(access.resource, operation) for access in accesses for operation in access.operations}
    in_agents = {(case.resource, operation) for case in CASES for operation in case.operations.split()}
    in_commands = {(command.resource, command.operation) for command in COMMANDS}
    in_this_process = {(OUTPUTS, "Write"), (OUTPUTS, "Create"), (AUDITED, "Create")}
    assert needed == in_agents | in_commands | in_this_process
    assert {(access.resource, operation) for access in accesses for operation, _ in access.optional} == OPTIONAL


def test_all_rights_suffice_for_an_agent_and_for_commands(
    tmp_path: Path, secured_kafka: SecuredKafka, roles: list[Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are put, taken, committed, rejected and replayed, also after a restart and a reset of the group.

    No right is granted that is only of use. Then each command lacks one right.
    """
    kafka, topic, own_roles = secured_kafka, unique("rights"), of_configuration(roles)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    text = configuration(kafka, {"flafka": topic}, f"{topic}.audit")

    def needed(words: list[str], resource: str = "", operation: str = "") -> list[Right]:
        """Return the rights that a command needs, without one."""
        if not f"`agent {words[0]}".startswith(OWN_USER):
            return rights(own_roles, topic, resource, operation)
        called = {f"`agent {' '.join(words[:count])}`" for count in (2, 3)}
        used = [role for role in roles if called & {*role.purpose.split(", ")}]
        return rights(used, f"{topic}.new" if words[2] == f"{topic}.new" else topic, resource, operation)

    def run(words: list[str], user: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user."""
        if f"`agent {words[0]}".startswith(OWN_USER):
            file = tmp_path / f"{user}.properties"
            login = kafka.security("login", user).items()
            file.write_text("\n".join(f"{name}={value}" for name, value in login))
            return agent_command(*words, "--bootstrap-server", kafka.servers["login"], "--command-config", str(file))
        file = tmp_path / f"{user}.conf"
        file.write_text(text.replace("sasl.username = flafka", f"sasl.username = {user}"))
        return agent_command(*words, "-c", str(file))

    def succeed(*words: str) -> str:
        result = run([*words], "flafka")
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    began = datetime.now(UTC)
    kafka.allow(*{*rights(own_roles, topic), *needed(["group", "reset", ""]), *needed(["group", "describe", ""])})
    create(kafka, [f"{topic}.out", f"{topic}.in"])
    kafka.produce(f"{topic}.in")
    for start in range(2):
        with RunningAgent(tmp_path, text) as agent:
            agent.wait_until_healthy()
            agent.until(lambda: agent.count("SINK.k0", "EventDrainSuccessCount") > 1, "events")
            agent.until(lambda: agent.count("SINK.k0", "EventRejectedCount") > 1, "dead letters")
            if start == 0:
                agent.until(lambda: agent.count("SOURCE.i0", "EventAcceptedCount") == 1, "the consumed record")
            assert agent.stop() == 0
            known = (" INFO ", "has 1 replicas", "rejected")
            assert not [line for line in agent.log.splitlines() if not any(word in line for word in known)]
        reset = ["group", "reset", f"{topic}.group", "--topic", topic, "--to", "earliest", "--yes"]
        until(lambda: run(reset, "flafka").returncode == 0, "the session of the member to end", 60)
    (letter, *_) = json.loads(succeed("dlq", "show", "--limit", "1", "--json"))
    values = {"{id}": letter["id"], "{begin}": began.isoformat(), "{end}": datetime.now(UTC).isoformat()}

    def words_of(command: Command) -> list[str]:
        return [values.get(word) or word.format(topic) for word in command.arguments.split()]

    cases = {f"u{number}": command for number, command in enumerate(COMMANDS)}
    kafka.grant({u: needed(words_of(case), case.resource, case.operation) for u, case in cases.items()})
    results: dict[str, subprocess.CompletedProcess[str]] = {}

    def run_cases(arguments: str) -> None:
        """Run the cases of one command one after another, as replays fence each other."""
        for user, case in cases.items():
            if case.arguments == arguments:
                results[user] = run(words_of(case), user)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run_cases, {case.arguments for case in cases.values()}))
    for user, case in cases.items():
        output = results[user].stdout + results[user].stderr
        of_topic = f"{topic}.new" if f"{topic}.new" in words_of(case) else topic
        named = any(
            names_right(line, user, of_topic, case.resource, case.operation, roles) for line in output.splitlines()
        )
        if case == Command("group describe {}.group", TOPICS_OF_GROUPS, "Describe"):  # brokers hide which topics
            named = "this user lacks the right Describe on its topics" in output
        assert named, (case, output)
        assert results[user].returncode, case
    new = f"{topic}.new"
    kafka.grant(
        {"flafka": [right for word in ("list", "create", "delete") for right in needed(["topic", word, new])]}
    )
    kafka.admin.delete_topics([new])[new].result(30)  # made by the user who may not describe it

    def succeed_in_turn(*commands: str) -> list[str]:
        return [succeed(*command.split()) for command in commands]

    with ThreadPoolExecutor(3) as threads:
        topics = threads.submit(
            succeed_in_turn, f"topic create {new}", f"topic describe {new}", f"topic delete {new} --yes"
        )
        replayed = threads.submit(succeed_in_turn, DLQ_REPLAY, f"trace {letter['id']}")
        # The group was reset, so it has too many events. The grace keeps them from deciding the exit code.
        audit_words = "audit --all --grace 3600"
        others = threads.submit(succeed_in_turn, audit_words, f"group describe {topic}.group")
    assert len(topics.result()) == 3
    assert "and replayed since" in replayed.result()[1]
    assert "too many so far" in others.result()[0]
    assert topic in others.result()[1]


def test_rights_of_clients_that_no_agent_here_has(secured_kafka: SecuredKafka, roles: list[Role]) -> None:
    """Outputs of a sink `spark`, which would take a minute, and the creation of the topic of the audit."""
    kafka, topic = secured_kafka, unique("rights")
    create(kafka, [f"{topic}.output"])

    def stream(user: str) -> KafkaStream:
        return KafkaStream(kafka.servers["login"], topic, topic, client=kafka.security("login", user))

    def failure(user: str, topic: str, resource: str, operation: str) -> str:
        kafka.grant({user: rights(own_roles, topic, resource, operation)})
        with pytest.raises(Retry) as failed:
            open_topic(resource, user, topic)
        return str(failed.value)

    def open_topic(resource: str, user: str, topic: str) -> None:
        if resource == OUTPUTS:
            create_missing_topics(stream(user), [f"{topic}.output"], 1, 1)
        else:
            new_auxiliary_producer(AUDIT, stream(user), f"{topic}.audit", 1, days=1)

    own_roles = of_configuration(roles)
    kafka.allow()
    for user, name, resource, operation in (
        ("u1", topic, OUTPUTS, "Write"),
        ("u2", f"{topic}.none", OUTPUTS, "Create"),
        ("u3", topic, AUDITED, "Create"),
    ):
        assert names_right(failure(user, name, resource, operation), user, name, resource, operation, own_roles)
    kafka.grant({"u4": rights(own_roles, f"{topic}.new")})
    for resource in (OUTPUTS, AUDITED):
        open_topic(resource, "u4", f"{topic}.new")


def test_the_command_grants_the_right_to_the_subject_of_a_certificate(secured_kafka: SecuredKafka) -> None:
    kafka, topic = secured_kafka, unique("rights")
    key = str(kafka.directory / "client" / "server.pem")
    client = kafka.security("mutual") | {"ssl.certificate.location": key, "ssl.key.location": key}
    stream = KafkaStream(kafka.servers["mutual"], topic, topic, client=client)
    kafka.allow()
    with pytest.raises(Retry) as failed:
        create_missing_topics(stream, [topic], 1, 1)
    text = str(failed.value)
    subject = re.search(r"this client \(User:(CN=\S+)\) lacks the right Write on topic", text)
    assert subject is not None, text
    kafka.grant({subject[1]: [*granted_by(text, subject[1]), (ResourceType.TOPIC, topic, AclOperation.CREATE)]})
    create_missing_topics(stream, [topic], 1, 1)

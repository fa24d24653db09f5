"""`agent topic produce` and `consume`, and the commands of `agent cluster` for any Kafka cluster, on real brokers."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource

from flafka.agent.cli.cluster import cluster
from flafka.agent.cli.topic import topic
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import until
from flafka.channels.kafka import records
from flafka.plugins import Batch, Event
from tests.system.running import ROOT, unique

agent = click.Group(commands=[cluster, topic])
Run = Callable[..., Result]
SHELL = f'agent() {{ {shlex.quote(sys.executable)} -m flafka "$@"; }}\n'
"""Definition of the command `agent` for lines of a shell."""


@pytest.fixture
def run(kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line, `run("topic list")`, with the test's cluster as the default."""
    monkeypatch.setenv("FLAFKA_CLUSTER_DIR", str(kafka_cluster.directory))

    def run(line: str, code: int = 0, input: bytes = b"") -> Result:
        result = CliRunner().invoke(agent, shlex.split(line), input=input)
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def logs(run: Run) -> str:
    """Return a new topic of two partitions."""
    name = unique("logs")
    run(f"topic create {name} --partitions 2")
    return name


@pytest.fixture
def admin(kafka_cluster: KafkaCluster) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        yield admin


def objects(result: Result) -> list[dict[str, Any]]:
    """Return the objects of an output with one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def consumed(run: Run, name: str, options: str = "") -> list[dict[str, Any]]:
    return objects(run(f"topic consume {name} --until-end --json {options}"))


def examples(command: click.Command) -> Iterator[str]:
    """Yield the examples in the help of a command and of its verbs, in order."""
    if isinstance(command, click.Group):
        for verb in command.commands.values():
            yield from examples(verb)
    else:
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            if paragraph.startswith("\b\n"):
                text = paragraph.partition("\n")[2].replace("|\n", "| ")
                yield from (" ".join(line.split()) for line in text.splitlines() if not line.startswith("#"))


def test_the_examples_in_the_help_work_as_printed(
    run: Run, kafka_cluster: KafkaCluster, admin: KafkaAdminClient
) -> None:
    verbs = [topic.commands["produce"], topic.commands["consume"], *cluster.commands.values()]
    lines = [line for verb in verbs for line in examples(verb)]
    assert {*map(tuple, (re.findall(r"agent (topic|cluster) ([a-z-]+)", line)[-1] for line in lines))} == {
        *(("topic", verb) for verb in ("create", "produce", "consume")),
        *(("cluster", verb) for verb in ("describe", "elect-leaders", "reassign", "quotas")),
    }
    assert len({*lines}) == len(lines)
    environment = {**os.environ, "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory), "PYTHONPATH": str(ROOT)}
    shown = {}
    try:
        for line in lines:
            if "|" in line:
                script = f"set -o pipefail\n{SHELL}{line}"
                done = subprocess.run(
                    ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=300
                )
                assert done.returncode == 0, (line, done.stderr)
                shown[line] = done.stdout
            else:
                shown[line] = run(line.removeprefix("agent ")).stdout
        assert shown["echo 'a line' | agent topic produce logs"] == "records stored in logs: 1\n"
        everything = shown["agent topic consume logs --until-end --keys --headers"]
        assert everything.count("\n") == 5
        assert "-\tweb-1\tnull\n" in everything
        run("cluster quotas remove --client-id loader")
    finally:
        admin.delete_topics(["logs"])


def test_records_are_consumed_as_they_were_produced(run: Run, logs: str) -> None:
    lines = b"web-1|one\nweb-2|two\nNULL|three\nweb-1|NULL\n"
    options = "--key-separator '|' --null-marker NULL --header from=me --header empty="
    produced = run(f"topic produce {logs} {options} --json", input=lines)
    assert produced.stderr == f"records stored in {logs}: 4\n"
    binary = run(f"topic produce {logs} --partition 1", input=b"\xff\x00\n\nno newline")
    assert binary.stdout == f"records stored in {logs}: 3\n"
    headers = [{"name": "from", "value": "me"}, {"name": "empty", "value": ""}]
    found = consumed(run, logs)
    keyed = {(record["partition"], record["offset"]): record for record in found if record["headers"]}
    places = sorted(objects(produced), key=lambda place: place["line"])
    by_line = [keyed[place["partition"], place["offset"]] for place in places]
    assert [(record["key"], record["value"]) for record in by_line] == [
        *(("web-1", "one"), ("web-2", "two"), (None, "three"), ("web-1", None)),
    ]
    assert all(record["headers"] == headers for record in by_line)
    others = [record for record in found if not record["headers"]]
    assert [record.get("value", record.get("value_base64")) for record in others] == ["/wA=", "", "no newline"]
    assert {record["partition"] for record in others} == {1}
    text = run(f"topic consume {logs} --until-end --keys --headers --partition 1").stdout.splitlines()
    assert "-\tnull\tbase64:/wA=" in text

    run("topic create copy-of-it --partitions 2")
    copied = run(
        "topic produce copy-of-it --from-json", input=run(f"topic consume {logs} --until-end --json").stdout_bytes
    )
    assert copied.stdout == "records stored in copy-of-it: 7\n"
    same = consumed(run, "copy-of-it")

    def comparable(record: dict[str, Any]) -> str:
        return json.dumps({**record, "topic": "", "offset": 0}, sort_keys=True)

    assert sorted(map(comparable, same)) == sorted(map(comparable, found))


def test_only_acknowledged_records_are_reported_as_stored(run: Run, logs: str) -> None:
    name = unique("narrow")
    run(f"topic create {name} --partitions 1 --config max.message.bytes=2000")
    small, large = b"a" * 1500, os.urandom(3000).hex().encode()
    result = run(f"topic produce {name} --json", code=1, input=b"\n".join([small] * 5 + [large] + [small] * 5))
    assert "line 6 is not acknowledged: Broker: Message size too large: the topic has max.message.bytes=2000" in (
        result.stderr
    )
    reported = {place["offset"] for place in objects(result)}
    assert {place["line"] for place in objects(result)} >= {1, 2, 3, 4, 5}
    assert reported == {record["offset"] for record in consumed(run, name)}
    assert f"records stored in {name}: {len(reported)}\n" in result.stderr

    result = run(f"topic produce {logs} --key-separator :", code=1, input=b"a:b\nc\nd:e\n")
    assert result.stdout == f"records stored in {logs}: 1\n"
    assert result.stderr == "Error: line 2 has no key: there is no ':' in it\n"
    result = run(f"topic produce {logs} --from-json", code=1, input=b'{"value": "v", "partition": 2}\n')
    assert result.stderr == "Error: line 1 has the partition 2, which the topic does not have\n"
    assert run("topic produce nowhere", code=1, input=b"a").stderr == "Error: topic nowhere: no such topic\n"
    assert "has no partition 2" in run(f"topic produce {logs} --partition 2", code=2).stderr
    assert "is not NAME=VALUE" in run(f"topic produce {logs} --header a", code=2).stderr
    assert "omit --key-separator" in run(f"topic produce {logs} --from-json --key-separator :", code=2).stderr
    assert len(consumed(run, logs)) == 1


def test_a_consumer_begins_and_ends_where_it_should(run: Run, logs: str) -> None:
    lines = [{"value": str(n), "partition": 0, "timestamp": f"2026-01-01T00:00:0{n}Z"} for n in range(5)]
    run(f"topic produce {logs} --from-json", input="\n".join(map(json.dumps, lines)).encode())

    def values(options: str) -> str:
        return "".join(run(f"topic consume {logs} {options}").stdout.split())

    assert values("--until-end") == "01234"
    assert values("--from earliest --max-records 2") == "01"
    assert values("--from latest --until-end") == ""
    assert values("--from 3 --partition 0 --until-end") == "34"
    assert values("--from 2026-01-01T00:00:01.500Z --until-end") == "234"
    assert values("--partition 1 --until-end") == ""
    shown = run(f"topic consume {logs} --from 4 --partition 0 --max-records 1 --offsets").stdout
    assert shown == "0\t4\t2026-01-01T00:00:04.000+00:00\t4\n"
    refused = run(f"topic consume {logs} --from 9 --partition 0", code=1)
    assert refused.stderr == f"Error: {logs}-0 holds offsets 0 to 5, not 9\n"
    assert "has no partition 7" in run(f"topic consume {logs} --partition 7", code=2).stderr
    assert "is not earliest, latest, an offset" in run(f"topic consume {logs} --from then", code=2).stderr
    assert "omit --partition" in run(f"topic consume {logs} --group g --partition 0", code=2).stderr
    assert run("topic consume nowhere", code=1).stderr == "Error: topic nowhere: no such topic\n"


def test_aborted_records_are_shown_on_request_alone(run: Run, kafka_cluster: KafkaCluster) -> None:
    name = unique("aborted")
    run(f"topic create {name} --partitions 1")
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(60)
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(60)
        end(60)
    assert run(f"topic consume {name} --until-end").stdout == "kept\n"
    assert run(f"topic consume {name} --until-end --isolation-level read_uncommitted").stdout == "kept\ndropped\n"


def test_records_of_a_channel_are_shown_as_events(run: Run, kafka_cluster: KafkaCluster) -> None:
    name = unique("events")
    run(f"topic create {name} --partitions 1")
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    few, many = [Event(b"one", {"host": "h"}), Event(b"\xff")], [Event(b"%d" % n) for n in range(40)]
    for events in (few, many):
        format, value = records.encode_batch(Batch.of(events))
        producer.produce(name, value, headers=[(records.FORMAT, format)])
    assert producer.flush(60) == 0
    shown = run(f"topic consume {name} --until-end --headers").stdout.splitlines()
    assert shown == ["host=h\tone", "-\tbase64:/w==", *(f"-\t{n}" for n in range(40))]
    first, second = consumed(run, name)
    assert first["events"] == [{"headers": {"host": "h"}, "body": "one"}, {"headers": {}, "body_base64": "/w=="}]
    assert (len(second["events"]), "value" in second) == (40, False)
    raw = run(f"topic consume {name} --until-end --json --raw").stdout_bytes
    run(f"topic produce {name} --from-json", input=raw)
    assert [record["events"] for record in consumed(run, name)] == [first["events"], second["events"]] * 2


def committed(admin: KafkaAdminClient, name: str) -> int:
    """Return the sum of the committed offsets of a group."""
    return sum(max(stored.offset, 0) for stored in admin.list_group_offsets(name)[name].values())


def test_a_group_commits_what_was_printed(run: Run, logs: str, admin: KafkaAdminClient) -> None:
    run(f"topic produce {logs}", input=b"1\n2\n3\n4\n5\n")
    name = unique("group")
    first = objects(run(f"topic consume {logs} --group {name} --from earliest --max-records 2 --json"))
    assert committed(admin, name) == 2
    rest = consumed(run, logs, f"--group {name}")
    assert sorted(record["value"] for record in first + rest) == ["1", "2", "3", "4", "5"]
    assert committed(admin, name) == 5
    assert consumed(run, logs, f"--group {name} --from earliest") == []


@contextlib.contextmanager
def process(kafka_cluster: KafkaCluster, line: str) -> Iterator[subprocess.Popen[str]]:
    """Run `agent` as a process of its own, with pipes; kill it in the end."""
    environment = {**os.environ, "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "flafka", *shlex.split(line)],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def test_a_closed_pipe_and_ctrl_c_end_the_commands_without_a_traceback(
    run: Run, kafka_cluster: KafkaCluster, logs: str, admin: KafkaAdminClient
) -> None:
    cut, whole, lines = unique("group"), unique("group"), 3000
    run(f"topic produce {logs}", input=b"".join(b"%0100d\n" % n for n in range(lines)))
    run(f"topic create {logs}.typed --partitions 1")
    with (
        process(kafka_cluster, f"topic consume {logs} --group {cut} --from earliest") as first,
        process(kafka_cluster, f"topic consume {logs} --group {whole} --from earliest") as second,
        process(kafka_cluster, f"topic produce {logs}.typed") as writer,
    ):
        assert first.stdout is not None
        assert first.stderr is not None
        assert len(first.stdout.readline()) == 101
        first.stdout.close()
        assert first.wait(60) == 0
        assert first.stderr.read() == ""
        assert committed(admin, cut) < lines, "what no program has taken is not committed"

        assert second.stdout is not None
        for _ in range(lines):
            assert second.stdout.readline()
        second.send_signal(signal.SIGINT)
        assert (*second.communicate(timeout=60), second.returncode) == ("", "", 0)
        assert committed(admin, whole) == lines

        assert writer.stdin is not None
        writer.stdin.write("before\n")
        writer.stdin.flush()
        until(lambda: consumed(run, f"{logs}.typed") != [], "the record")
        writer.send_signal(signal.SIGINT)
        output = f"records stored in {logs}.typed: 1\n"
        assert (*writer.communicate(timeout=60), writer.returncode) == (output, "", 130)


def replicas(admin: KafkaAdminClient, name: str) -> list[list[int]]:
    """Return the replicas of each partition, the preferred leader first."""
    (described,) = admin.describe_topics([name])
    return [part["replica_nodes"] for part in sorted(described["partitions"], key=lambda p: p["partition_index"])]


def leader(admin: KafkaAdminClient, name: str) -> int:
    (described,) = admin.describe_topics([name])
    return int(described["partitions"][0]["leader_id"])


def test_preferred_leaders_are_elected(run: Run, admin: KafkaAdminClient) -> None:
    name = unique("elected")
    run(f"topic create {name} --partitions 1")
    first, *others = replicas(admin, name)[0]
    admin.alter_partition_reassignments({TopicPartition(name, 0): [*others, first]})
    until(lambda: replicas(admin, name) == [[*others, first]], "the new order")
    assert leader(admin, name) == first
    (row,) = json.loads(run(f"cluster elect-leaders --topic {name} --json").stdout)
    assert row == {"topic": name, "partition": 0, "leader": others[0], "result": "elected"}
    until(lambda: leader(admin, name) == others[0], "the election")
    again = run(f"cluster elect-leaders --topic {name}:0")
    assert again.stdout.splitlines() == ["TOPIC\tPARTITION\tLEADER\tRESULT"]
    assert again.stderr == "partitions with their preferred leader already: 1\n"
    assert "no such topic" in run("cluster elect-leaders --topic nowhere", code=1).stderr


def throttles(admin: KafkaAdminClient, name: str) -> set[str]:
    """Return the names of the throttles of a topic and of all brokers."""
    resources = [ConfigResource("TOPIC", name), *(ConfigResource("BROKER", str(node)) for node in (1, 2, 3))]
    found = admin.describe_configs(resources)
    return {key for names in found.values() for settings in names.values() for key in settings if "throttled" in key}


def test_replicas_are_moved_with_a_throttle_that_is_removed(run: Run, admin: KafkaAdminClient) -> None:
    name = unique("moved")
    run(f"topic create {name} --partitions 3 --replication-factor 1")
    run(f"topic produce {name}", input=b"\n".join(b"%d" % n for n in range(100)))
    start = f"cluster reassign start --topic {name} --brokers 2,3 --replication-factor 2 --throttle 100000000"
    assert "needs --yes" in run(start, code=2).stderr
    plan = json.loads(run(f"{start} --yes --json").stdout)
    assert {*plan[0]} == {"topic", "partition", "replicas", "new_replicas"}
    assert all(sorted(brokers) == [2, 3] for brokers in replicas(admin, name))
    assert {brokers[0] for brokers in replicas(admin, name)} == {2, 3}
    until(lambda: throttles(admin, name) == set(), "brokers to know the removal")
    assert run(f"{start} --yes").stderr == "nothing to move\n"
    assert len(consumed(run, name)) == 100
    assert "'4' is no live broker; live are 1, 2, 3" in (
        run(f"cluster reassign start --topic {name} --brokers 4", code=2).stderr
    )
    assert "2 replicas need 2 brokers, not 1" in (
        run(f"cluster reassign start --topic {name} --brokers 1", code=1).stderr
    )


def test_a_throttled_move_is_listed_and_cancelled(run: Run, admin: KafkaAdminClient) -> None:
    """A follower fetches up to 8 MB before the throttle counts."""
    name = unique("slow")
    run(f"topic create {name} --partitions 1 --replication-factor 1")
    run(f"topic produce {name}", input=b"\n".join(os.urandom(500_000).hex().encode() for _ in range(20)))
    ((present,),) = replicas(admin, name)
    target = present % 3 + 1
    move = f"cluster reassign start --topic {name} --brokers {target} --yes"
    try:
        run(f"{move} --throttle 1000 --no-wait")
        (row,) = json.loads(run("cluster reassign list --json").stdout)
        assert (row["topic"], row["adding"], row["removing"]) == (name, str(target), str(present))
        until(lambda: len(throttles(admin, name)) == 4, "brokers to know the throttle")
        assert f"under reassignment: {name}-0" in run(move, code=1).stderr

        def bytes_to_copy() -> int:
            return int(json.loads(run("cluster reassign list --json").stdout)[0]["bytes_to_copy"])

        until(lambda: 0 < bytes_to_copy() < 15_000_000, "a part of the copy")
    finally:
        cancelled = run(f"cluster reassign cancel --topic {name} --yes --json")
    assert {"resource": "topic", "name": name} in json.loads(cancelled.stdout)
    until(lambda: replicas(admin, name) == [[present]], "the former replica")
    until(lambda: throttles(admin, name) == set(), "brokers to know the removal")
    run(f"{move} --no-wait")
    run("cluster reassign wait")
    until(lambda: replicas(admin, name) == [[target]], "the new replica")


def test_quotas_are_set_listed_and_removed(run: Run) -> None:
    name = unique("client")

    def quotas(options: str) -> dict[tuple[str | None, str | None, str], float]:
        rows = json.loads(run(f"cluster quotas list {options} --json").stdout)
        return {(row["user"], row["client_id"], row["quota"]): row["value"] for row in rows}

    shown = run(f"cluster quotas set --client-id {name} --producer-byte-rate 1000 --request-percentage 12.5")
    assert shown.stdout.splitlines()[1:] == [
        f"-\t{name}\tproducer_byte_rate\t1000",
        f"-\t{name}\trequest_percentage\t12.5",
    ]
    run(f"cluster quotas set --client-id {name} --user alice --consumer-byte-rate 2000")
    run("cluster quotas set --user-defaults --consumer-byte-rate 3000")
    of_client = {(None, name, "producer_byte_rate"): 1000, (None, name, "request_percentage"): 12.5}
    of_both = {("alice", name, "consumer_byte_rate"): 2000}
    of_all = {("<default>", None, "consumer_byte_rate"): 3000}
    until(lambda: quotas("") == {**of_client, **of_both, **of_all}, "the quotas")
    assert quotas(f"--client-id {name}") == {**of_client, **of_both}
    assert quotas("--user alice") == of_both
    run(f"cluster quotas remove --client-id {name} --quota request_percentage")
    until(lambda: len(quotas(f"--client-id {name}")) == 2, "the removal")
    for entity in (f"--client-id {name}", f"--client-id {name} --user alice", "--user-defaults"):
        run(f"cluster quotas remove {entity}")
    until(lambda: quotas("") == {}, "the removal of all")
    refused = run(f"cluster quotas remove --client-id {name}", code=1)
    assert refused.stderr == f"Error: client id {name} has no quota\n"
    assert "name a user or a client id" in run("cluster quotas set --producer-byte-rate 1", code=2).stderr
    assert "exclude each other" in run("cluster quotas list --user a --user-defaults", code=2).stderr


def test_brokers_are_described(run: Run, kafka_cluster: KafkaCluster, logs: str) -> None:
    described = json.loads(run("cluster describe --json").stdout)
    assert described["cluster_id"] == kafka_cluster.cluster_id
    brokers = {broker["broker"]: broker for broker in described["brokers"]}
    assert {number: broker["port"] for number, broker in brokers.items()} == {
        number: kafka_cluster.ports[f"broker-{number}"] for number in (1, 2, 3)
    }
    assert all(broker["replicas"] >= 2 for broker in brokers.values())
    assert sum(broker["leaders"] for broker in brokers.values()) == sum(b["preferred"] for b in brokers.values())

"""`agent tap`: passing events, for the agent's own user; the agent never waits for it."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.monitoring.taps import (
    MAX_QUEUED_BATCHES,
    Taps,
    TapServer,
    TapSubscriber,
    filter_by_body,
    find_point,
    receive,
    send,
    socket_address,
    socket_file,
    tap_points,
)
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.agent.topology import AgentSpec
from flafka.plugins import Batch, Components, Event

CONFIGURATION = """\
a1.sources = s1
a1.channels = c1
a1.sinks = k1 s1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.sources.s1.interceptors = i1 i2
a1.sources.s1.interceptors.i1.type = mask
a1.sources.s1.interceptors.i1.patterns.p = secret
a1.sources.s1.interceptors.i2.type = static
a1.sources.s1.interceptors.i2.key = host
a1.sources.s1.interceptors.i2.value = web
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.s1.type = null
a1.sinks.s1.channel = c1
a1.monitoring.port = 0
"""


def spec_of(directory: Path, text: str = CONFIGURATION) -> AgentSpec:
    file = directory / "agent.conf"
    file.write_text(text)
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, [*map(str, diagnostics)]
    return spec


def batch_of(*bodies: str) -> Batch:
    return Batch.of([Event(body.encode()) for body in bodies])


WAITING = "waiting for events at a1.channels.c1; Ctrl-C stops"


class Serving:
    """Server of taps without an agent; `taps` by path."""

    def __init__(self, directory: Path) -> None:
        self.spec = spec_of(directory)
        self.taps = {path: Taps() for path in ("a1.sources.s1", "a1.channels.c1", "a1.sinks.k1", "a1.sinks.s1")}
        self.server = TapServer(self.spec)
        self.server.set_agent(self.spec, self.taps)
        self.server.start()

    def run(self, path: str, batches: list[Batch], *words: str) -> Any:
        """Return the output of the command while these batches pass, once it listens."""
        taps = self.taps[path]

        def pass_by() -> None:
            until(lambda: taps.subscribers, "somebody to listen", 60)
            for batch in batches:
                for listener in taps.subscribers:
                    listener.on_batch(batch)

        passing = threading.Thread(target=pass_by)
        passing.start()
        shown = CliRunner().invoke(main, ["tap", "-c", self.spec.file, *words])
        passing.join()
        return shown


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    deep = tmp_path / ("directory" * 10) / ("directory" * 10)  # longer than the kernel accepts
    monkeypatch.setenv("XDG_STATE_HOME", str(deep))
    serving = Serving(tmp_path)
    yield serving
    serving.server.stop()


def test_events_are_shown_as_they_pass(serving: Serving) -> None:
    result = serving.run("a1.channels.c1", [batch_of("one", "two"), batch_of("three")], "c1", "--limit", "3")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\ntwo\nthree\n", f"{WAITING}\n")
    until(lambda: not serving.taps["a1.channels.c1"].subscribers, "the reader to be let go", 60)


def test_headers_are_shown_and_control_sequences_are_escaped(serving: Serving) -> None:
    batch = Batch.of([Event(b"a\x1b[2Jb\xff", {"host": "web"})])
    result = serving.run("a1.channels.c1", [batch], "c1", "--limit", "1", "--headers")
    assert result.stdout == "a\\x1b[2Jb\\xff\n    host = web\n"


def test_json_is_an_object_a_line(serving: Serving) -> None:
    batch = Batch.of([Event("ü".encode(), {"host": "web"}), Event(b"\xff")])
    result = serving.run("a1.channels.c1", [batch], "c1", "--limit", "2", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["body"], first["headers"]) == ("ü", {"host": "web"})
    assert second["body_base64"] == "/w=="


def test_only_matching_events_are_sent(serving: Serving) -> None:
    batch = batch_of("error: one", "two", "ERROR three")
    result = serving.run("a1.channels.c1", [batch], "c1", "--limit", "2", "--grep", "(?i)^error")
    assert result.stdout == "error: one\nERROR three\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "no component is named 'x'; components: c1, s1, s1.i1, s1.i2, k1"),
        (["s1.i3"], "no component is named 's1.i3', did you mean 's1.i"),
        (["s1"], "s1 is ambiguous: write a1.sources.s1 or a1.sinks.s1"),
        (["c1", "--grep", "("], "'(' is not a regular expression (RE2): missing ): ("),
    ],
)
def test_mistakes_are_reported(serving: Serving, words: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["tap", "-c", serving.spec.file, *words])
    assert result.exit_code == 1
    assert message in result.output


def test_the_end_of_the_agent_is_reported(serving: Serving) -> None:
    def end() -> None:
        until(lambda: serving.taps["a1.channels.c1"].subscribers, "somebody to listen", 60)
        serving.server.stop()

    ending = threading.Thread(target=end)
    ending.start()
    result = CliRunner().invoke(main, ["tap", "-c", serving.spec.file, "c1"])
    ending.join()
    assert (result.exit_code, result.stderr.splitlines()) == (1, [WAITING, "Error: the agent has ended"])
    assert not socket_file("a1", serving.spec.file).exists()
    result = CliRunner().invoke(main, ["tap", "-c", serving.spec.file, "c1"])
    assert "start it as this user" in result.output


def test_an_agent_that_does_not_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("flafka.agent.cli.tap.MONITORING_RESPONSE_SECONDS", 0.2)
    spec = spec_of(tmp_path)
    file = socket_file("a1", spec.file)
    file.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as agent:  # as of a stopped process: the kernel accepts, and nobody answers
        with socket_address(file) as address:
            agent.bind(address)
        agent.listen()
        result = CliRunner().invoke(main, ["tap", "-c", spec.file, "c1"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: the agent does not answer" in result.stderr


def test_a_reader_follows_a_replaced_component_and_gets_a_message_if_there_is_none(serving: Serving) -> None:
    before, after = serving.taps["a1.channels.c1"], Taps()

    def change() -> None:
        until(lambda: before.subscribers, "somebody to listen", 60)
        serving.server.set_agent(serving.spec, {**serving.taps, "a1.channels.c1": after})
        until(lambda: after.subscribers, "the reader to come over", 60)
        after.subscribers[0].on_batch(batch_of("one"))
        serving.server.set_agent(serving.spec, {})

    changing = threading.Thread(target=change)
    changing.start()
    result = CliRunner().invoke(main, ["tap", "-c", serving.spec.file, "c1"])
    changing.join()
    assert not before.subscribers
    assert "Error: a1.channels.c1 is no longer in the configuration\n" in result.output


def test_no_other_user_can_open_it(serving: Serving) -> None:
    file = socket_file("a1", serving.spec.file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_directory_that_others_can_open_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "flafka/taps").mkdir(mode=0o777, parents=True)
    serving = Serving(tmp_path)
    assert stat.S_IMODE((tmp_path / "flafka/taps").stat().st_mode) == 0o700
    serving.server.stop()


def test_the_socket_of_a_killed_agent_is_replaced_and_that_of_a_live_one_is_not(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    second = TapServer(serving.spec)
    with caplog.at_level("INFO"):
        second.start()
    assert "another agent with this configuration is running" in caplog.text
    second.stop()
    file = socket_file("a1", serving.spec.file)
    assert file.exists()
    assert serving.server._socket is not None
    serving.server._socket.shutdown(socket.SHUT_RDWR)  # as a kill does: the file stays
    serving.server._socket.close()
    third = TapServer(serving.spec)
    third.start()
    with socket_address(file) as address, socket.socket(socket.AF_UNIX) as probe:
        probe.connect(address)
    third.stop()
    assert not file.exists()


def test_an_agent_may_stop_while_a_reader_comes(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    begins, may_begin, begin = threading.Event(), threading.Event(), threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        if thread.name == "tap":
            begins.set()
            may_begin.wait(60)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    with socket_address(socket_file("a1", serving.spec.file)) as address, socket.socket(socket.AF_UNIX) as reader:
        reader.connect(address)
        assert begins.wait(60)
        serving.server.stop()
        may_begin.set()


def test_an_agent_whose_state_cannot_be_written_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    serving = Serving(tmp_path)
    assert "agent tap does not work: " in caplog.text
    serving.server.stop()


def test_a_user_without_a_home_directory_is_told_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> object:
        raise KeyError("getpwuid(): uid not found: 12345")

    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.sources = s\na1.channels = c\na1.sinks = k\na1.sources.s.type = seq\na1.sources.s.channels = c\n"
        "a1.channels.c.type = memory\na1.sinks.k.type = null\na1.sinks.k.channel = c\n"
    )
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    result = CliRunner().invoke(main, ["start", "-c", str(file)])
    assert result.exit_code == 1
    assert "this user has no home directory: set XDG_STATE_HOME to a directory that it may write" in result.output


def test_an_unread_listener_keeps_a_few_batches_and_counts_the_others() -> None:
    listener = TapSubscriber()
    for _ in range(MAX_QUEUED_BATCHES + 3):
        listener.on_batch(batch_of("one", "two"))
    assert listener.take_dropped_count() == 6
    assert listener.take_dropped_count() == 0
    assert (
        sum(len(seen.batch) for _ in range(MAX_QUEUED_BATCHES) for seen in listener.next_batches(0))
        == 2 * MAX_QUEUED_BATCHES
    )
    assert listener.next_batches(0) == ()


def test_a_reader_that_takes_nothing_blocks_no_batch(serving: Serving) -> None:
    taps = serving.taps["a1.channels.c1"]
    large = batch_of(*["x" * 1000] * 1000)
    with socket_address(socket_file("a1", serving.spec.file)) as address, socket.socket(socket.AF_UNIX) as reader:
        reader.connect(address)
        reader.sendall(json.dumps({"component": "c1"}).encode() + b"\n")
        assert receive(reader)[0]["component"] == "a1.channels.c1"
        until(lambda: taps.subscribers, "it to listen", 60)
        passed = 0
        listener = taps.subscribers[0]
        while not listener._dropped:
            listener.on_batch(large)
            passed += len(large)
        got = left_out = 0
        while got + left_out < passed:
            about, batch = receive(reader)
            got += len(batch) if batch is not None else 0
            left_out += about.get("left_out", 0)
        assert (got + left_out, left_out > 0) == (passed, True)


def test_ids_come_with_events_of_a_channel() -> None:
    from flafka.plugins import Origin

    sending, receiving = socket.socketpair()
    with sending, receiving:
        batch = Batch.of([Event(b"one"), Event(b"two")], Origin.of_records("t", 3, [7, 8], [0, 0]))
        send(sending, {"stage": ""}, batch)
        about, _ = receive(receiving)
    assert about["ids"] == [str(id) for id in batch.ids()]


def test_names_of_components(tmp_path: Path) -> None:
    known = tap_points(spec_of(tmp_path), {})
    for name in ("k1", "sinks.k1", "a1.sinks.k1"):
        point = find_point(known, name)
        assert not isinstance(point, str)
        assert point.path == "a1.sinks.k1"
    point = find_point(known, "s1.i2")
    assert not isinstance(point, str)
    assert point.interceptor == 1


def test_a_sink_on_spark_cannot_be_tapped(tmp_path: Path) -> None:
    text = CONFIGURATION.replace("type = memory", "type = kafka\na1.channels.c1.kafka.bootstrap.servers = x:1")
    text = text.replace("a1.sinks = k1 s1", "a1.sinks = k1").replace("a1.sinks.s1", "# ")
    known = tap_points(
        spec_of(tmp_path, text.replace("k1.type = null", "k1.type = logger\na1.sinks.k1.runner = spark")), {}
    )
    assert find_point(known, "k1") == (
        "k1 runs on Spark, where its events cannot be tapped: tap its channel c1, or a source of that channel"
    )


def test_matching_compares_bytes() -> None:
    batch = Batch.of([Event("für".encode()), Event(b"\xff"), Event(b"fur")])
    assert [event.body for event in filter_by_body(batch, "f.?ür|\\xff")] == ["für".encode(), b"\xff"]


def test_an_agent_shows_masked_text_before_the_mask_and_not_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    agent = Agent(spec_of(tmp_path))
    agent.start()
    try:
        source = agent.sources[0]
        until(source.was_open.is_set, "the source to listen", 60)
        shown: dict[str, Any] = {}

        def run(point: str, limit: int) -> None:
            words = ["tap", "-c", agent.spec.file, point, "--limit", str(limit), "--json"]
            shown[point] = CliRunner().invoke(main, words).stdout

        # CliRunner redirects this process's output: one at a time
        for point, limit, taps in (
            ("sources.s1.i1", 2, source.taps),
            ("s1.i2", 2, source.taps),
            ("sources.s1", 1, source.taps),
            ("c1", 1, agent.channels["c1"].taps),
            ("k1", 1, next(m.delivery.taps for s in agent.sinks for m in s.members if m.name == "k1")),
        ):
            reading = threading.Thread(target=run, args=(point, limit))
            reading.start()
            until(lambda taps=taps: taps.subscribers, "it to be listened to", 60)
            until(
                lambda reading=reading: source.deliver(batch_of("a secret")) and not reading.is_alive(), "events", 60
            )
        events = {point: [json.loads(line) for line in text.splitlines()] for point, text in shown.items()}
        first, second = events["sources.s1.i1"]
        assert (first["stage"], first["body"], first["headers"]) == ("before", "a secret", {})
        assert (second["stage"], "secret" in second["body"]) == ("after", False)
        assert [event["headers"] for event in events["s1.i2"]] == [{}, {"host": "web"}]
        for point in ("sources.s1", "c1", "k1"):
            assert "secret" not in events[point][0]["body"]
            assert events[point][0]["headers"] == {"host": "web"}
        assert "id" in events["k1"][0]
    finally:
        agent.stop()
    assert not [*(tmp_path / "flafka/taps").iterdir()]

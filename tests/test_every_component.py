"""Conformance kit for every built-in component, here or with real servers in tests/system.

A new component needs an entry in `HERE`, or a test that is marked with `exercises` where its servers run.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import importlib
import itertools
import logging
import socket
import threading
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flafka.plugins import Batch, Component, Components, Event, conformance
from flafka.plugins.wire import thriftrpc
from flafka.plugins.wire.avrorpc import encode_array, encode_frame, encode_request_head
from flafka.plugins.wire.flumeevent import encode
from flafka.plugins.wire.thriftrpc import PROTOCOLS
from tests.fixtures.kit import ON_SERVERS
from tests.sinks.test_http import Server as HttpServer
from tests.sources.calling import Running
from tests.sources.test_thrift import Running as RunningThrift

REPOSITORY = Path(__file__).parents[1]


@functools.cache
def components() -> Components:
    """Return the built-in components, by the entry points that the project declares."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    modules = project["entry-points"]["flafka"].values()
    return Components([importlib.import_module(module) for module in modules], entry_points=False)


def built_in() -> dict[str, type[Component[Any]]]:
    """Return all of them as `<kind> <type>`."""
    kinds = ("source", "channel", "interceptor", "sink")
    return {f"{kind} {cls.type_name}": cls for kind in kinds for cls in components().all(kind)}


# --- how each is exercised

Check = Callable[[type[Any], Path], None]
CARD = Event(b"card 4111 1111 1111 1111 of joe@example.com at 10.1.2.3 \xff", {"client": "10.1.2.3"})


def interceptor(*events: Event, prepare: Callable[[Any], None] = lambda _: None, **properties: str) -> Check:
    return lambda cls, _: conformance.check_interceptor(cls, properties, events=events, prepare=prepare)


def morphline(cls: type[Any], directory: Path) -> None:
    file = directory / "morphline.conf"
    condition, then = '{ contains { client : ["10.1.2.3"] } }', '{ addValues { a : "@{client}" } }'
    commands = f"{{ if {{ conditions : [{condition}], then : [{then}] }} }}"
    file.write_text(f"morphlines : [{{ id : m, commands : [{commands}] }}]")
    interceptor(CARD, morphlineFile=str(file))(cls, directory)


def syslog(kind: socket.SocketKind, port: str = "port", **options: str) -> Check:
    def check(cls: type[Any], _: Path) -> None:
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                taken.listen()
            conformance.check_source(
                cls,
                {"host": "127.0.0.1", port: "0", "keepFields": "none", **options},
                send,
                failing={"host": "127.0.0.1", port: str(taken.getsockname()[1])},
            )

    def send(source: Any, bodies: Sequence[bytes]) -> None:
        with socket.socket(socket.AF_INET, kind) as sender:
            sender.connect(("127.0.0.1", source.port))
            for body in bodies:
                sender.sendall(b"<134>Oct 11 22:14:15 web-1 " + body + b"\n" * (kind == socket.SOCK_STREAM))

    return check


def avro_source(cls: type[Any], _: Path) -> None:
    def send(source: Any, bodies: Sequence[bytes]) -> None:
        events = encode(Batch.of(Event(body) for body in bodies)).to_pylist()
        client = clients.enter_context(socket.create_connection(("127.0.0.1", source.port)))
        client.sendall(
            encode_frame(1, [encode_request_head(first=True, message="appendBatch"), encode_array(events)])
        )

    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as clients:
        local = {"bind": "127.0.0.1", "port": "0"}
        conformance.check_source(
            cls, local, send, redelivers=False, failing=local | {"port": str(taken.getsockname()[1])}
        )


def thrift_source(cls: type[Any], _: Path) -> None:
    def send(source: Any, bodies: Sequence[bytes]) -> None:
        protocol = PROTOCOLS["compact"]
        events = encode(Batch.of(Event(body) for body in bodies), protocol.layout).to_pylist()
        client = clients.enter_context(socket.create_connection(("127.0.0.1", source.port)))
        client.sendall(thriftrpc.encode_frame(protocol.encode_call(1, events)))

    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as clients:
        local = {"bind": "127.0.0.1", "port": "0"}
        conformance.check_source(
            cls, local, send, redelivers=False, failing=local | {"port": str(taken.getsockname()[1])}
        )


def log4j(cls: type[Any], _: Path) -> None:
    def send(source: Any, bodies: Sequence[bytes]) -> None:
        # A body that is no JSON, such as bytes that are not UTF-8, is kept unchanged.
        with socket.create_connection(("127.0.0.1", source.port)) as client:
            client.sendall(b"".join(body + b"\n" for body in bodies))

    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = {"bind": "127.0.0.1", "port": "0"}
        conformance.check_source(cls, local, send, failing=local | {"port": str(taken.getsockname()[1])})


def http_source(cls: type[Any], _: Path) -> None:
    def send(source: Any, bodies: Sequence[bytes]) -> None:
        def post(body: bytes) -> None:
            client = http.client.HTTPConnection("127.0.0.1", source.port)
            client.request("POST", "/", body)
            client.getresponse().read()
            client.close()

        # Answered only when stored, which the check does once enough have come.
        senders.extend(threading.Thread(target=post, args=(body,), daemon=True) for body in bodies)
        for sender in senders[-len(bodies) :]:
            sender.start()

    senders: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = {"bind": "127.0.0.1", "port": "0", "handler": "blob"}
        conformance.check_source(
            cls, local, send, redelivers=False, failing=local | {"port": str(taken.getsockname()[1])}
        )


def rpc_sink(source: type[Running]) -> Check:
    def check(cls: type[Any], _: Path) -> None:
        with source() as running:
            there = {"hostname": "127.0.0.1", "port": str(running.source.port)}
            missing = there | {"ssl": "true", "truststore": "/none"}
            conformance.check_sink(cls, there, lambda: [event.body for event in running.events], failing=missing)

    return check


def http_sink(cls: type[Any], _: Path) -> None:
    with HttpServer() as server:
        failing = {"endpoint": "https://127.0.0.1:1/", "truststore": "/none"}
        conformance.check_sink(cls, {"endpoint": server.url}, lambda: server.bodies, failing=failing)


def exec_source(cls: type[Any], directory: Path) -> None:
    log = directory / "app.log"
    log.touch()

    def send(source: Any, bodies: Sequence[bytes]) -> None:
        with log.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    failing = {"command": "/no/such/program"}
    conformance.check_source(cls, {"command": f"tail -n +1 -F {log}"}, send, failing=failing)


def netcat(cls: type[Any], _: Path) -> None:
    def send(source: Any, bodies: Sequence[bytes]) -> None:
        with socket.create_connection(("127.0.0.1", source.port)) as sender, sender.makefile("rb") as answers:
            sender.sendall(b"".join(body + b"\n" for body in bodies))
            assert [answers.readline() for _ in bodies] == [b"OK\n"] * len(bodies)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        properties = {"bind": "127.0.0.1", "max-line-length": "100000"}
        failing = {**properties, "port": str(taken.getsockname()[1])}
        conformance.check_source(cls, {**properties, "port": "0"}, send, redelivers=False, failing=failing)


def netcatudp(cls: type[Any], _: Path) -> None:
    def send(source: Any, bodies: Sequence[bytes]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for body in bodies:
                sender.sendto(body + b"\n", ("127.0.0.1", source.port))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        there = {"bind": "127.0.0.1", "port": "0"}
        conformance.check_source(cls, there, send, failing={**there, "port": str(taken.getsockname()[1])})


def taildir(cls: type[Any], directory: Path) -> None:
    log = directory / "app.log"
    log.touch()
    blocked = directory / "a file"
    blocked.touch()
    properties = {
        "filegroups": "g",
        "filegroups.g": str(log),
        "positionFile": str(directory / "positions.json"),
    }

    def send(source: Any, bodies: Sequence[bytes]) -> None:
        with log.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    failing = properties | {"positionFile": str(blocked / "positions.json")}
    conformance.check_source(cls, properties, send, failing=failing)


def spooldir(cls: type[Any], directory: Path) -> None:
    spool = directory / "spool"
    spool.mkdir()
    numbers = itertools.count()

    def send(source: Any, bodies: Sequence[bytes]) -> None:
        written = directory / "written"
        written.write_bytes(b"".join(body + b"\n" for body in bodies))
        written.rename(spool / str(next(numbers)))

    charsets = {"inputCharset": "latin-1", "deserializer.outputCharset": "latin-1"}
    properties = {"spoolDir": str(spool), "pollDelay": "20", **charsets}
    failing = properties | {"spoolDir": str(directory / "nowhere")}
    conformance.check_source(cls, properties, send, failing=failing)


def file_roll(cls: type[Any], directory: Path) -> None:
    blocked = directory / "a file"
    blocked.touch()
    out = directory / "out"

    def delivered() -> Iterable[bytes]:
        return itertools.chain.from_iterable(file.read_bytes().splitlines() for file in out.iterdir())

    conformance.check_sink(
        cls, {"sink.directory": str(out)}, delivered, failing={"sink.directory": str(blocked / "out")}
    )


def logger(cls: type[Any], _: Path) -> None:
    logging.getLogger(cls.__module__).setLevel(logging.INFO)
    conformance.check_sink(cls, {"maxBytesToLog": "1000"})


def spark(cls: type[Any], _: Path) -> None:
    path = str(REPOSITORY / "tests/processors")
    texts = {"processor": "logins:orders", "processor.path": path, "output.a.type": "console"}
    conformance.check_component(cls, texts)  # its work needs Spark: tests/sinks/test_spark.py


def file_channel(cls: type[Any], directory: Path) -> None:
    conformance.check_channel(cls, {"checkpointDir": str(directory / "c"), "dataDirs": str(directory / "d")})


HERE: dict[str, Check] = {
    "source exec": exec_source,
    "source netcat": netcat,
    "source netcatudp": netcatudp,
    "source stress": lambda cls, _: conformance.check_component(cls, {"maxTotalEvents": "10"}),
    "source seq": lambda cls, _: conformance.check_component(cls, {"totalEvents": "10"}),
    "source avro": avro_source,
    "source thrift": thrift_source,
    "source http": http_source,
    "source log4j": log4j,
    "source multiport_syslogtcp": syslog(socket.SOCK_STREAM, "ports", **{"charset.default": "latin-1"}),
    "source spooldir": spooldir,
    "source syslogtcp": syslog(socket.SOCK_STREAM),
    "source syslogudp": syslog(socket.SOCK_DGRAM),
    "source taildir": taildir,
    "channel SPILLABLEMEMORY": file_channel,
    "channel file": file_channel,
    "channel memory": lambda cls, _: conformance.check_channel(cls, {}),
    "interceptor filter": interceptor(CARD, match="card|line 1", drop="true"),
    "interceptor host": interceptor(useIP="false"),
    "interceptor json": interceptor(
        Event(b'{"a": "x", "b": {"c": 1.50}}', {"d": "kept"}),
        Event(b'{"a": null, "d": [1]}', {"a": "old"}),
        **{"fields": "a b.c", "fields.e": "d", "onError": "drop"},
    ),
    "interceptor mask": interceptor(CARD, patterns="card email ipv4", on="body client"),
    "interceptor morphline": morphline,
    "interceptor regex_extractor": interceptor(
        CARD,
        Event(b"line 2020-02-30 of \xff", {"word": "before"}),
        **{
            "regex": r"(line|card) ([0-9-]+)(x)?",
            "serializers": "s1 s2 s3",
            "serializers.s1.name": "word",
            "serializers.s2.name": "time",
            "serializers.s2.type": "org.apache.flume.interceptor.RegexExtractorInterceptorMillisSerializer",
            "serializers.s2.pattern": "yyyy-MM-dd",
            "serializers.s3.name": "client",
        },
    ),
    "interceptor regex_filter": interceptor(CARD, regex="card|line 1", excludeEvents="true"),
    "interceptor remove_header": interceptor(CARD, withName="client", matching="h.*1"),
    "interceptor sample": interceptor(CARD, rate="0.5", by="client"),
    "interceptor search_replace": interceptor(CARD, searchPattern="(1+)|line", replaceString="<$1>"),
    "interceptor static": interceptor(key="host", value="x"),
    "interceptor timestamp": interceptor(prepare=lambda timestamp: setattr(timestamp, "clock", lambda: 1.5)),
    "interceptor uuid": interceptor(prepare=lambda uuid: setattr(uuid, "random", bytes)),
    "sink avro": rpc_sink(Running),
    "sink thrift": rpc_sink(RunningThrift),
    "sink file_roll": file_roll,
    "sink http": http_sink,
    "sink logger": logger,
    "sink spark": spark,
    "sink null": lambda cls, _: conformance.check_sink(cls, {}),
}


MARKED = (
    "test_conformance",
    "test_elasticsearch_sink",
    "test_hbase_sink",
    "test_hdfs_sink",
    "test_kafka_ends",
    "test_solr_sink",
)
"""Modules of tests with `exercises`."""


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("name", sorted(HERE))
def test_conformance(name: str, tmp_path: Path) -> None:
    HERE[name](built_in()[name], tmp_path)


def test_each_component_is_exercised_here_or_on_servers() -> None:
    for module in MARKED:
        importlib.import_module(f"tests.system.{module}")
    assert set(HERE) | ON_SERVERS == set(built_in())

"""Headers beyond Flume's usual ones: sender, original timestamp, fields of RFC 5424, custom formats."""

import socket
import threading
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.sources.connections import unmap_ipv4
from flafka.sources.syslog import MultiportSyslogTcp, SyslogTcp, SyslogUdp, hostnames
from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.framing import SyslogFramer
from flafka.sources.syslog.hostnames import HostNames
from flafka.sources.syslog.parser import parse
from tests.fixtures.examples import examples
from tests.sources.syslog_running import Running

NOW = datetime(2024, 6, 15, 12, tzinfo=UTC).timestamp()


def make(cls=SyslogTcp, **options):
    properties = {name.replace("__", "."): str(value) for name, value in options.items()}
    properties |= {"ports" if cls is MultiportSyslogTcp else "port": "0", "host": "127.0.0.1", "timeZone": "UTC"}
    config, problems = cls.config_class.parse(properties)
    assert not problems, problems
    source = cls(config, "s1")
    source._decoder.clock = lambda: NOW
    return source


def events_of(source, *frames):
    """Return the source's events of these frames, without sockets."""
    data = b"".join(frame + b"\n" for frame in frames)
    source._accumulator.free_space[: len(data)] = data
    source._accumulator.add(*SyslogFramer(2500).cut(source._accumulator.free_space[: len(data)]))
    return [event for batch in source._flush() for event in batch]


# --- the sender


@pytest.mark.parametrize("cls", [SyslogTcp, SyslogUdp])
def test_the_sender_in_headers(cls):
    source = make(cls, clientIPHeader="ip", clientHostnameHeader="name")
    kind = socket.SOCK_STREAM if cls is SyslogTcp else socket.SOCK_DGRAM
    with Running(source) as running, socket.socket(socket.AF_INET, kind) as first:
        with socket.socket(socket.AF_INET, kind) as second:
            second.bind(("127.0.0.2", 0))
            for n, sender in enumerate((first, second)):
                sender.connect(("127.0.0.1", source.port))
                sender.sendall(b"<13>%d, begun" % n if n else b"<13>0\n\n")
        events = running.wait_for(2)
    by_body = {event.body[4:5]: event.headers for event in events}
    assert by_body[b"0"]["ip"] == "127.0.0.1"
    assert by_body[b"1"]["ip"] == "127.0.0.2"
    assert by_body[b"0"]["name"] == socket.getnameinfo(("127.0.0.1", 0), 0)[0]


def test_an_address_without_a_name_stands_for_itself(monkeypatch):
    def lookup(address, flags):
        raise socket.gaierror("no name")

    monkeypatch.setattr(hostnames.socket, "getnameinfo", lookup)
    assert HostNames().resolve(["192.0.2.1", "192.0.2.1"]) == {"192.0.2.1": "192.0.2.1"}


@pytest.mark.usefixtures("lengthy")
def test_slow_lookups_block_only_briefly_and_are_bounded(monkeypatch):
    answer, lookups = threading.Event(), []

    def lookup(address, flags):
        lookups.append(address)
        answer.wait(20)
        return f"name-of-{address[0]}", ""

    monkeypatch.setattr(hostnames.socket, "getnameinfo", lookup)
    monkeypatch.setattr(HostNames, "_TIMEOUT_SECONDS", 0.05)
    names = HostNames()
    addresses = [f"10.0.{i // 256}.{i % 256}" for i in range(5000)]
    assert names.resolve(addresses) == {address: address for address in addresses}
    assert len(names._cache) <= HostNames._CACHE_SIZE // 16
    assert len(lookups) <= HostNames._THREADS
    answer.set()
    monkeypatch.setattr(HostNames, "_TIMEOUT_SECONDS", 20)
    assert names.resolve(addresses[:10]) == {address: f"name-of-{address}" for address in addresses[:10]}
    names.close()


def test_ipv4_by_way_of_ipv6_is_ipv4():
    assert [unmap_ipv4(address) for address in ("::ffff:10.1.2.3", "10.1.2.3", "fe80::1", "::1")] == [
        "10.1.2.3", "10.1.2.3", "fe80::1", "::1",
    ]  # fmt: skip


# --- RFC 5424


NAME = st.text("abcXYZ019@._-", min_size=1, max_size=12)
VALUE = st.text(max_size=20).filter(lambda text: "\n" not in text)
ELEMENTS = st.dictionaries(NAME, st.dictionaries(NAME, VALUE, max_size=4), max_size=4)


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(NAME, ELEMENTS, VALUE), min_size=1, max_size=20))
def test_structured_data_makes_a_round_trip(messages):
    frames = []
    for app, elements, text in messages:
        data = "-"
        if elements:
            data = "".join(
                f"[{name}{''.join(f' {key}={quoted(value)}' for key, value in parameters.items())}]"
                for name, parameters in elements.items()
            )
        frames.append(f"<13>1 - h {app} - - {data} m{text}".encode())
    batch = parse(pa.array(frames, pa.binary()), NOW, ParserOptions(structured=True))
    batch.records.validate(full=True)
    for event, (app, elements, text) in zip(batch, messages, strict=True):
        assert event.body == f"m{text}".encode().rstrip(b"\0")  # NULs end a message
        assert event.headers["appName"] == app if app != "-" else "appName" not in event.headers
        expected = {f"sd.{name}": "" for name, parameters in elements.items() if not parameters}
        for name, parameters in elements.items():
            for key, value in parameters.items():
                header = f"sd.{name}.{key}"  # names with dots may collide
                expected[header] = f"{expected[header]},{value}" if header in expected else value
        if len(expected) == sum(max(1, len(parameters)) for parameters in elements.values()):
            assert {k: v for k, v in event.headers.items() if k.startswith("sd.")} == expected


def quoted(value):
    for special in '\\"]':
        value = value.replace(special, "\\" + special)
    return f'"{value}"'


def test_senders_choose_many_names():
    frames = [b'<13>1 - h app - - [e%d a="%d"] text' % (i, i) for i in range(500)]
    events = events_of(make(rfc5424Headers="true"), *frames)
    for i, event in enumerate(events):
        assert {k: v for k, v in event.headers.items() if k.startswith("sd.")} == {f"sd.e{i}.a": str(i)}


# --- formats


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format.regex": "(a"}, "cannot be read"),
        ({"format.regex": "(a)(b)"}, "needs 5 groups"),
        ({"format.search": "a"}, "regex: is required"),
        ({"format.regex": "()()()()()", "format.dateFromat": "yyyy"}, "did you mean 'dateFormat'"),
        ({"format.regex": "()()()()()", "format.dateFormat": "QQ"}, "not supported"),
        ({"keepFields": "hostnam"}, "not 'hostnam'"),
        ({"clientIPHeader": ""}, "at least 1"),
    ],
)
@pytest.mark.parametrize("cls", [SyslogTcp, SyslogUdp])
def test_wrong_options_are_refused_with_advice(cls, options, reason):
    config, problems = cls.config_class.parse({"host": "127.0.0.1", "port": "0"} | options)
    assert config is None
    assert reason in " ".join(f"{p.option}: {p.message}" for p in problems)


# --- any split of the stream


@settings(max_examples=examples(60))
@given(st.data())
def test_events_are_the_same_for_any_pieces_of_a_stream(data):
    counted = data.draw(st.booleans())
    texts = data.draw(
        st.lists(st.binary(max_size=60).map(lambda b: b"<13>1 - h a p m - " + b), min_size=1, max_size=15)
    )
    if counted:
        stream = b"".join(b"%d %s" % (len(text), text) for text in texts)
    else:
        stream = b"".join(text.replace(b"\n", b"") + b"\n" for text in texts)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    cuts = list(zip([0, *places], [*places, len(stream)], strict=True))

    def events(pieces):
        source, framer, buffered = make(rfc5424Headers="true", rawTimestampHeader="sent"), SyslogFramer(50), b""
        for piece in pieces:
            arrived = buffered + piece
            source._accumulator.free_space[: len(arrived)] = arrived
            buffered = arrived[source._accumulator.add(*framer.cut(source._accumulator.free_space[: len(arrived)])) :]
        if buffered:
            source._accumulator.free_space[: len(buffered)] = buffered
            source._accumulator.add(np.array([len(buffered)]), np.array([framer.final_mark()], np.uint8))
        return [event for batch in source._flush() for event in batch]

    assert events([stream[a:b] for a, b in cuts]) == events([stream])

"""The HDFS sink: options, paths, rolls, and the commit record against every lost reply and crash."""

from __future__ import annotations

import errno
import io
import pickle
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import numpy as np
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import (
    Batch,
    Conflict,
    Event,
    FlafkaError,
    Origin,
    PartitionClaim,
    Receipt,
    Rejected,
    Resumed,
    Retry,
    conformance,
)
from sinks.hdfs import HdfsConfig, HdfsSink
from sinks.hdfs import staging as staging_module
from sinks.hdfs.chain import KEEP_MS, Manifest, safe_name
from tests.fixtures.examples import examples, some
from tests.sinks.fake_webhdfs import DATANODE, NAMENODE, STANDBY, Crash, FakeWebHdfs, error

CLAIM = PartitionClaim("cluster", "app.logs", "tOp1c-id", "flume", 0, 3)
OWN = CLAIM._replace(record="hdfs:/logs/.flafka")
"""As the sink answers it."""
NEVER = {"hdfs.rollInterval": "0", "hdfs.rollSize": "0", "hdfs.rollCount": "0"}
REQUIRED = {"hdfs.path": "/logs", "hdfs.webhdfs": NAMENODE, "hdfs.fileType": "DataStream"}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWebHdfs:
    fake = FakeWebHdfs()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def sinks(tmp_path: Path) -> Iterator[Any]:
    """Makes open sinks, and closes them."""
    made: list[HdfsSink] = []

    def make(**options: str) -> HdfsSink:
        made.append(open_sink(tmp_path, **options))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def configured(**options: str) -> HdfsConfig:
    properties = {**REQUIRED, **NEVER, "hdfs.threadsPoolSize": "1", **options}
    config, problems = HdfsConfig.parse(properties)
    assert config is not None, problems
    assert not problems
    return config


def open_sink(directory: Path, **options: str) -> HdfsSink:
    sink = HdfsSink(configured(**{"hdfs.stagingDir": str(directory), **options}), "k1")
    sink.open()
    assert sink._hdfs is not None
    sink._hdfs._client.retry_delay = 0
    return sink


def records(start: int, end: int, **headers: str) -> Batch:
    """One event a record, its body its offset; `{}` in a header is the offset modulo 2."""
    events = [Event(b"%d" % n, {k: v.format(n % 2) for k, v in headers.items()}) for n in range(start, end)]
    count = end - start
    origin = Origin(
        CLAIM.topic, CLAIM.partition, np.arange(start, end), np.zeros(count, np.int32), np.zeros(count, int)
    )
    return Batch.of(events, origin)


def delivered(fake: FakeWebHdfs) -> Counter[int]:
    """How often each record can be seen."""
    return Counter(int(line) for content in fake.visible().values() for line in content.split())


def manifests(fake: FakeWebHdfs) -> list[Manifest]:
    """Those of records: neither where a chain begins, nor seals."""
    return [manifest for manifest in whole_record(fake).values() if manifest.start < manifest.end]


def whole_record(fake: FakeWebHdfs) -> dict[str, Manifest]:
    chain = sorted(path for path in fake.files if "/.flafka/chain/" in path)
    return {path: msgspec.json.decode(fake.files[path], type=Manifest) for path in chain}


def write_and_commit(sink: HdfsSink, start: int, end: int, **headers: str) -> Receipt:
    sink.write(records(start, end, **headers))
    receipt = sink.stage(OWN, start, end)
    sink.commit(receipt)
    return receipt


# --- options


@pytest.mark.parametrize(
    ("properties", "option", "says"),
    [
        ({"hdfs.fileType": "Avro"}, "hdfs.fileType", "one of SequenceFile, DataStream, CompressedStream"),
        ({"hdfs.fileType": "parquet"}, "hdfs.fileType", "hdfs.fileType = DataStream and serializer = PARQUET"),
        ({"hdfs.writeFormat": "com.acme.Mine"}, "hdfs.writeFormat", "Writable or Text"),
        ({"hdfs.webhdfs": "http://nn1:9870"}, "hdfs.webhdfs", "must be host:port"),
        ({"hdfs.path": None}, "hdfs.path", "is required"),
        ({"hdfs.path": "hdfs:logs"}, "hdfs.path", "write hdfs:///logs"),
        ({"hdfs.path": "file:/logs"}, "hdfs.path", "file: is not built"),
        ({"hdfs.path": "s3a://bucket/x"}, "hdfs.path", "s3a: is not built"),
        ({"hdfs.path": "webhdfs:///x"}, "hdfs.path", "webhdfs://namenode:9870/x"),
        ({"hdfs.path": "/logs/%c"}, "hdfs.path", "no ':' in names"),
        ({"hdfs.path": "/logs/%H:%M"}, "hdfs.path", "no ':' in names"),
        ({"hdfs.path": "/logs/%{a}/../x"}, "hdfs.path", "'..' is reserved on HDFS"),
        ({"hdfs.path": "/logs/%[host]"}, "hdfs.path", "none of %[localhost]"),
        ({"hdfs.filePrefix": "%H:"}, "hdfs.filePrefix", "no ':' in names"),
        ({"hdfs.codeC": "gzip"}, "hdfs.codeC", "remove it, or write hdfs.fileType = CompressedStream"),
        ({"hdfs.fileType": "CompressedStream"}, "hdfs.codeC", "add hdfs.codeC = gzip"),
        ({"hdfs.fileType": "compressedStream", "hdfs.codeC": "None"}, "hdfs.codeC", "add hdfs.codeC = gzip"),
        ({"hdfs.fileType": "SequenceFile", "hdfs.codeC": "lzop"}, "hdfs.codeC", "LZO is in neither Hadoop nor"),
        ({"hdfs.fileType": "SequenceFile", "hdfs.codeC": "snapy"}, "hdfs.codeC", "did you mean 'snappy'"),
        (
            {"hdfs.fileType": "CompressedStream", "hdfs.codeC": "gzip", "serializer": "parquet"},
            "serializer",
            "name the compression with serializer.compressionCodec",
        ),
        ({"serializer": "avro_evnt"}, "serializer", "did you mean 'AVRO_EVENT'"),
        ({"serializer": "com.acme.Mine$Builder"}, "serializer", "com.acme.Mine$Builder is a Java class"),
        (
            {"serializer": "avro_event", "serializer.compressionCodec": "lzo"},
            "serializer.compressionCodec",
            "one of null, deflate, snappy, bzip2, xz, zstandard for AVRO_EVENT",
        ),
        ({"hdfs.timeZone": "Europe/Pariss"}, "hdfs.timeZone", "did you mean 'Europe/Paris'"),
        (
            {"hdfs.round": "true", "hdfs.roundUnit": "hour", "hdfs.roundValue": "25"},
            "hdfs.roundValue",
            "1 to 24 hours",
        ),
        ({"hdfs.batchSize": "0"}, "hdfs.batchSize", "greater than 0"),
        ({"hdfs.rollIntervall": "5"}, "hdfs.rollIntervall", "did you mean 'hdfs.rollInterval'"),
        ({"hdfs.kerberosPrincipal": "x"}, "hdfs.kerberosPrincipal", "not built yet"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_write(
    properties: dict[str, str | None], option: str, says: str
) -> None:
    given_ = {k: v for k, v in {**REQUIRED, **properties}.items() if v is not None}
    _, problems = HdfsConfig.parse(given_)
    assert [p.option for p in problems] == [option]
    assert says in problems[0].message


@pytest.mark.parametrize(
    ("properties", "cautions"),
    [
        ({}, {}),
        ({"hdfs.fileType": "SequenceFile"}, {}),
        (
            {"hdfs.fileType": "SequenceFile", "serializer": "avro_event", "serializer.compressionCodec": "snappy"},
            {"serializer": "write hdfs.fileType = DataStream", "serializer.compressionCodec": "DataStream"},
        ),
        ({"hdfs.writeFormat": "Text"}, {"hdfs.writeFormat": "has no effect with DataStream"}),
        ({"hdfs.path": "hdfs:///logs"}, {}),
        (
            {"serializer.compressionCodec": "snappy"},
            {"serializer.compressionCodec": "has no effect with serializer TEXT"},
        ),
    ],
)
def test_what_has_no_effect_is_told(properties: dict[str, str], cautions: dict[str, str]) -> None:
    config = configured(**properties)
    found = {caution.option: caution.message for caution in config.cautions()}
    assert found.keys() == cautions.keys()
    assert all(cautions[name] in message for name, message in found.items())


@pytest.mark.parametrize(
    ("path", "webhdfs", "hosts", "scheme", "root"),
    [
        ("hdfs://nn:8020/logs/%Y/%m", "a:1,b", ["a:1", "b:9870"], "http", "/logs"),
        ("webhdfs://nn/logs/app-%{host}/x", None, ["nn:9870"], "http", "/logs"),
        ("swebhdfs://nn/logs/", None, ["nn:9871"], "https", "/logs"),
        ("/logs", "https://nn,https://mm:1", ["nn:9871", "mm:1"], "https", "/logs"),
        ("/logs//app", "nn:9870", ["nn:9870"], "http", "/logs//app"),
        ("/%{host}", "nn:9870", ["nn:9870"], "http", "/"),
    ],
)
def test_the_path_names_servers_and_a_fixed_part(
    path: str, webhdfs: str | None, hosts: list[str], scheme: str, root: str
) -> None:
    options = {"hdfs.path": path, **({"hdfs.webhdfs": webhdfs} if webhdfs else {})}
    config, _ = HdfsConfig.parse({"hdfs.fileType": "DataStream", **options})
    assert config is not None
    assert config.location[:2] == (scheme, hosts)
    assert HdfsSink(config).root == root.replace("//", "/")


def test_limits_below_zero_are_none_as_in_flume() -> None:
    names = ("hdfs.rollInterval", "hdfs.rollSize", "hdfs.rollCount", "hdfs.idleTimeout", "hdfs.callTimeout")
    config = configured(**dict.fromkeys(names, "-1"), **{"hdfs.threadsPoolSize": "1000"})
    assert (config.roll_interval, config.roll_size, config.roll_count, config.idle_timeout) == (0, 0, 0, 0)
    assert (config.call_timeout, config.threads) == (0, 1000)


def test_without_a_timeout_a_call_waits_as_long_as_it_takes(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.callTimeout": "0"})
    write_and_commit(sink, 0, 3)
    assert delivered(fake) == Counter(range(3))


def test_an_unknown_rounding_unit_rounds_nothing_and_says_so(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
    sink = sinks(**{"hdfs.round": "true", "hdfs.roundUnit": "Day", "hdfs.path": "/logs/%S", "hdfs.timeZone": "UTC"})
    assert "times are not rounded" in caplog.text
    write_and_commit(sink, 0, 1, timestamp="1704157445006")
    assert [path.split("/")[2] for path in fake.visible()] == ["05"]


def test_conformance(fake: FakeWebHdfs, tmp_path: Path) -> None:
    properties = {**REQUIRED, **NEVER, "hdfs.path": "/logs/%{host}", "hdfs.stagingDir": str(tmp_path)}
    (tmp_path / "file").write_bytes(b"")
    conformance.check_sink(
        HdfsSink,
        properties,
        delivered=lambda: [line for content in fake.visible().values() for line in content.splitlines()],
        failing={**properties, "hdfs.stagingDir": str(tmp_path / "file")},
    )


# --- files


def test_files_appear_whole_at_the_commit_and_not_before(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}", "hdfs.filePrefix": "web", "hdfs.fileSuffix": ".log"})
    assert sink.resume(CLAIM, 40).position == 40
    sink.write(records(40, 43, host="h{}"))
    sink.write(records(43, 44, host="h{}"))
    receipt = pickle.loads(pickle.dumps(sink.stage(OWN, 40, 44)))
    assert receipt.events == 4
    assert not fake.visible()
    sink.commit(receipt)
    found = fake.visible()
    assert sorted(re.sub("[0-9a-f]{8}[.]log", "#", path) for path in found) == [
        "/logs/h0/web.app.logs-3-0000000040-0000000043-#",
        "/logs/h1/web.app.logs-3-0000000040-0000000043-#",
    ]
    assert sorted(found.values()) == [b"40\n42\n", b"41\n43\n"]
    assert not [path for path in fake.files if "/tmp/" in path]


def test_another_process_may_commit_what_one_staged(sinks: Any, fake: FakeWebHdfs) -> None:
    executor, driver = sinks(), sinks()
    assert driver.resume(CLAIM, None).position is None
    executor.write(records(0, 5))
    driver.commit(pickle.loads(pickle.dumps(executor.stage(OWN, 0, 5))))
    executor.write(records(5, 9))
    driver.commit(executor.stage(OWN, 5, 9))
    assert delivered(fake) == Counter(range(9))


def test_without_newline_and_with_empty_bodies(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"serializer.appendNewline": "false", "hdfs.path": "/logs/%{host}"})
    origin = Origin.of_record(CLAIM.topic, CLAIM.partition, 0, 0, 4)
    bodies = [
        Event(b"", {"host": "a"}),
        Event(b"\xff\n", {"host": "b"}),
        Event(b"", {"host": "b"}),
        Event(b"x", {"host": "b"}),
    ]
    sink.write(Batch.of(bodies, origin))
    sink.commit(sink.stage(OWN, 0, 1))
    assert sorted(fake.visible().values()) == [b"", b"\xff\nx"]


def test_a_range_of_dropped_events_is_committed_without_files(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.commit(sink.stage(OWN, 0, 7))
    assert sinks().resume(CLAIM, None).position == 7
    assert not fake.visible()


def test_two_groups_and_a_recreated_topic_keep_apart(sinks: Any, fake: FakeWebHdfs) -> None:
    for claim in (CLAIM, CLAIM._replace(group="other"), CLAIM._replace(topic_id="new"), CLAIM._replace(epoch=1)):
        sink = sinks()
        found = sink.resume(claim, None)
        assert (found.claim, found.position) == (claim._replace(record=OWN.record), None)
        sink.write(records(0, 3))
        sink.commit(sink.stage(found.claim, 0, 3))
    assert delivered(fake) == Counter({0: 4, 1: 4, 2: 4})
    assert len(fake.visible()) == 4


@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True))
def test_names_in_the_state_directory_are_safe_and_distinct(texts: list[str]) -> None:
    first, second = map(safe_name, texts)
    assert first != second
    assert re.fullmatch(r"[A-Za-z0-9_~=-][A-Za-z0-9_.~=-]{0,254}", first)


# --- formats (tests/system has Hadoop read them)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, ""),
        ({"serializer": "avro_event"}, ".avro"),
        ({"serializer": "json"}, ".json"),
        ({"serializer": "parquet"}, ".parquet"),
        ({"serializer": "parquet", "hdfs.fileSuffix": ".pq"}, ".pq"),
        ({"hdfs.fileType": "CompressedStream", "hdfs.codeC": "gzip"}, ".gz"),
        ({"hdfs.fileType": "CompressedStream", "hdfs.codeC": "gzip", "serializer": "json"}, ".json.gz"),
        ({"hdfs.fileType": "SequenceFile"}, ""),
        ({"hdfs.fileType": "SequenceFile", "hdfs.codeC": "org.apache.hadoop.io.compress.Lz4Codec"}, ".lz4"),
        ({"hdfs.fileType": "SequenceFile", "hdfs.codeC": "BZip2Codec", "hdfs.fileSuffix": ".seq"}, ".seq"),
    ],
)
def test_names_end_as_the_format_is_called_and_nothing_is_lost(
    sinks: Any, fake: FakeWebHdfs, options: dict[str, str], end: str
) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}", **options})
    sink.write(records(0, 6, host="h{}"))
    receipt = pickle.loads(pickle.dumps(sink.stage(OWN, 0, 6)))
    sink.commit(receipt)
    assert len(fake.visible()) == 2
    assert all(re.search(f"-[0-9a-f]{{8}}{re.escape(end)}$", path) for path in fake.visible())
    assert [file.length for file in receipt.staged.files] == [len(data) for data in fake.visible().values()]
    assert all(fake.visible().values())


def test_each_schema_has_files_of_its_own_and_an_event_without_one_is_rejected(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(serializer="org.apache.flume.sink.hdfs.AvroEventSerializer$Builder")
    schemas = ['"string"', ' "bytes" ', None, "{", '"string"']
    events = [Event(b"\x02%d" % n, {"flume.avro.schema.literal": s} if s else {}) for n, s in enumerate(schemas)]
    batch = Batch.of(events, Origin.of_record(CLAIM.topic, CLAIM.partition, 0, 0, len(events)))
    with pytest.raises(Rejected) as rejected:
        sink.write(batch)
    reasons = rejected.value.reasons
    assert set(reasons) == {batch.id(2), batch.id(3)}
    assert "no serializer.schemaURL" in reasons[batch.id(2)]
    assert "is no Avro schema" in reasons[batch.id(3)]
    sink.commit(sink.stage(OWN, 0, 1))
    files = [list(fastavro.reader(io.BytesIO(data))) for data in fake.visible().values()]
    assert sorted(files, key=repr) == [["0", "4"], [b"1"]]


def test_a_schema_of_the_configuration_may_lie_on_hdfs(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"serializer": "AVRO_BODY", "serializer.schemaURL": "hdfs://nn/schemas/x.avsc"})
    with pytest.raises(Retry, match=r"cannot fetch the schema hdfs://nn/schemas/x.avsc: it is not there"):
        sink.write(records(0, 2))
    sink.reset()
    fake.files["/schemas/x.avsc"] = b'{"type": "int"}'
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, 0, 2)
    sink.commit(receipt)
    [data] = [data for path, data in fake.visible().items() if path.startswith("/logs")]
    assert list(fastavro.reader(io.BytesIO(data))) == [24, -25]  # what zigzag makes of "0" and "1"


def test_much_in_memory_makes_files_due(sinks: Any, fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "HELD_BYTES", 100)
    sink = sinks(serializer="avro_event")
    sink.write(records(0, 5))
    assert sink.due() == set()
    sink.write(records(5, 60))
    assert sink.due() == {CLAIM.partition}


# --- rolls


def test_what_makes_files_due(sinks: Any, fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    def due(option: str, value: int, events: int = 3, later: float = 0, **headers: str) -> bool:
        sink = sinks(**{"hdfs.path": "/logs/%{host}", option: str(value)})
        now = 100.0
        sink.clock = sink._staging._clock = lambda: now
        assert sink.due() == set()
        sink.write(records(0, events, **headers))
        now += later
        due = sink.due()
        assert due <= {CLAIM.partition}
        if due:
            sink.stage(OWN, 0, events)
            assert sink.due() == set()
        return bool(due)

    assert not due("hdfs.rollCount", 0, 10_000, later=1e9)
    assert due("hdfs.rollCount", 3)
    assert not due("hdfs.rollCount", 4)
    assert not due("hdfs.rollCount", 3, host="h{}")  # two files, of two and of one
    assert due("hdfs.rollSize", 3)  # of bodies, as in Flume
    assert not due("hdfs.rollSize", 4)
    assert due("hdfs.rollInterval", 30, later=30)
    assert not due("hdfs.rollInterval", 30, later=29)
    assert due("hdfs.idleTimeout", 5, later=5)
    assert not due("hdfs.idleTimeout", 5, later=4)
    assert due("hdfs.maxOpenFiles", 1, host="h{}")
    assert not due("hdfs.maxOpenFiles", 2, host="h{}")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1 << 20))
    assert due("hdfs.rollCount", 0)


def test_reset_drops_only_the_partition_it_names(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 2))
    sink.reset(CLAIM.partition + 1)
    assert sink._staging.partitions[CLAIM.partition].events == 2
    sink.reset(CLAIM.partition)
    sink.write(records(7, 8))
    sink.commit(sink.stage(OWN, 7, 8))
    assert delivered(fake) == Counter([7])


# --- paths


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("a/b", "'/'"),
        ("..", "'..'"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("x" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        ("10.0.0.1:514", "':'"),
        (".", "reserved name '.'"),
        (".flafka", "reserved name '.flafka'"),
        (".snapshot", "reserved name '.snapshot'"),
        ("FlumeData.t-0-0000000000-0000000001-12345678", "reserved for this sink's own files"),
    ],
)
def test_a_header_that_makes_no_path_is_rejected_and_the_rest_delivered(
    sinks: Any, fake: FakeWebHdfs, host: str, says: str
) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    events = [
        Event(b"0", {"host": "good"}),
        Event(b"1", {"host": host}),
        Event(b"2", {"host": "good"}),
        Event(b"3", {}),
    ]
    batch = Batch.of(events, Origin.of_record(CLAIM.topic, CLAIM.partition, 9, 0, 4))
    with pytest.raises(Rejected) as rejected:
        sink.write(batch)
    assert list(rejected.value.reasons) == [batch.id(1)]
    assert says in rejected.value.reasons[batch.id(1)]
    sink.commit(sink.stage(OWN, 9, 10))
    assert {path.rpartition("/")[0]: content for path, content in fake.visible().items()} == {
        "/logs/good": b"0\n2\n",
        "/logs": b"3\n",  # as in Flume, a header that is not there leaves nothing
    }


@pytest.mark.parametrize(
    ("timestamp", "says"), [(None, "no header 'timestamp'"), ("soon", "'soon', not a number"), ("9" * 18, None)]
)
def test_an_event_needs_a_time_for_a_path_with_one(
    sinks: Any, fake: FakeWebHdfs, timestamp: str | None, says: str | None
) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%Y-%m", "hdfs.timeZone": "UTC"})
    headers = {} if timestamp is None else {"timestamp": timestamp}
    events = [Event(b"0", {"timestamp": "1704157445006"}), Event(b"1", headers)]
    batch = Batch.of(events, Origin.of_record(CLAIM.topic, CLAIM.partition, 0, 0, 2))
    if says is None:  # far away, but a time
        sink.write(batch)
        return
    with pytest.raises(Rejected) as rejected:
        sink.write(batch)
    assert says in rejected.value.reasons[batch.id(1)]
    sink.commit(sink.stage(OWN, 0, 1))
    assert list(fake.visible().values()) == [b"0\n"]
    assert next(iter(fake.visible())).startswith("/logs/2024-01/")


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=20))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_header_leads_out_of_the_fixed_part(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeWebHdfs()
        fake.install(patch)
        sink = open_sink(tmp_path, **{"hdfs.path": "/logs/%{a}/x%{b}", "hdfs.filePrefix": "%{b}"})
        batch = Batch.of(
            (Event(b"%d" % n, {"a": a, "b": b}) for n, (a, b) in enumerate(pairs)),
            Origin.of_record(CLAIM.topic, CLAIM.partition, 0, 0, len(pairs)),
        )
        rejected = 0
        try:
            sink.write(batch)
        except Rejected as e:
            rejected = len(e.reasons)
        sink.commit(sink.stage(OWN, 0, 1))
        sink.close()
    assert sum(delivered(fake).values()) + rejected == len(pairs)
    for path in fake.visible():
        names = path.split("/")[1:]
        assert names[0] == "logs"
        assert not {"", ".", "..", ".flafka"} & set(names)


# --- the commit record


def deliver(fake: FakeWebHdfs, directory: Path, cuts: list[int], repeat: bool) -> None:
    """What the runner does, with a new sink after each crash; `repeat`: it commits receipts again after failures."""
    sink: HdfsSink | None = None
    position: int | None = None
    receipt: Receipt | None = None
    for _ in range(10):
        try:
            if sink is None:
                receipt, position, sink = None, None, open_sink(directory, **{"hdfs.path": "/logs/%{host}"})
            if position is None:
                position = sink.resume(CLAIM, None).position or 0
            while position < cuts[-1]:
                end = next(cut for cut in cuts if cut > position)
                if receipt is None:
                    sink.write(records(position, end, host="h{}"))
                    receipt = sink.stage(OWN, position, end)
                sink.commit(receipt)
                position, receipt = end, None
            sink.close()
            return
        except Crash:
            sink = None
        except Retry:
            if sink is not None:
                sink.reset()
            receipt = receipt if repeat else None
        except Conflict:
            assert sink is not None
            sink.reset()
            receipt, position = None, sink.resume(CLAIM, position).position
        promised = {n for m in manifests(fake) for n in range(m.start, m.end)}
        assert set(delivered(fake)) <= promised, "something of an uncommitted range can be seen"
    raise AssertionError("did not come to an end")


CUTS = [4, 7]


def calls_of_a_delivery(directory: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeWebHdfs()
        fake.install(patch)
        deliver(fake, directory, CUTS, repeat=False)
        return fake.calls


@pytest.mark.parametrize(
    ("error", "count", "when", "repeat"),
    [
        (requests.ConnectionError, 1, "before", False),
        (requests.ConnectionError, 1, "after", False),
        (requests.ConnectionError, 2, "before", False),
        (requests.ConnectionError, 2, "after", False),
        (requests.ConnectionError, 2, "after", True),
        (requests.ConnectionError, 6, "before", True),
        (Crash, 1, "after", False),
    ],
)
def test_every_call_may_fail(tmp_path: Path, error: type[BaseException], count: int, when: str, repeat: bool) -> None:
    calls = calls_of_a_delivery(tmp_path)
    assert len(calls) >= 30
    for index in some(range(1, len(calls))):
        with pytest.MonkeyPatch.context() as patch:
            fake = FakeWebHdfs()
            fake.install(patch)
            fake.lose(index, count, when, error)
            deliver(fake, tmp_path, CUTS, repeat)
            fake.heal()
            deliver(fake, tmp_path, [*CUTS, 8], repeat)  # and the next owner finds all in order
        assert delivered(fake) == Counter(range(8)), f"call {index}, {calls[index]}"
        chain = manifests(fake)
        assert [m.end for m in chain[:-1]] == [m.start for m in chain[1:]]
        assert not [path for path in fake.files if "/tmp/" in path], "left behind"


OWNERS = 3
ACTION = st.tuples(
    st.integers(0, OWNERS - 1),
    st.sampled_from(["take over", "stage", "commit", "crash"]),
    st.integers(1, 4),
    st.one_of(st.none(), st.tuples(st.integers(0, 25), st.integers(1, 3), st.sampled_from(["before", "after"]))),
)


class RebalanceListener:
    """One agent that believes, rightly or not, that the partition is its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sink: HdfsSink | None = None
        self.position: int | None = None
        self.receipts: list[Receipt] = []

    def crash(self) -> None:
        if self.sink is not None:
            self.sink.close()
        self.__init__(self.directory)  # type: ignore[misc]

    def act(self, action: str, records_: int) -> None:
        if action == "crash":
            self.crash()
            return
        try:
            if self.sink is None:
                self.sink = open_sink(self.directory, **{"hdfs.path": "/logs/%{host}"})
            if action == "take over" or self.position is None:
                self.sink.reset()
                self.receipts, self.position = [], None
                self.position = self.sink.resume(CLAIM, None).position or 0
            elif action == "stage":
                end = self.position + records_
                self.sink.write(records(self.position, end, host="h{}"))
                self.receipts.append(self.sink.stage(OWN, self.position, end))
                self.position = end
            elif self.receipts:
                self.sink.commit(self.receipts[0])
                self.receipts.pop(0)
        except Conflict:
            self.position = None
        except Retry:
            if action != "commit":  # a commit is either repeated, or taken over by someone
                self.position = None


@given(st.lists(ACTION, max_size=40))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_owners_who_do_not_know_of_each_other(tmp_path: Path, actions: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeWebHdfs()
        fake.install(patch)
        owners = [RebalanceListener(tmp_path) for _ in range(OWNERS)]
        for number, action, count, fault in actions:
            if fault is not None:
                fake.lose(len(fake.calls) + fault[0], fault[1], fault[2], requests.ConnectionError)
            owners[number].act(action, count)
            fake.heal()
            promised = {n for m in manifests(fake) for n in range(m.start, m.end)}
            assert set(delivered(fake)) <= promised
        last = RebalanceListener(tmp_path)
        last.act("take over", 0)
        assert delivered(fake) == Counter(range(last.position or 0))
        for owner in (*owners, last):
            owner.crash()


def test_the_group_may_be_ahead_of_the_record(sinks: Any, fake: FakeWebHdfs) -> None:
    first, second = sinks(), sinks()
    first.resume(CLAIM, 0)
    write_and_commit(first, 0, 5)
    assert second.resume(CLAIM, 3).position == 5  # the record is the truth
    assert (
        second.resume(CLAIM, 9).position == 9
    )  # but what another sink of the group delivered is not delivered again
    write_and_commit(second, 9, 12)
    assert [(m.start, m.end, len(m.files)) for m in manifests(fake)] == [(0, 5, 1), (5, 12, 1)]
    first.write(records(5, 9))
    with pytest.raises(Conflict):
        first.commit(first.stage(OWN, 5, 9))
    assert first.resume(CLAIM, 5).position == 12
    assert delivered(fake) == Counter([*range(5), *range(9, 12)])


def test_a_lost_answer_to_the_commit_itself_is_recognised(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 5))
    receipt = sink.stage(OWN, 0, 5)
    lost = iter([True])

    def lose(number: int, op: str) -> None:
        if op == "RENAME" and next(lost, False):
            raise requests.ConnectionError

    fake.after = lose
    sink.commit(receipt)
    assert fake.calls.count("RENAME") == 3  # the lost one, its repetition, and the file's
    assert delivered(fake) == Counter(range(5))


def test_a_start_within_a_committed_range_is_a_conflict(sinks: Any, fake: FakeWebHdfs) -> None:
    first = sinks()
    write_and_commit(first, 0, 5)
    for sink in (first, sinks()):
        sink.write(records(3, 7))
        with pytest.raises(Conflict):
            sink.commit(sink.stage(OWN, 3, 7))
    assert delivered(fake) == Counter(range(5))


def test_a_directory_that_was_removed_is_made_again(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    write_and_commit(sink, 0, 5, host="a")
    sink._hdfs.delete("/logs/a")
    write_and_commit(sink, 5, 7, host="a")
    assert delivered(fake) == Counter([5, 6])
    sink._hdfs.delete("/logs")  # and all records of commits with it
    sink.write(records(7, 9))
    receipt = sink.stage(OWN, 7, 9)
    with pytest.raises(Conflict):
        sink.commit(receipt)
    assert sink.resume(CLAIM, 7).position == 7
    write_and_commit(sink, 7, 9)
    assert delivered(fake) == Counter([7, 8])


@pytest.mark.parametrize("renames", [0, 1])
def test_a_directory_that_is_moved_away_within_a_commit_takes_nothing_with_it(
    sinks: Any, fake: FakeWebHdfs, renames: int
) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    sink.resume(CLAIM, None)
    write_and_commit(sink, 0, 5, host="a")
    sink.write(records(5, 7))
    receipt = sink.stage(OWN, 5, 7)
    seen = 0

    def move(number: int, op: str) -> None:
        nonlocal seen
        if op == "RENAME":
            if seen == renames:
                fake.tree.rename("/logs", "/moved")
            seen += 1

    fake.before = move
    with pytest.raises((Conflict, Retry)):
        sink.commit(receipt)
    fake.heal()
    assert sink.resume(CLAIM, 5).position == 5
    write_and_commit(sink, 5, 7)
    assert delivered(fake) == Counter(range(7))


def test_files_left_by_a_failed_commit_appear_with_the_next(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 5))
    first = sink.stage(OWN, 0, 5)
    sink.write(records(5, 7))
    second = sink.stage(OWN, 5, 7)

    def fail(number: int, op: str) -> None:
        if op == "RENAME" and manifests(fake):
            raise requests.ConnectionError

    fake.before = fail
    with pytest.raises(Retry, match="HDFS is away"):
        sink.commit(first)
    fake.heal()
    sink.commit(second)
    assert delivered(fake) == Counter(range(7))


def test_offsets_that_hold_no_records_are_passed_over(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(CLAIM, 0)
    for start in (0, 6, 12):  # each followed by the mark that ends a transaction
        write_and_commit(sink, start, start + 5)
    assert [(m.start, m.end) for m in manifests(fake)] == [(0, 5), (5, 11), (11, 17)]
    assert len(fake.visible()) == 3
    assert sinks().resume(CLAIM, None).position == 17


def test_old_manifests_go_and_an_owner_that_slept_through_it_loses(sinks: Any, fake: FakeWebHdfs) -> None:
    sleeper, other = sinks(), sinks()
    sleeper.resume(CLAIM, 0)
    write_and_commit(sleeper, 0, 2)
    other.resume(CLAIM, None)
    for start in range(2, 12, 2):
        write_and_commit(other, start, start + 2)
        fake.now += KEEP_MS // 2
    assert [m.start for m in manifests(fake)] == [6, 8, 10]
    sleeper.write(records(2, 4))  # the name of its next manifest is free again
    with pytest.raises(Conflict):
        sleeper.commit(sleeper.stage(OWN, 2, 4))
    assert sleeper.resume(CLAIM, 2).position == 12
    assert delivered(fake) == Counter(range(12))
    fake.now += 10 * KEEP_MS
    assert sinks().resume(CLAIM, None).position == 12, "the newest stays"


def test_uploads_of_others_at_the_end_of_the_chain_stay(sinks: Any, fake: FakeWebHdfs) -> None:
    first, second = sinks(), sinks()
    first.resume(CLAIM, 0)
    write_and_commit(first, 0, 2)
    first.write(records(2, 4))
    receipt = first.stage(OWN, 2, 4)
    assert second.resume(CLAIM, None).position == 2
    first.commit(receipt)
    assert delivered(fake) == Counter(range(4))


def test_a_file_that_was_moved_away_after_delivery_is_not_missed(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
    write_and_commit(sinks(), 0, 2)
    [path] = fake.visible()
    del fake.files[path]
    assert sinks().resume(CLAIM, None).position == 2
    assert f"{path} was delivered" in caplog.text


def test_a_file_in_the_way_is_named(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, 0, 2)
    final = receipt.staged.files[0].final
    fake.files[final] = b"not ours"
    with pytest.raises(Retry, match="exists already"):
        sink.commit(receipt)
    del fake.files[final]
    sink.commit(receipt)
    assert delivered(fake) == Counter(range(2))


def test_a_short_upload_is_noticed(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 2))

    def cut(number: int, op: str) -> None:
        if op == "CREATE data":
            [path] = fake.files
            fake.files[path] = fake.files[path][:-1]

    fake.after = cut
    with pytest.raises(Retry, match="HDFS holds 3 of the 4 bytes sent for /logs/FlumeData"):
        sink.stage(OWN, 0, 2)
    fake.heal()
    assert not manifests(fake)


@pytest.mark.parametrize("content", [b"", b"{", b'{"id": 1}', b'{"version": 9}'])
def test_a_record_that_cannot_be_read_stops_the_sink_loudly(sinks: Any, fake: FakeWebHdfs, content: bytes) -> None:
    write_and_commit(sinks(), 0, 2)
    [path] = [path for path in fake.files if "/chain/" in path]
    if b"version" in content:
        content = fake.files[path].replace(b'"version":1', b'"version":9')
    fake.files[path] = content
    with pytest.raises(FlafkaError, match=re.escape(path)):
        sinks().resume(CLAIM, None)


# --- epochs, moves and notes

LATER = 1_790_000_000_000


def test_a_chain_begins_where_the_group_stood(sinks: Any, fake: FakeWebHdfs) -> None:
    assert sinks().resume(CLAIM, 40).position == 40
    [(path, begin)] = whole_record(fake).items()
    assert (posixpath.basename(path), begin.start, begin.end, begin.files) == ("begin", 40, 40, ())
    assert sinks().resume(CLAIM, None).position == 40, "the group was deleted before anything was committed"
    sink = sinks()
    sink.resume(CLAIM, None)
    write_and_commit(sink, 40, 43)
    assert sinks().resume(CLAIM, None).position == 43


@pytest.mark.parametrize("before", ["committed", "begun", "nothing"])
def test_an_owner_that_sleeps_while_the_group_is_reset_commits_no_more(
    sinks: Any, fake: FakeWebHdfs, before: str
) -> None:
    sleeper, awake = sinks(), sinks()
    if before != "nothing":
        sleeper.resume(CLAIM, 0)
    if before == "committed":
        write_and_commit(sleeper, 0, 3)
    sleeper.write(records(3, 5))
    receipt = sleeper.stage(OWN, 3, 5)
    found = awake.resume(OWN._replace(epoch=LATER), 1)
    assert (found.claim, found.position) == (OWN._replace(epoch=LATER), 1)
    with pytest.raises(Conflict):
        sleeper.commit(receipt)
    awake.write(records(1, 4))
    awake.commit(awake.stage(found.claim, 1, 4))
    again = sleeper.resume(OWN, 3)
    assert (again.claim, again.position) == (found.claim, 4)
    assert delivered(fake) == Counter(range(3) if before == "committed" else ()) + Counter(range(1, 4))


def test_a_group_that_was_deleted_goes_on_by_the_record_of_its_latest_epoch(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(CLAIM, 0)
    write_and_commit(sink, 0, 3)
    found = sink.resume(OWN._replace(epoch=LATER), 1)
    sink.write(records(1, 2))
    sink.commit(sink.stage(found.claim, 1, 2))
    found = sinks().resume(CLAIM, None)
    assert (found.claim.epoch, found.position) == (LATER, 2)


def test_the_record_moves_with_the_path(sinks: Any, fake: FakeWebHdfs) -> None:
    old = sinks()
    old.resume(CLAIM, 0)
    write_and_commit(old, 0, 3)
    old.write(records(3, 5))
    receipt = old.stage(OWN, 3, 5)
    new = sinks(**{"hdfs.path": "/other"})
    found = new.resume(OWN, 2)
    assert (found.claim.record, found.position) == ("hdfs:/other/.flafka", 3)
    assert found.claim.epoch > CLAIM.epoch
    with pytest.raises(Conflict):
        old.commit(receipt)
    new.write(records(3, 6))
    new.commit(new.stage(found.claim, 3, 6))
    # A crash before the group was told: the next owner comes by way of the old record.
    again = sinks(**{"hdfs.path": "/other"}).resume(OWN, 3)
    assert (again.claim, again.position) == (found.claim, 6)
    back = sinks().resume(found.claim, 6)
    assert (back.claim.record, back.position) == (OWN.record, 6)
    assert back.claim.epoch > found.claim.epoch
    assert delivered(fake) == Counter(range(6))


def move(directory: Path) -> Resumed:
    """Take over what `/logs` has below another path, and commit two records more; until it works."""
    for _ in range(10):
        sink: HdfsSink | None = None
        try:
            sink = open_sink(directory, **{"hdfs.path": "/other"})
            found = sink.resume(OWN, 2)
            assert found.position in (3, 5)
            if found.position == 5:
                return found
            sink.write(records(3, 5))
            sink.commit(sink.stage(found.claim, 3, 5))
        except (Crash, Retry):
            pass
        finally:
            if sink is not None:
                sink.close()
    raise AssertionError("did not come to an end")


@pytest.mark.parametrize(("error", "count", "step"), [(Crash, 1, 2), (requests.ConnectionError, 6, 7)])
def test_calls_of_a_move_may_fail(tmp_path: Path, error: type[BaseException], count: int, step: int) -> None:
    def moved(index: int) -> tuple[FakeWebHdfs, int]:
        with pytest.MonkeyPatch.context() as patch:
            fake = FakeWebHdfs()
            fake.install(patch)
            sink = open_sink(tmp_path)
            sink.resume(CLAIM, 0)
            write_and_commit(sink, 0, 3)
            sleeping = sink.stage(OWN, 3, 4)
            before = len(fake.calls)
            fake.lose(before + index, count, "after", error)
            try:
                found = move(tmp_path)
                fake.heal()
                calls = len(fake.calls) - before
                assert found.claim.record == "hdfs:/other/.flafka"
                with pytest.raises(Conflict):
                    sink.commit(sleeping)
                next_owner = open_sink(tmp_path, **{"hdfs.path": "/other"})
                assert next_owner.resume(found.claim, 3).position == 5
                next_owner.close()
            finally:
                sink.close()
            return fake, calls

    _, calls = moved(1 << 30)
    assert calls > 20
    for index in some(range(0, calls, step)):
        fake, _ = moved(index)
        assert delivered(fake) == Counter(range(5)), f"call {index}"


def test_a_note_is_kept_with_the_commit_until_it_is_noted(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(CLAIM, 0)
    sink.write(records(0, 3))
    receipt = sink.stage(OWN, 0, 3, b"two letters")
    assert sinks().resume(CLAIM, 0).notes == (), "nothing is committed yet"
    sink.commit(receipt)
    for _ in range(2):
        taken_over = sinks()
        assert taken_over.resume(CLAIM, 0).notes == (b"two letters",)
    write_and_commit(taken_over, 3, 5)
    assert sinks().resume(CLAIM, 0).notes == (), "who commits the next has kept what came with the one before"
    assert [m.version for m in manifests(fake)] == [2, 1], "versions that know no notes read what has none"
    assert not sinks().resume(CLAIM, 0).notes


def test_what_is_noted_is_gone(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(CLAIM, 0)
    sink.write(records(0, 3))
    sink.commit(sink.stage(OWN, 0, 3, b"two letters"))
    sink.noted(OWN)
    sink.noted(OWN)
    assert not [path for path in fake.files if "/tmp/" in path]
    assert sinks().resume(CLAIM, 0).notes == ()


def test_a_reset_brings_the_note_of_the_epoch_before(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(CLAIM, 0)
    sink.write(records(0, 3))
    sink.commit(sink.stage(OWN, 0, 3, b"two letters"))
    for _ in range(2):
        after = sinks()
        found = after.resume(OWN._replace(epoch=LATER), 1)
        assert found.notes == (b"two letters",)
    after.noted(found.claim)
    assert sinks().resume(OWN._replace(epoch=LATER), 1).notes == ()
    assert not [path for path in fake.files if "/tmp/" in path]


# --- what HDFS says


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (error(403, "SafeModeException", "Cannot create x. Name node is in safe mode.\nat a.b"), "is in safe mode"),
        (error(403, "AccessControlException", "Permission denied: user=u\n\tat a.b"), "does not let user 'u' create"),
        (error(403, "NSQuotaExceededException", "The NameSpace quota of /logs"), "The NameSpace quota of /logs"),
        (error(403, "StandbyException", "not here"), "no NameNode answers, or none is active, at namenode:9870"),
        (error(500, "SomethingNew", "strange\n\tat a.b"), "cannot create the directory .*: SomethingNew - strange$"),
        ((200, b"<html>hello</html>", ""), "namenode:9870 does not speak WebHDFS"),
        ((404, {"hello": "world"}, ""), "namenode:9870 does not speak WebHDFS"),
        ((401, b"<title>Error 401 Authentication required</title>", ""), "Kerberos, which is not built yet"),
    ],
)
def test_every_refusal_is_a_sentence(sinks: Any, fake: FakeWebHdfs, answer: Any, says: str) -> None:
    sink = sinks(**{"hdfs.proxyUser": "u"})
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, 0, 2)
    fake.refuse = lambda host, op: answer if op == "MKDIRS" else None
    with pytest.raises(Retry, match=says) as refused:
        sink.commit(receipt)
    assert "\n" not in str(refused.value)
    fake.refuse = lambda host, op: None
    sink.commit(receipt)
    assert delivered(fake) == Counter(range(2))


def test_the_active_namenode_is_found_again_after_a_failover(sinks: Any, fake: FakeWebHdfs) -> None:
    active = "nn1:9870"
    standby = error(403, "StandbyException", "Operation category WRITE is not supported in state standby")
    fake.refuse = lambda host, op: standby if host.startswith("nn") and host != active else None
    sink = sinks(**{"hdfs.webhdfs": "nn1:9870,nn2:9870"})
    write_and_commit(sink, 0, 3)
    active = "nn2:9870"
    write_and_commit(sink, 3, 6)
    assert delivered(fake) == Counter(range(6))


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("hdfs://nn:8020/logs", "nn:9870"),
        ("hdfs://nn/logs", "nn:50070"),
        ("hdfs:///logs", "localhost:50070"),
        ("/logs", "localhost:9870"),
    ],
)
def test_the_port_of_a_namenode_is_found_by_hadoops_defaults(
    sinks: Any, fake: FakeWebHdfs, path: str, there: str
) -> None:
    html = 200, b"<html>another program</html>", ""

    def refuse(host: str, op: str) -> tuple[int, Any, str] | None:
        if host.endswith("0070") and not there.endswith("0070"):
            raise requests.ConnectionError
        return None if host in (there, DATANODE) else html

    fake.refuse = refuse
    sink = sinks(**{"hdfs.path": path, "hdfs.webhdfs": None})
    write_and_commit(sink, 0, 3)
    assert delivered(fake) == Counter(range(3))
    assert sink._hdfs.hosts == there


def test_where_no_namenode_answers_both_ports_are_named(sinks: Any, fake: FakeWebHdfs) -> None:
    def refuse(host: str, op: str) -> None:
        raise requests.ConnectionError

    fake.refuse = refuse
    config, _ = HdfsConfig.parse({"hdfs.path": "hdfs://nn:8020/logs"})
    assert config is not None
    with pytest.raises(Retry, match=r"at nn:9870 or nn:50070.*hdfs.webhdfs = nn:port.*where nn is a nameservice"):
        HdfsSink(config).open()
    assert [*HdfsSink(config).probe()] == [
        "HDFS is away: no NameNode answers over HTTP at nn:9870 or nn:50070, Hadoop's default ports; if its "
        "dfs.namenode.http-address is another, add hdfs.webhdfs = nn:port, or all NameNodes of it where nn is a "
        "nameservice"
    ]


@pytest.mark.parametrize("hosts", [f"{STANDBY},{NAMENODE}", f"{NAMENODE},{STANDBY}"])
def test_a_standby_that_answers_what_was_is_not_believed(
    sinks: Any, fake: FakeWebHdfs, caplog: pytest.LogCaptureFixture, hosts: str
) -> None:
    position = None
    for start in (0, 3, 6, 9):
        sink = sinks(**{"hdfs.webhdfs": hosts})
        resumed = sink.resume(CLAIM, position)
        assert resumed.position == position
        sink.write(records(start, start + 3))
        sink.commit(sink.stage(resumed.claim, start, start + 3))
        position = start + 3
        if start == 3:
            fake.standby_follows()
    assert delivered(fake) == Counter(range(12))
    assert caplog.text == ""


def test_the_active_namenode_is_asked_where_the_last_one_asked_is_a_standby_by_now(
    sinks: Any, fake: FakeWebHdfs
) -> None:
    sink = sinks(**{"hdfs.webhdfs": f"nn1:9870,{NAMENODE}"})
    assert sink.resume(CLAIM, None).position is None
    standby = error(403, "StandbyException", "Operation category WRITE is not supported in state standby")
    empty = 200, {"FileStatuses": {"FileStatus": []}}, ""
    answers = {"MKDIRS": standby, "RENAME": standby, "DELETE": standby, "LISTSTATUS": empty}
    fake.refuse = lambda host, op: answers.get(op) if host == "nn1:9870" else None
    write_and_commit(sink, 0, 3)
    assert delivered(fake) == Counter(range(3))


@pytest.mark.parametrize("kind", ["SafeModeException", "AccessControlException", "NoLocationException"])
def test_an_active_namenode_that_allows_no_change_is_read_from(sinks: Any, fake: FakeWebHdfs, kind: str) -> None:
    sink = sinks(**{"hdfs.webhdfs": f"{STANDBY},{NAMENODE}"})
    fake.files["/logs"] = b"1"
    fake.refuse = lambda host, op: error(403, kind, "no") if (host, op) == (NAMENODE, "MKDIRS") else None
    assert sink._hdfs.read("/logs") == b"1"


def test_a_file_that_a_datanode_does_not_see_yet_is_not_taken_for_absent(sinks: Any, fake: FakeWebHdfs) -> None:
    """A DataNode asks a NameNode of its own choice, which may be a standby that is behind."""
    sink = sinks()
    claim = sink.resume(CLAIM, None).claim
    sink.write(records(0, 3))
    sink.commit(sink.stage(claim, 0, 3, note=b"letters"))
    unseen = error(404, "FileNotFoundException", "File does not exist")
    reads = 0

    def refuse(host: str, op: str) -> tuple[int, Any, str] | None:
        nonlocal reads
        reads += op == "OPEN data"
        return unseen if op == "OPEN data" and reads == 2 else None

    fake.refuse = refuse
    with pytest.raises(Retry, match="DataNode does not see it yet"):
        sinks().resume(claim, 3)
    assert sinks().resume(claim, 3).notes == (b"letters",)


def test_an_upload_goes_round_a_datanode_that_does_not_answer(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    asked: list[str] = []
    real = fake._execute

    def fail(number: int, op: str) -> None:
        if op == "CREATE data" and len(asked) == 1:
            raise requests.ConnectionError(request=requests.Request(url=f"http://{DATANODE}/webhdfs/v1/x"))

    def execute(op: str, path: str, options: dict[str, str], request: Any) -> Any:
        if op == "CREATE":
            asked.append(options.get("excludedatanodes", ""))
        return real(op, path, options, request)

    fake.before, fake._execute = fail, execute  # type: ignore[method-assign]
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, 0, 2)
    assert asked == ["", "datanode"]
    assert receipt.staged.files[0].temporary.endswith("/0-1"), "no name is used twice"


# --- the local disk


def test_a_full_staging_disk_is_named_and_healed_by_reset(
    sinks: Any, fake: FakeWebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink.write(records(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(Retry, match=f"{re.escape(str(tmp_path))} is full"):
            sink.write(records(2, 4))
    sink.reset()
    assert [p.name for p in sink._staging.directory.iterdir()] == ["lock"]
    sink.write(records(0, 4))
    sink.commit(sink.stage(OWN, 0, 4))
    assert delivered(fake) == Counter(range(4))


def test_staging_directories_of_dead_processes_are_removed(
    sinks: Any, fake: FakeWebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "MAKING_SECONDS", -1)
    dead = tmp_path / f"{staging_module.PREFIX}dead"
    dead.mkdir()
    (dead / "3-1").write_bytes(b"x")
    alive = sinks()
    sinks()
    assert not dead.exists()
    assert alive._staging.directory.exists()
    alive.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_staging_directory_that_cannot_be_made_is_named(fake: FakeWebHdfs, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Retry, match="cannot use the staging directory"):
        open_sink(tmp_path / "file")

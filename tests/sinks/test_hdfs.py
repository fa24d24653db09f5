"""HDFS sink: its options, and the answers of HDFS."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests

from flafka.plugins import ConnectivityWarning, OffsetRange, Retry, conformance
from flafka.sinks.hdfs import HdfsConfig, HdfsSink, webhdfs
from flafka.sinks.hdfs.trust import Trust
from tests.sinks.fake_webhdfs import DATANODE, NAMENODE, STANDBY, FakeWebHdfs, error
from tests.sinks.hdfs_running import (
    ASSIGNMENT,
    NEVER,
    OWN,
    REQUIRED,
    configured,
    delivered,
    records,
    write_and_commit,
)

# --- options


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        ({"hdfs.fileType": "Avro"}, "hdfs.fileType", "one of SequenceFile, DataStream, CompressedStream"),
        ({"hdfs.fileType": "parquet"}, "hdfs.fileType", "hdfs.fileType = DataStream and serializer = PARQUET"),
        ({"hdfs.writeFormat": "com.acme.Mine", "hdfs.fileType": "SequenceFile"}, "hdfs.writeFormat", "or Text"),
        ({"hdfs.path": "hdfs:/nn:8020/x"}, "hdfs.path", "write hdfs://nn:8020/x"),
        ({"hdfs.path": "webhdfs:/nn:9870/x"}, "hdfs.path", "HTTP server: webhdfs://nn:9870/x"),
        ({"hdfs.webhdfs": "http://nn1:9870"}, "hdfs.webhdfs", "must be host:port"),
        ({"hdfs.path": None}, "hdfs.path", "is required"),
        ({"hdfs.path": "hdfs:logs"}, "hdfs.path", "write hdfs:///logs"),
        ({"hdfs.path": "s3a://bucket/x"}, "hdfs.path", "s3a: is not built"),
        ({"hdfs.path": "webhdfs:///x"}, "hdfs.path", "webhdfs://namenode:9870/x"),
        ({"hdfs.path": "/logs/%c"}, "hdfs.path", "no ':' in names (the escape %c contains some)"),
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
        ({"serializer.columns.n": "long"}, "serializer.columns.n", "must be one of string, boolean, int, bigint"),
        ({"serializer.columns.n": "int"}, "serializer.columns.n", "write hdfs.fileType = DataStream and serializer"),
        ({"serializer.columns.body": "string"}, "serializer.columns.body", "is a column of every file"),
        ({"serializer": "avro_evnt"}, "serializer", "did you mean 'AVRO_EVENT'"),
        ({"serializer": "com.acme.Mine$Builder"}, "serializer", "com.acme.Mine$Builder is a Java class"),
        (
            {"serializer": "avro_event", "serializer.compressionCodec": "lzo"},
            "serializer.compressionCodec",
            "one of null, deflate, snappy, bzip2, xz, zstandard for AVRO_EVENT",
        ),
        (
            {"hdfs.round": "true", "hdfs.roundUnit": "hour", "hdfs.roundValue": "25"},
            "hdfs.roundValue",
            "1 to 24 hours",
        ),
        ({"hdfs.kerberosPrincipal": "x", "hdfs.kerberosKeytab": "/k"}, "hdfs.kerberosPrincipal", "flume@EXAMPLE.COM"),
        ({"hdfs.kerberosPrincipal": "x@R"}, "hdfs.kerberosPrincipal", "needs hdfs.kerberosKeytab as well"),
        ({"hdfs.kerberosKeytab": "/k"}, "hdfs.kerberosPrincipal", "needs hdfs.kerberosPrincipal as well"),
        ({"hdfs.fileSuffix": "/x"}, "hdfs.fileSuffix", "without a slash"),
        ({"hdfs.fileSuffix": f".{'x' * 64}"}, "hdfs.fileSuffix", "at most 64 bytes"),
        ({"hdfs.filePrefix": "é" * 128}, "hdfs.filePrefix", "at most 255 bytes"),
        ({"hdfs.filePrefix": "a\tb"}, "hdfs.filePrefix", "control characters"),
        ({"hdfs.filePrefix": "../x"}, "hdfs.filePrefix", "'..' is reserved"),
        ({"hdfs.path": f"/logs/{'x' * 256}"}, "hdfs.path", "at most 255 bytes"),
        ({"hdfs.batchSize": "0"}, "hdfs.batchSize", "greater than 0"),
        ({"hdfs.rollIntervall": "5"}, "hdfs.rollIntervall", "did you mean 'hdfs.rollInterval'"),
    ],
)
def test_a_wrong_option_is_named_with_its_correction(
    properties: dict[str, str | None], option: str, message: str
) -> None:
    options = {k: v for k, v in {**REQUIRED, **properties}.items() if v is not None}
    _, problems = HdfsConfig.parse(options)
    assert [p.option for p in problems] == [option]
    assert message in problems[0].message


GZIP = {"hdfs.fileType": "CompressedStream", "hdfs.codeC": "gzip"}


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        (NEVER, "hdfs.rollInterval", "is 0, so that nothing closes files: with few events no file appears"),
        ({**NEVER, "hdfs.rollSize": "1000"}, "hdfs.rollInterval", "is 0, so that only hdfs.rollSize close"),
        ({**NEVER, "hdfs.idleTimeout": "60"}, "", ""),
        ({"hdfs.rollInterval": "300"}, "", ""),
        ({**GZIP, "hdfs.fileSuffix": ".log"}, "hdfs.fileSuffix", "write hdfs.fileSuffix = .log.gz"),
        ({**GZIP, "hdfs.fileSuffix": ".log.gz"}, "", ""),
        ({"hdfs.fileSuffix": ".gz"}, "hdfs.fileSuffix", "ends in .gz, by which readers expect compressed files"),
        ({"hdfs.fileSuffix": ".gz", "hdfs.fileType": "SequenceFile"}, "", ""),
        ({"hdfs.filePrefix": "_x"}, "hdfs.filePrefix", "begins with '_': Spark, Hive and MapReduce ignore"),
        ({"hdfs.filePrefix": ".x"}, "hdfs.filePrefix", "begins with '.'"),
        ({"hdfs.path": "/_logs/%Y/_raw"}, "hdfs.path", "'_raw' begins with '_'"),
        ({"hdfs.path": "/_logs/%Y/_day=%d"}, "", ""),
    ],
)
def test_options_that_hide_files_from_readers_get_a_warning(
    properties: dict[str, str], option: str, message: str
) -> None:
    config, problems = HdfsConfig.parse({**REQUIRED, **properties})
    assert config is not None, problems
    warnings = [(problem.option, problem.message) for problem in config.warnings()]
    assert [name for name, _ in warnings] == ([option] if option else [])
    assert not option or message in warnings[0][1]


def test_a_path_of_this_host_needs_no_library() -> None:
    local, remote = (HdfsConfig.parse({"hdfs.path": path})[0] for path in ("file:///logs", "webhdfs://nn:9870/logs"))
    assert local is not None
    assert remote is not None
    assert (HdfsSink.libraries_for(local), set(HdfsSink.libraries_for(remote))) == ({}, {"pyhdfs", "requests"})


def test_a_header_value_that_hides_a_directory_is_logged(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    sink.write(records(0, 2, host="a_b"))
    assert "MapReduce ignore" not in caplog.text
    sink.write(records(2, 4, host="_b"))
    assert "ignore names that begin with _ or .: /logs/_b/FlumeData" in caplog.text


def test_a_literal_colon_is_not_blamed_on_an_escape() -> None:
    _, problems = HdfsConfig.parse({"hdfs.path": "/logs/%H:%M"})
    assert [problem.message for problem in problems] == ["HDFS allows no ':' in names"]


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
        ({"hdfs.writeFormat": "TextOutputFormat"}, {"hdfs.writeFormat": "has no effect with DataStream"}),
        ({"hdfs.path": "hdfs:///logs"}, {}),
        ({"hdfs.timeZone": "Europe/Pariss"}, {"hdfs.timeZone": "UTC is used, did you mean 'Europe/Paris'?"}),
        (
            {"serializer.compressionCodec": "snappy"},
            {"serializer.compressionCodec": "has no effect with serializer TEXT"},
        ),
    ],
)
def test_options_without_effect_are_reported(properties: dict[str, str], cautions: dict[str, str]) -> None:
    config = configured(**{"hdfs.idleTimeout": "1", **properties})
    messages = {caution.option: caution.message for caution in config.warnings()}
    assert messages.keys() == cautions.keys()
    assert all(cautions[name] in message for name, message in messages.items())


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


def test_an_unknown_rounding_unit_rounds_nothing_and_is_reported(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
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


# --- answers of HDFS


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (error(403, "SafeModeException", "Cannot create x. Name node is in safe mode.\nat a.b"), "is in safe mode"),
        (error(403, "AccessControlException", "Permission denied: user=u\n\tat a.b"), "does not let user 'u' create"),
        (error(403, "NSQuotaExceededException", "The NameSpace quota of /logs"), "The NameSpace quota of /logs"),
        (error(403, "StandbyException", "not here"), "no NameNode answers, or none is active, at namenode:9870"),
        (error(500, "SomethingNew", "strange\n\tat a.b"), "cannot create the directory .*: strange$"),
        ((200, b"<html>hello</html>", ""), "namenode:9870 does not speak WebHDFS"),
        ((404, {"hello": "world"}, ""), "namenode:9870 does not speak WebHDFS"),
    ],
)
def test_every_refusal_is_a_sentence(sinks: Any, fake: FakeWebHdfs, answer: Any, message: str) -> None:
    sink = sinks(**{"hdfs.proxyUser": "u"})
    owned = sink.resume(OWN.with_offset(0))
    sink.write(records(0, 2))
    receipt = sink.stage(owned, OffsetRange(0, 2))
    fake.refuse = lambda host, op: answer if op == "MKDIRS" else None
    with pytest.raises(Retry, match=message) as refused:
        sink.commit(receipt)
    assert "\n" not in str(refused.value)
    fake.refuse = lambda host, op: None
    sink.commit(receipt)
    assert delivered(fake) == Counter(range(2))


def test_a_server_that_requires_kerberos_without_a_ticket_says_how_to_get_one(
    sinks: Any, fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nonexistent")
    sink = sinks()
    fake.refuse = lambda host, op: (401, b"<title>Error 401 Authentication required</title>", "")
    began = time.monotonic()
    with pytest.raises(
        Retry,
        match=r"^HDFS requires Kerberos, and there is no ticket: .*; ticket cache: FILE:/nonexistent; run kinit, or ",
    ):
        sink.resume(OWN.with_offset(0))
    assert time.monotonic() - began < 5


def test_check_finds_the_border_of_an_encryption_zone_and_leaves_nothing(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    why = "/logs/.flafka-check can't be moved from encryption zone /logs to encryption zone /."
    for existing in ("/", "/logs", "/logs/.flafka"):
        fake.tree.make_directories(existing)
        before = set(fake.tree.directories)
        assert [*sink.check_connectivity()] == []
        fake.refuse = lambda host, op: error(403, "IOException", why) if op == "RENAME" else None
        [problem] = sink.check_connectivity()
        directory = "/" if existing == "/" else "/logs"
        assert f"no file can be renamed into {directory} (allow that, or change hdfs.path): {why}" in problem
        fake.refuse = lambda host, op: None
        assert not fake.files
        assert fake.tree.directories - before <= {"/logs/.flafka/tmp"}


def test_check_changes_no_rights_and_names_what_it_cannot_remove(
    sinks: Any, fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhdfs, "is_too_open", lambda mode: True)
    sink = sinks(**{"hdfs.path": "/logs"})
    fake.tree.make_directories("/logs/.flafka")
    fake.calls.clear()
    assert [*sink.check_connectivity()] == []
    assert "SETPERMISSION" not in fake.calls
    fake.refuse = lambda host, op: (
        error(403, "SafeModeException", "Name node is in safe mode") if op == "DELETE" else None
    )
    renamed, staged = sink.check_connectivity()
    assert isinstance(renamed, ConnectivityWarning)
    assert re.match(r"/logs/\.flafka-\w+ could not be removed: HDFS is in safe mode", renamed)
    assert re.match(r"/logs/\.flafka/tmp/\w+ could not be removed: HDFS is in safe mode", staged)


def test_a_truststore_is_for_tls_and_may_be_that_of_hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "authorities.pem"
    store.touch()
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)

    def settings(**properties: str) -> tuple[Any, list[str]]:
        config, problems = HdfsConfig.parse(
            {**REQUIRED, **{f"hdfs.{name}": text for name, text in properties.items()}}
        )
        assert config is not None, problems
        return config.tls, [problem.message for problem in config.warnings() if "truststore" in problem.option]

    https = "https://nn:9871"
    assert settings(webhdfs=https)[0].truststore is None
    [warning] = settings(truststore=str(store))[1]
    assert "has no effect without TLS: write swebhdfs:// in hdfs.path" in warning
    values = {"ssl.client.truststore.location": "/etc/hadoop.jks", "ssl.client.truststore.password": "secret"}
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()
    )
    (tmp_path / "ssl-client.xml").write_text(f"<configuration>{text}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    tls, _ = settings(webhdfs=https)
    assert (tls.truststore, tls.password.get_secret_value()) == ("/etc/hadoop.jks", "secret")
    with pytest.raises(
        Retry, match=f"/etc/hadoop.jks, of ssl.client.truststore.location in {tmp_path}/ssl-client.xml: "
    ):
        Trust(tls)._current()
    tls, _ = settings(webhdfs=https, truststorePassword="mine")
    assert (tls.truststore, tls.password.get_secret_value()) == ("/etc/hadoop.jks", "mine")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config, _ = HdfsConfig.parse({**REQUIRED, "hdfs.webhdfs": https})
    assert config is not None
    [problem] = [problem for problem in config.warnings() if "cryptography" in problem.message]
    assert (problem.option, problem.is_library_missing) == ("hdfs.path", True)
    assert "/ssl-client.xml, which needs cryptography, which is not installed: pip" in problem.message
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(store))
    assert settings(webhdfs=https)[0].truststore is None
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    (tmp_path / "ssl-client.xml").write_text("<")
    _, [problem] = HdfsConfig.parse({**REQUIRED, "hdfs.webhdfs": https})
    assert problem.option == "hdfs.path"
    assert f"{tmp_path}/ssl-client.xml cannot be read" in problem.message
    tls, _ = settings(webhdfs=https, truststore=str(store), truststorePassword="mine", checkHostname="false")
    assert (tls.truststore, tls.password.get_secret_value(), tls.check_hostname) == (str(store), "mine", False)
    assert "mine" not in repr(tls)


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
    ("path", "address"),
    [
        ("hdfs://nn:8020/logs", "nn:9870"),
        ("hdfs://nn/logs", "nn:50070"),
        ("hdfs:///logs", "localhost:50070"),
        ("/logs", "localhost:9870"),
    ],
)
def test_the_port_of_a_namenode_is_found_by_hadoops_defaults(
    sinks: Any, fake: FakeWebHdfs, path: str, address: str
) -> None:
    html = 200, b"<html>another program</html>", ""

    def refuse(host: str, op: str) -> tuple[int, Any, str] | None:
        if host.endswith("0070") and not address.endswith("0070"):
            raise requests.ConnectionError
        return None if host in (address, DATANODE) else html

    fake.refuse = refuse
    sink = sinks(**{"hdfs.path": path, "hdfs.webhdfs": None})
    write_and_commit(sink, 0, 3)
    assert delivered(fake) == Counter(range(3))
    assert sink._hdfs.hosts == address


def test_where_no_namenode_answers_both_ports_are_named(sinks: Any, fake: FakeWebHdfs) -> None:
    def refuse(host: str, op: str) -> None:
        raise requests.ConnectionError

    fake.refuse = refuse
    config, _ = HdfsConfig.parse({"hdfs.path": "hdfs://nn:8020/logs"})
    assert config is not None
    with pytest.raises(Retry, match=r"at nn:9870 or nn:50070.*hdfs.webhdfs = nn:port.*where nn is a nameservice"):
        HdfsSink(config).open()
    assert [*HdfsSink(config).check_connectivity()] == [
        "HDFS is away: no NameNode answers over HTTP at nn:9870 or nn:50070, Hadoop's default ports; if its "
        "dfs.namenode.http-address is another, add hdfs.webhdfs = nn:port, or all NameNodes of it where nn is a "
        "nameservice"
    ]


@pytest.mark.parametrize("hosts", [f"{STANDBY},{NAMENODE}", f"{NAMENODE},{STANDBY}"])
def test_a_stale_answer_of_a_standby_is_ignored(
    sinks: Any, fake: FakeWebHdfs, caplog: pytest.LogCaptureFixture, hosts: str
) -> None:
    position = None
    for start in (0, 3, 6, 9):
        sink = sinks(**{"hdfs.webhdfs": hosts})
        resumed = sink.resume(ASSIGNMENT.with_offset(position))
        assert resumed.next_offset == position
        sink.write(records(start, start + 3))
        sink.commit(sink.stage(resumed, OffsetRange(start, start + 3)))
        position = start + 3
        if start == 3:
            fake.standby_follows()
    assert delivered(fake) == Counter(range(12))
    assert caplog.text == ""


def test_the_active_namenode_is_asked_after_the_last_one_became_a_standby(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.webhdfs": f"nn1:9870,{NAMENODE}"})
    assert sink.resume(ASSIGNMENT).next_offset is None
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


def test_a_file_that_a_datanode_does_not_see_yet_does_not_count_as_missing(sinks: Any, fake: FakeWebHdfs) -> None:
    """A DataNode asks a NameNode of its own choice, which may be a standby that is behind."""
    sink = sinks()
    owned = sink.resume(ASSIGNMENT)
    sink.write(records(0, 3))
    sink.commit(sink.stage(owned, OffsetRange(0, 3)))
    unseen = error(404, "FileNotFoundException", "File does not exist")
    reads = 0

    def refuse(host: str, op: str) -> tuple[int, Any, str] | None:
        nonlocal reads
        reads += op == "OPEN data"
        return unseen if op == "OPEN data" and reads == 1 else None

    fake.refuse = refuse
    with pytest.raises(Retry, match="DataNode does not see it yet"):
        sinks().resume(owned.with_offset(3))
    assert sinks().resume(owned.with_offset(3)).next_offset == 3


def test_an_upload_avoids_a_datanode_that_does_not_answer(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    excluded: list[str] = []
    real = fake._execute

    def fail(number: int, op: str) -> None:
        if op == "CREATE data" and len(excluded) == 1:
            raise requests.ConnectionError(request=requests.Request(url=f"http://{DATANODE}/webhdfs/v1/x"))

    def execute(op: str, path: str, options: dict[str, str], request: Any) -> Any:
        if op == "CREATE":
            excluded.append(options.get("excludedatanodes", ""))
        return real(op, path, options, request)

    fake.before, fake._execute = fail, execute
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, OffsetRange(0, 2))
    assert excluded == ["", "datanode"]
    assert receipt.staged.files[0].temporary.endswith("/0-1"), "no name is used twice"

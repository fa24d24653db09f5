"""`agent migrate`: its notes on each line, and the file that it writes."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.config.migration import Migration, migrate
from flafka.plugins import Components

FLUME = """\
# What the shop's servers say.
shop.sources = orders
shop.channels = memory
shop.sinks = search files

! the old brokers
shop.sources.orders.type = org.apache.flume.source.kafka.KafkaSource
shop.sources.orders.zookeeperConnect = zk1:2181,\\
    zk2:2181/kafka
shop.sources.orders.topic = orders
shop.sources.orders.channels = memory

shop.channels.memory.type = memory
shop.channels.memory.keep-alive = 3

shop.sinks.search.type = elasticsearch
shop.sinks.search.channel = memory
  shop.sinks.search.hostNames : es1:9300, es2:9300
shop.sinks.search.ttl = 5d
shop.sinks.files.type = hdfs
shop.sinks.files.channel = memory
shop.sinks.files.hdfs.path = hdfs://namenode:8020/logs
shop.sinks.files.hdfs.fileType = DataStream
shop.sinks.files.hdfs.writeFormat = Text
"""
WRITTEN = """\
# What the shop's servers say.
shop.sources = orders
shop.channels = memory
shop.sinks = search files

! the old brokers
shop.sources.orders.type = org.apache.flume.source.kafka.KafkaSource
# agent migrate: zookeeperConnect does not lead to the brokers here: they are looked for at
#   zk1:9092,zk2:9092; name them with kafka.bootstrap.servers = host:9092
# shop.sources.orders.zookeeperConnect = zk1:2181,\\
#     zk2:2181/kafka
shop.sources.orders.kafka.bootstrap.servers = zk1:9092,zk2:9092
shop.sources.orders.topic = orders
shop.sources.orders.channels = memory

shop.channels.memory.type = memory
shop.channels.memory.keep-alive = 3

shop.sinks.search.type = elasticsearch
shop.sinks.search.channel = memory
  # agent migrate: hostNames port 9300 is for a protocol that servers no longer speak: port 9200, for
  #   HTTP, is used instead
  # shop.sinks.search.hostNames : es1:9300, es2:9300
  shop.sinks.search.hostNames = es1:9200, es2:9200
# agent migrate: ttl has no effect: servers have removed it with Elasticsearch 5: their policies for
#   the life of an index delete old documents
# shop.sinks.search.ttl = 5d
shop.sinks.files.type = hdfs
shop.sinks.files.channel = memory
shop.sinks.files.hdfs.path = hdfs://namenode:8020/logs
shop.sinks.files.hdfs.fileType = DataStream
shop.sinks.files.hdfs.writeFormat = Text
"""
NETCAT = """\
a1.sources = r1
a1.channels = c1
a1.sinks = k1
a1.sources.r1.type = netcat
a1.sources.r1.bind = localhost
a1.sources.r1.port = 44444
a1.sources.r1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = logger
a1.sinks.k1.channel = c1
"""
COMPONENTS = Components()

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `agent migrate` in a directory with `flume.conf` and `netcat.conf`."""
    for variable in ("FLUME_CONF_DIR", "HADOOP_CONF_DIR", "HBASE_CONF_DIR"):
        monkeypatch.setenv(variable, "")
    monkeypatch.chdir(tmp_path)
    Path("flume.conf").write_text(FLUME)
    Path("netcat.conf").write_text(NETCAT)
    return lambda *args: CliRunner().invoke(main, ["migrate", *args])


def notes_of(file: str) -> set[str]:
    """Return every note on any line of the file."""
    migration = migrate(Path(file), None, components=COMPONENTS)
    return {note.message for line in migration.lines for note in line.notes()}


def migrated(text: str | bytes, tmp_path: Path, name: str | None = None) -> Migration:
    file = tmp_path / "flume.conf"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return migrate(file, name, components=COMPONENTS, system={}, environment={})


def test_differing_lines_are_shown_beside_the_old_ones(run: Run) -> None:
    result = run("flume.conf")
    assert result.exit_code == 0, result.output
    assert Path("flume-flafka.conf").read_text() == WRITTEN
    assert Path("flume.conf").read_text() == FLUME
    assert [line for line in result.output.splitlines() if not line.startswith("    ")] == [
        "Differs from Flume:",
        "  line 8: shop.sources.orders: zookeeperConnect does not lead to the brokers here: they are looked for at "
        "zk1:9092,zk2:9092; name them with kafka.bootstrap.servers = host:9092",
        "  line 18: shop.sinks.search: hostNames port 9300 is for a protocol that servers no longer speak: port "
        "9200, for HTTP, is used instead",
        "  line 19: shop.sinks.search: ttl has no effect: servers have removed it with Elasticsearch 5: their "
        "policies for the life of an index delete old documents",
        "  line 20: shop.sinks.files: Flume: files are named by prefix, time and counter, and end in `.tmp` while "
        "they grow, some forever. Here: by prefix, topic, partition, first and last offset, which are the same after "
        "a crash; files appear when they are complete, and are hidden below `.flafka` until then",
        "  line 20: shop.sinks.files: leaves its events in a channel of type memory until a file is closed, after up "
        "to 30 s, which loses them if the agent is killed (Flume has them in a .tmp file): write type = file for "
        "that channel",
        "Notes:",
        "  line 20: shop.sinks.files: search, files compete for the events of channel memory: each event goes to one "
        "of them, as in Flume; for each sink to get every event, give each its own channel",
        "flume.conf, agent shop: 4 lines differ, 14 lines run",
        f"--all shows every line, and {len(notes_of('flume.conf')) - 1} more notes.",
        "written: flume-flafka.conf, 3 lines changed; flume.conf is unchanged",
        "start it with: agent start -c flume-flafka.conf",
    ]
    assert "    written: shop.sinks.search.hostNames = es1:9200, es2:9200" in result.output.splitlines()
    second = run("flume-flafka.conf")
    assert second.exit_code == 0
    assert Path("flume-flafka-flafka.conf").read_text() == WRITTEN


def test_all_shows_every_line_and_the_reason_if_it_stays(run: Run) -> None:
    output = run("flume.conf", "--all").output
    assert "  line 2: shop.sources\n" in output
    assert "  line 14: shop.channels.memory.keep-alive\n" in output
    assert "  line 14: shop.channels.memory: keep-alive has no effect: a put waits until" in output
    assert "shop.sources.orders: topic is a deprecated alias of kafka.topics\n" in output
    assert "shop.sinks.files: hdfs.writeFormat has no effect with DataStream, as in Flume\n" in output
    assert "shop.sinks.files: Flume: files are written with Hadoop's libraries, by RPC. Here: WebHDFS" in output
    assert all(f": {note}\n" in output for note in notes_of("flume.conf"))


def test_on_a_terminal_no_line_is_longer_than_it_is_wide(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("flafka.agent.cli.migrate._on_a_terminal", lambda: True)
    result = run("flume.conf", "--all")
    assert max(map(len, result.output.splitlines())) <= 80
    assert result.output.splitlines()[1:3] == [
        "  line 8: shop.sources.orders: zookeeperConnect does not lead to the brokers",
        "    here: they are looked for at zk1:9092,zk2:9092; name them with",
    ]


def test_commands_that_are_shown_can_be_copied_into_a_shell(run: Run) -> None:
    """`$Builder` is a variable in a shell, and a blank ends a word."""
    Path("flume.conf").write_text(NETCAT.replace("type = netcat", "type = com.acme.Ours$Builder"))
    assert "`agent template source 'com.acme.Ours$Builder'` prints one" in run("flume.conf").output
    Path("our flume.conf").write_text(NETCAT)
    assert "start it with: agent start -c 'our flume-flafka.conf'" in run("our flume.conf").output


def test_a_class_to_port_is_marked_once(run: Run) -> None:
    Path("flume.conf").write_text(NETCAT.replace("type = netcat", "type = org.keedio.flume.source.SQLSource"))
    result = run("flume.conf")
    assert result.exit_code == 2
    assert result.output.splitlines()[:2][0] == "Needs porting:"
    assert "`agent template source org.keedio.flume.source.SQLSource` prints one" in result.output
    assert "written: flume-flafka.conf, no line changed, 1 marked; flume.conf is unchanged" in result.output
    assert "start it with" not in result.output
    text = Path("flume-flafka.conf").read_text()
    assert "\n# agent migrate: needs porting: the source org.keedio.flume.source.SQLSource is a Java class" in text
    assert "\na1.sources.r1.type = org.keedio.flume.source.SQLSource\n" in text
    assert run("flume-flafka.conf").exit_code == 2
    assert Path("flume-flafka-flafka.conf").read_text() == text


def test_components_that_flume_omits_silently_are_named(run: Run) -> None:
    text = NETCAT.replace("a1.sinks = k1", "a1.sinks = k1 k2 k3").replace("type = netcat", "type = seq")
    text = re.sub(".*(bind|port) = .*\n", "", text)
    text += "a1.sinks.k2.type = null\na1.sinks.k2.channel = c7\na1.sources.r1.batchSize = 500\n"
    text += "a1.sources.r1.interceptors = i\na1.sources.r1.interceptors.i.type = com.acme.Mask$Builder\n"
    Path("flume.conf").write_text(text)
    result = run("flume.conf")
    assert (result.exit_code, result.output.splitlines()) == (
        2,
        [
            "Needs porting:",
            "  line 3: a1.sinks.k3: is listed but has no properties; add a1.sinks.k3.type = …, or remove k3 "
            "from a1.sinks",
            "  line 10: a1.sinks.k2: channel 'c7' is not declared; declared channels: c1",
            "  line 13: a1.sources.r1.interceptors.i: the interceptor com.acme.Mask$Builder is a Java class, which "
            "cannot run here; an interceptor in Python may have its name: `agent template interceptor "
            "'com.acme.Mask$Builder'` prints one to start from; docs/migrating-from-flume.md says more",
            "Differs from Flume:",
            "  line 11: a1.sources.r1: Flume 1.11: batchSize = 500 is larger than the transactionCapacity of channel "
            "c1, 100, so that the source does not run. Here: it runs",
            "flume.conf, agent a1: 3 lines need porting, 1 line differs, 9 lines run",
            "--all shows every line, and 2 more notes.",
            "written: flume-flafka.conf, no line changed, 3 marked; flume.conf is unchanged",
            "the agent does not start while a line needs porting: change it as its comment says, or remove its "
            "component from "
            "a1.sinks (k3 k2), a1.sources (r1)",
        ],
    )


# --- the written file


def test_no_file_is_overwritten(run: Run) -> None:
    assert run("netcat.conf", "-o", "netcat.conf", "--force").exit_code == 1
    assert run("netcat.conf", "-o", "./netcat.conf").exit_code == 1
    Path("mine.conf").write_text("mine")
    refused = run("netcat.conf", "-o", "mine.conf")
    assert (refused.exit_code, Path("mine.conf").read_text()) == (1, "mine")
    assert refused.output.splitlines()[-1] == ("error: mine.conf exists: --force replaces it, -o names another file")
    assert run("netcat.conf", "-o", "mine.conf", "--force").exit_code == 0
    assert Path("mine.conf").read_text() == Path("netcat.conf").read_text() == NETCAT
    assert run("netcat.conf", "-o", "mine.conf").exit_code == 0, "it is the same already"
    assert run("netcat.conf", "-o", "no/such/directory.conf").exit_code == 1
    assert run("netcat.conf", "-o", "/dev/null", "--force").exit_code == 1


def test_the_new_file_is_not_readable_by_more_users_than_the_old_one(run: Run) -> None:
    Path("netcat.conf").chmod(0o640)
    run("netcat.conf")
    assert stat.S_IMODE(Path("netcat-flafka.conf").stat().st_mode) == 0o640
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["flume.conf", "netcat-flafka.conf", "netcat.conf"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("encoding", "start"), [("utf-8", ""), ("latin-1", ""), ("utf-8", "\ufeff")])
def test_unchanged_bytes_stay(tmp_path: Path, ending: str, encoding: str, start: str) -> None:
    text = start + "# grüße, Straße\n" + FLUME
    expected = start + "# grüße, Straße\n" + WRITTEN
    migration = migrated(text.replace("\n", ending).encode(encoding), tmp_path)
    assert migration.content == expected.replace("\n", ending).encode(encoding)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("zk = zk1\nshop.sources.orders.zookeeperConnect = ${zk}:2181", "it may be another one tomorrow"),
        (
            "shop.sources.orders.kafka.bootstrap.servers =\nshop.sources.orders.zookeeperConnect = zk1:2181",
            "of two lines with one name the last counts",
        ),
    ],
)
def test_a_line_that_cannot_be_replaced_safely_stays(tmp_path: Path, lines: str, why: str) -> None:
    text = re.sub(r"shop\.sources\.orders\.zookeeperConnect.*\\\n.*\n", lines + "\n", FLUME)
    migration = migrated(text, tmp_path)
    (line,) = [line for line in migration.lines if line.name == "shop.sources.orders.zookeeperConnect"]
    assert (line.verdict, line.replacement) == ("differs", None), why
    assert migration.content is not None
    assert f"\n{lines}\n" in migration.content.decode()


# --- selection of the agent


def test_of_several_agents_only_the_named_one_is_migrated(run: Run) -> None:
    Path("two.conf").write_text(NETCAT + FLUME)
    result = run("two.conf")
    assert (result.exit_code, result.output.splitlines()) == (
        2,
        ["two.conf: the file has several agents: choose one with -n (a1, shop)"],
    )
    assert not Path("two-flafka.conf").exists()
    result = run("two.conf", "-n", "a1")
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "two.conf, agent a1: 10 lines run")
    assert Path("two-a1-flafka.conf").read_text() == NETCAT + FLUME
    assert result.output.splitlines()[-1] == "start it with: agent start -n a1 -c two-a1-flafka.conf"
    assert run("two.conf", "-n", "shop").exit_code == 0
    assert Path("two-shop-flafka.conf").read_text() == NETCAT + WRITTEN
    assert run("none.conf").exit_code == 2


def test_json(run: Run) -> None:
    report = json.loads(run("flume.conf", "--json").output)
    assert {key: report[key] for key in ("file", "agent", "ok", "output", "counts")} == {
        "file": "flume.conf",
        "agent": "shop",
        "ok": True,
        "output": "flume-flafka.conf",
        "counts": {"needs porting": 0, "differs": 4, "runs": 14},
    }
    (brokers,) = [line for line in report["lines"] if line["property"].endswith("zookeeperConnect")]
    assert (brokers["line"], brokers["verdict"], brokers["written"]) == (
        8,
        "differs",
        ["shop.sources.orders.kafka.bootstrap.servers = zk1:9092,zk2:9092"],
    )
    unreadable = json.loads(run("none.conf", "--json").output)
    assert (unreadable["ok"], unreadable["agent"], unreadable["output"]) == (False, None, None)


def test_check_accepts_the_written_file(tmp_path: Path) -> None:
    migration = migrated(FLUME, tmp_path)
    assert migration.content is not None
    new = tmp_path / "new.conf"
    new.write_bytes(migration.content)
    spec, diagnostics = load(new, components=COMPONENTS, environment={}, system={})
    assert spec is not None
    warnings = [diagnostic for diagnostic in diagnostics if diagnostic.differs and diagnostic.severity == "warning"]
    assert [warning.message.partition(" ")[0] for warning in warnings] == ["leaves"], (
        "what was changed differs no more"
    )


def with_flumes_files(tmp_path: Path) -> Path:
    """Write a configuration with a channel `c` in whose directories Flume has left three events."""
    recorded = Path(__file__).parents[1] / "data/flume_file_channel/records"
    for source, target in (("a", "data"), ("checkpoint", "checkpoint")):
        shutil.copytree(recorded / source, tmp_path / target)
    file = tmp_path / "flume.conf"
    lines = ["a.sources = s", "a.channels = c", "a.sinks = k", "a.sources.s.type = seq", "a.sources.s.channels = c"]
    lines += ["a.channels.c.type = file", f"a.channels.c.checkpointDir = {tmp_path}/checkpoint"]
    lines += [f"a.channels.c.dataDirs = {tmp_path}/data", "a.sinks.k.type = null", "a.sinks.k.channel = c"]
    file.write_text("\n".join(lines))
    return file


def test_events_of_flumes_file_channel_are_reported(tmp_path: Path) -> None:
    file = with_flumes_files(tmp_path)
    migration = migrate(file, None, components=Components())
    (line,) = migration.lines_with("differs")
    assert (line.number, migration.is_complete) == (6, True)
    assert "has 3 events that Flume has not delivered" in line.reasons()[0].message
    assert "`agent migrate --import-channel c FILE`" in line.reasons()[0].message
    assert migration.content == file.read_bytes()


def test_a_command_imports_the_events_of_flumes_file_channel(tmp_path: Path, run: Run) -> None:
    file = str(with_flumes_files(tmp_path))
    done = run(file, "--import-channel", "c")
    assert done.exit_code == 0, done.output
    assert "channel c: imported 3 undelivered events in this run" in done.stdout
    assert (tmp_path / "data/flume-0/log-1").exists()
    assert not Path("flume-flafka.conf").exists()
    second = run(file, "--import-channel", "c", "--json")
    assert json.loads(second.stdout) == {"channel": "c", "events": 0, "lost": 0, "damages": [], "moved_to": ""}
    assert "no files of Flume to import" in run(file, "--import-channel", "c").stdout


def test_only_a_file_channel_of_the_configuration_can_be_imported_into(run: Run) -> None:
    assert "flume.conf has no valid channel c" in run("flume.conf", "--import-channel", "c").stderr
    refused = run("flume.conf", "--import-channel", "memory")
    assert refused.exit_code == 1
    assert "channel memory is not a file channel, the only type with an import from Flume" in refused.stderr


def test_an_import_names_unreadable_records(tmp_path: Path, run: Run) -> None:
    file = with_flumes_files(tmp_path)
    for log in (tmp_path / "data").glob("log-?"):
        data = log.read_bytes()
        log.write_bytes(data.replace(b"2" + b"_" * 50, b"2" + b"X" * 50))
    done = run(str(file), "--import-channel", "c")
    assert done.exit_code == 2, done.output
    assert "is damaged at byte" in done.stderr
    assert "1 events are lost: they could not be read" in done.stderr


def test_interceptors_of_a_sink_which_flume_ignores_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "flume.conf"
    lines = ["a.sources = s", "a.channels = c", "a.sinks = k", "a.sources.s.type = seq", "a.sources.s.channels = c"]
    lines += ["a.channels.c.type = memory", "a.sinks.k.type = null", "a.sinks.k.channel = c"]
    lines += ["a.sinks.k.interceptors = i", "a.sinks.k.interceptors.i.type = static"]
    file.write_text("\n".join(lines))
    migration = migrate(file, None, components=Components())
    (line,) = migration.lines_with("differs")
    assert (line.number, migration.is_complete) == (9, True)
    assert "a sink has no interceptors, and these lines have no effect. Here: they run" in line.reasons()[0].message


@pytest.mark.parametrize(
    ("encoding", "value", "differs"),
    [("utf-8", "Köln", [9]), ("latin-1", "Köln", []), ("utf-8", r"K\u00f6ln", []), ("utf-8", "a \\\n  ß", [9])],
)
def test_lines_that_flume_reads_in_another_encoding_are_reported(
    encoding: str, value: str, differs: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "flume.conf"
    lines = ["# größer", "a.sources = s", "a.channels = c", "a.sources.s.type = seq", "a.sources.s.channels = c"]
    lines += [
        "a.channels.c.type = memory",
        "a.sources.s.interceptors = i",
        "a.sources.s.interceptors.i.type = static",
    ]
    lines += [f"a.sources.s.interceptors.i.value = {value}", "a.sources.s.interceptors.i.key = city"]
    file.write_text("\n".join(lines), encoding)
    migration = migrate(file, None, components=Components())
    assert [line.number for line in migration.lines_with("differs")] == differs
    assert migration.is_complete
    assert migration.content == file.read_bytes()


def test_an_interceptor_that_is_listed_twice_differs(tmp_path: Path) -> None:
    file = tmp_path / "flume.conf"
    lines = ["a.sources = s", "a.channels = c", "a.sources.s.type = seq", "a.sources.s.channels = c"]
    lines += [
        "a.channels.c.type = memory",
        "a.sources.s.interceptors = i i",
        "a.sources.s.interceptors.i.type = host",
    ]
    file.write_text("\n".join(lines))
    (line,) = migrate(file, None, components=Components()).lines_with("differs")
    assert "'i' is listed twice: Flume runs it twice; here it runs once" in line.reasons()[0].message


def test_lines_for_kerberos_stay(tmp_path: Path) -> None:
    kerberos = """\
a1.sinks.k1.type = hdfs
a1.sinks.k1.hdfs.path = hdfs://nameservice1/logs
a1.sinks.k1.hdfs.kerberosPrincipal = flume/_HOST@EXAMPLE.COM
a1.sinks.k1.hdfs.kerberosKeytab = /etc/security/keytabs/flume.keytab
a1.sinks.k1.hdfs.proxyUser = weblogs
a1.sinks = k1 k2
a1.sinks.k2.type = hbase2
a1.sinks.k2.channel = c1
a1.sinks.k2.table = t
a1.sinks.k2.columnFamily = f
a1.sinks.k2.kerberosPrincipal = flume/_HOST@EXAMPLE.COM
a1.sinks.k2.kerberosKeytab = /etc/security/keytabs/flume.keytab
"""
    migration = migrated(NETCAT + kerberos, tmp_path)
    assert migration.is_complete
    assert migration.content == (tmp_path / "flume.conf").read_bytes()


def test_lines_for_kafka_with_kerberos_stay_where_the_client_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flafka.plugins.kafka.kerberos._has_provider", lambda: False)
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true"
    sink = f"""\
a1.sinks = k1
a1.sinks.k1.type = org.apache.flume.sink.kafka.KafkaSink
a1.sinks.k1.channel = c1
a1.sinks.k1.kafka.topic = t
a1.sinks.k1.kafka.bootstrap.servers = kafka-1.example.com:9093
a1.sinks.k1.kafka.producer.security.protocol = SASL_SSL
a1.sinks.k1.kafka.producer.sasl.mechanism = GSSAPI
a1.sinks.k1.kafka.producer.sasl.kerberos.service.name = kafka
a1.sinks.k1.kafka.producer.sasl.jaas.config = {module} keyTab="/none.keytab" principal="flume@EXAMPLE.COM";
"""
    migration = migrated(NETCAT + sink, tmp_path)
    assert migration.is_complete
    assert not migration.lines_with("needs porting")
    assert migration.content == (tmp_path / "flume.conf").read_bytes()
    spec, diagnostics = load(tmp_path / "flume.conf", None, components=Components())
    assert spec is not None
    [error] = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
    assert error.is_library_missing
    assert "kafka.producer.sasl.mechanism cannot be used on this host: Kerberos (GSSAPI) is not in" in error.message

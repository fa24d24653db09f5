"""Imports that wait until they are needed: a command's imports decide its start time and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EVERYTHING = """
a.sources = avro http syslog taildir
a.sources.avro.type = avro
a.sources.avro.bind = 127.0.0.1
a.sources.avro.port = 0
a.sources.avro.channels = kafka
a.sources.http.type = http
a.sources.http.port = 0
a.sources.http.channels = kafka
a.sources.syslog.type = syslogtcp
a.sources.syslog.host = 127.0.0.1
a.sources.syslog.port = 0
a.sources.syslog.channels = kafka
a.sources.syslog.interceptors = mask
a.sources.syslog.interceptors.mask.type = mask
a.sources.syslog.interceptors.mask.patterns = ipv4
a.sources.taildir.type = taildir
a.sources.taildir.filegroups = f
a.sources.taildir.filegroups.f = {home}/logs/.*
a.sources.taildir.positionFile = {home}/positions.json
a.sources.taildir.channels = kafka
a.channels = kafka
a.channels.kafka.type = kafka
a.channels.kafka.kafka.bootstrap.servers = 127.0.0.1:9092
a.sinks = hdfs hbase solr
a.sinks.hdfs.type = hdfs
a.sinks.hdfs.channel = kafka
a.sinks.hdfs.hdfs.path = hdfs://namenode/events
a.sinks.hbase.type = hbase
a.sinks.hbase.channel = kafka
a.sinks.hbase.table = events
a.sinks.hbase.columnFamily = f
a.sinks.hbase.thrift = localhost:9090
a.sinks.solr.type = solr
a.sinks.solr.channel = kafka
a.sinks.solr.url = http://localhost:8983/solr/events
"""
ON_YARN = """
a.sources = s
a.sources.s.type = seq
a.sources.s.channels = c
a.channels = c
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = 127.0.0.1:9092
a.sinks = k
a.sinks.k.type = logger
a.sinks.k.channel = c
a.sinks.k.runner = spark
a.spark.master = yarn
"""
LIBRARIES = {
    "fastavro",
    "h11",
    "happybase",
    "kafka",
    "pandas",
    "prometheus_client",
    "pyhdfs",
    "pyspark",
    "pysolr",
    "requests",
    "starlette",
    "thriftpy2",
    "uvicorn",
}
"""Libraries that running components or the agent's HTTP server need, and a check does not."""
APART = {
    "flafka.agent.runner.spark.supervisor",
    "flafka.agent.services",
    "flafka.agent.sizing",
    "flafka.agent.yarn",
    "flafka.plugins.morphline.morphline",
}
"""Separate parts: only their own commands import them, or a configuration that needs them."""


def loaded(*arguments: str) -> set[str]:
    """Return the modules that this command of `agent` has imported when it ends."""
    script = (
        "import json, sys\n"
        "from flafka.__main__ import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_a_check_imports_no_library_that_only_running_components_need(tmp_path: Path) -> None:
    (tmp_path / "agent.conf").write_text(EVERYTHING.format(home=tmp_path))
    modules = loaded("check", "-c", str(tmp_path / "agent.conf"))
    assert {"pyarrow", "flafka.sources", "flafka.sinks"} <= modules  # the check has run
    assert not modules & (LIBRARIES | APART)


def test_only_the_named_built_in_components_are_imported() -> None:
    script = """
import sys
from flafka.plugins import Components
components = Components()
for kind, name in ("source", "SyslogTCP"), ("channel", "kafka"), ("interceptor", "mask"), ("sink", "file_roll"):
    assert components.get(kind, name).type_name == name.lower()
print(*sys.modules)
list(components.all("sink"))
assert "flafka.sinks.hdfs" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others = {"sources.taildir", "sources.avro", "sinks.hdfs", "sinks.solr", "interceptors.morphline"}
    assert not set(done.stdout.split()) & {f"flafka.{name}" for name in others}


def test_a_start_imports_no_separate_part() -> None:
    modules = loaded("start", "--help")
    assert "flafka.agent.runner.agent" in modules  # the start has run
    assert not modules & APART


def test_separate_parts_are_imported_by_the_commands_that_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert APART & loaded("size", "--help") == {"flafka.agent.sizing"}
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "agent.conf").write_text(ON_YARN)
    assert APART & loaded("check", "-c", str(tmp_path / "agent.conf")) == {"flafka.agent.yarn"}


def test_help_imports_few_modules() -> None:
    heavy = {*LIBRARIES, "confluent_kafka", "flafka.plugins", "numpy", "pyarrow", "pydantic", "rich"}
    assert not loaded("--help") & heavy


@pytest.mark.parametrize("plugins", ["[]", "[SimpleNamespace(is_built_in=False)]"])
def test_an_agent_without_plugins_does_not_import_pandas(plugins: str) -> None:
    pytest.importorskip("pandas")
    script = f"""
import sys
from types import SimpleNamespace
from flafka.agent import pandasimport
pandasimport.read_plugins = lambda: {plugins}
pandasimport.block_pandas_import()
from flafka.plugins import Batch, Event
import pyarrow as pa
assert pa.array(["x"]).equals(pa.array(["x"], pa.string()))
list(Batch.of([Event(b"x", {{"host": "web-1"}})]))
print("pandas" in sys.modules)
import pandas  # whoever wants it has it
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(plugins != "[]")

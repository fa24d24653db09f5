"""Servers found in Hadoop's own configuration, as a file from Flume expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinks.hdfs import HdfsConfig

HA = {
    "dfs.nameservices": "nameservice1,other",
    "dfs.ha.namenodes.nameservice1": "nn1, nn2",
    "dfs.namenode.rpc-address.nameservice1.nn1": "one.example.com:8020",
    "dfs.namenode.rpc-address.nameservice1.nn2": "two.example.com:8020",
    "dfs.namenode.http-address.nameservice1.nn1": "one.example.com:50070",
    "dfs.namenode.http-address.nameservice1.nn2": "0.0.0.0:${port}",
    "dfs.namenode.https-address.nameservice1.nn1": "one.example.com:50470",
    "dfs.namenode.http-address.other": "three:9870",
    "port": "50071",
}
BOTH = ["one.example.com:50070", "two.example.com:50071"]
ONE = {"dfs.namenode.rpc-address": "nn:8020", "dfs.namenode.http-address": "web:9999"}
DEFAULT = {"fs.defaultFS": "hdfs://nameservice1"}


def write(directory: Path, name: str, properties: dict[str, str]) -> None:
    directory.mkdir(exist_ok=True)
    lines = "".join(f"<property><name>{k}</name><value> {v}\n</value></property>" for k, v in properties.items())
    (directory / name).write_text(f"<?xml version='1.0'?><configuration>{lines}</configuration>")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FLUME_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("path", "core", "hdfs", "scheme", "hosts"),
    [
        ("hdfs://nameservice1/logs", {}, HA, "http", BOTH),
        ("webhdfs://nameservice1/logs", {}, HA, "http", BOTH),
        ("/logs", DEFAULT, HA, "http", BOTH),
        ("hdfs:///logs", DEFAULT, HA, "http", BOTH),
        ("hdfs://one.example.com:8020/logs", {}, HA, "http", BOTH[:1]),
        ("hdfs://two.example.com/logs", {}, HA, "http", BOTH[1:]),
        ("hdfs://other/logs", {}, HA, "http", ["three:9870"]),
        (
            "/logs",
            DEFAULT,
            HA | {"dfs.http.policy": "HTTPS_ONLY"},
            "https",
            ["one.example.com:50470", "two.example.com:9871"],
        ),
        ("hdfs://nn:8020/logs", {}, ONE, "http", ["web:9999"]),
        ("hdfs://nn/logs", {}, ONE, "http", ["web:9999"]),
        ("/logs", {"fs.defaultFS": "hdfs://nn:8020"}, {}, "http", ["nn:9870"]),
        ("/logs", {"fs.default.name": "hdfs://nn:8020/"}, ONE, "http", ["web:9999"]),
    ],
)
@pytest.mark.parametrize("variable", ["FLUME_CONF_DIR", "HADOOP_CONF_DIR"])
def test_servers_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    path: str,
    core: dict[str, str],
    hdfs: dict[str, str],
    scheme: str,
    hosts: list[str],
) -> None:
    write(tmp_path, "core-site.xml", core)
    write(tmp_path, "hdfs-site.xml", hdfs)
    monkeypatch.setenv(variable, str(tmp_path))
    config, problems = HdfsConfig.parse({"hdfs.path": path})
    assert config is not None, problems
    assert config.location == (scheme, hosts, "/logs")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "hdfs://unknown/logs",
            "add hdfs.webhdfs = unknown:9870, or of all NameNodes where unknown is a nameservice",
        ),
        ("hdfs://far:8020/logs", "add hdfs.webhdfs = far:9870"),
        ("/logs", "add hdfs.webhdfs = namenode:9870"),
    ],
)
def test_what_is_not_found_is_a_line_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str
) -> None:
    write(tmp_path, "core-site.xml", {"fs.defaultFS": "s3a://bucket"})
    write(tmp_path, "hdfs-site.xml", HA)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    _, problems = HdfsConfig.parse({"hdfs.path": path})
    assert [problem.option for problem in problems] == ["hdfs.webhdfs"]
    assert says in problems[0].message
    assert "HADOOP_CONF_DIR" in problems[0].message


def test_flumes_directory_comes_first_and_bad_xml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, host in (("flume", "first"), ("hadoop", "second")):
        write(tmp_path / name, "core-site.xml", {"fs.defaultFS": f"hdfs://{host}:8020"})
        monkeypatch.setenv(f"{name.upper()}_CONF_DIR", str(tmp_path / name))
    config, _ = HdfsConfig.parse({"hdfs.path": "/logs"})
    assert config is not None
    assert config.location.hosts == ["first:9870"]
    (tmp_path / "flume" / "core-site.xml").write_text("<configuration>")
    _, problems = HdfsConfig.parse({"hdfs.path": "/logs"})
    assert [p.message.partition(": ")[0] for p in problems] == [f"cannot read {tmp_path}/flume/core-site.xml"]

"""Servers found in Hadoop's own configuration, as a file from Flume expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.sinks.hdfs import HdfsConfig

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
            ["one.example.com:50470", "two.example.com"],
        ),
        ("hdfs://nn:8020/logs", {}, ONE, "http", ["web:9999"]),
        ("hdfs://nn/logs", {}, ONE, "http", ["web:9999"]),
        ("/logs", {"fs.defaultFS": "hdfs://nn:8020"}, {}, "http", ["nn"]),
        (
            "/logs",
            {"fs.defaultFS": "hdfs://nn"},
            {"dfs.namenode.http-address": "0.0.0.0:51070"},
            "http",
            ["nn:51070"],
        ),
        (
            "hdfs://nn/logs",
            {"fs.defaultFS": "hdfs://nn:8020"},
            {"dfs.namenode.http-address": "web:1"},
            "http",
            ["web:1"],
        ),
        (
            "hdfs://nn:8020/logs",
            {"fs.defaultFS": "hdfs://nn"},
            {"dfs.namenode.http-address": "web:1"},
            "http",
            ["web:1"],
        ),
        (
            "hdfs://far:8020/logs",
            {"fs.defaultFS": "hdfs://nn"},
            {"dfs.namenode.http-address": "web:1"},
            "http",
            ["far"],
        ),
        ("hdfs://far/logs", {}, {"dfs.namenode.http-address": ":51070"}, "http", ["far:51070"]),
        ("hdfs://far/logs", {}, {"dfs.http.policy": "HTTPS_ONLY"}, "https", ["far"]),
        ("hdfs://unknown/logs", DEFAULT, HA, "http", ["unknown"]),
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


@pytest.mark.parametrize("path", ["/logs", "hdfs:///logs", "hdfs:/logs", "hdfs://nn:8020/logs"])
@pytest.mark.parametrize("core", [None, {}, {"fs.defaultFS": "file:///"}])
def test_without_any_namenode_this_host_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, core: dict[str, str] | None
) -> None:
    if core is not None:
        write(tmp_path, "core-site.xml", core)
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    config, problems = HdfsConfig.parse({"hdfs.path": path})
    assert config is not None, problems
    named = "nn" in path
    assert config.location == ("http", ["nn" if named else "localhost"], "/logs")
    warnings = [(warning.option, "HDFS on this host is assumed" in warning.message) for warning in config.warnings()]
    assert warnings == ([] if named else [("hdfs.path", True)])


def test_another_default_filesystem_is_not_mistaken_for_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "core-site.xml", {"fs.defaultFS": "s3a://bucket"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    _, problems = HdfsConfig.parse({"hdfs.path": "/logs"})
    assert [problem.option for problem in problems] == ["hdfs.webhdfs"]
    assert "fs.defaultFS in Hadoop's configuration is s3a://bucket, which is not HDFS" in problems[0].message


@pytest.mark.parametrize(
    ("options", "environment", "hdfs", "path"),
    [
        ({}, {"HADOOP_USER_NAME": "ann"}, {}, "/user/ann/data/%Y"),
        ({}, {"HADOOP_USER_NAME": "50%"}, {}, "/user/50%%/data/%Y"),
        ({"hdfs.proxyUser": "bob"}, {"HADOOP_USER_NAME": "ann"}, {}, "/user/bob/data/%Y"),
        ({"hdfs.webhdfs": "nn:1"}, {"HADOOP_USER_NAME": "ann"}, {}, "/user/ann/data/%Y"),
        ({}, {"HADOOP_USER_NAME": "ann"}, {"dfs.user.home.dir.prefix": "/home"}, "/home/ann/data/%Y"),
    ],
)
def test_a_relative_path_begins_in_the_users_home(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    environment: dict[str, str],
    hdfs: dict[str, str],
    path: str,
) -> None:
    write(tmp_path, "hdfs-site.xml", hdfs)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config, problems = HdfsConfig.parse({"hdfs.path": "data/%Y", **options})
    assert config is not None, problems
    assert config.location.path == path


def test_flumes_directory_comes_first_and_bad_xml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, host in (("flume", "first"), ("hadoop", "second")):
        write(tmp_path / name, "core-site.xml", {"fs.defaultFS": f"hdfs://{host}:8020"})
        monkeypatch.setenv(f"{name.upper()}_CONF_DIR", str(tmp_path / name))
    config, _ = HdfsConfig.parse({"hdfs.path": "/logs"})
    assert config is not None
    assert config.location.hosts == ["first"]
    (tmp_path / "flume" / "core-site.xml").write_text("<configuration>")
    _, problems = HdfsConfig.parse({"hdfs.path": "/logs"})
    assert [p.message.partition(": ")[0] for p in problems] == [f"{tmp_path}/flume/core-site.xml cannot be read"]


@pytest.mark.parametrize(
    ("core", "is_secure"),
    [
        (None, True),
        ({}, False),
        ({"hadoop.security.authentication": "simple"}, False),
        ({"hadoop.security.authentication": "kerberos"}, True),
    ],
)
def test_a_kerberos_user_has_no_effect_where_hadoop_is_known_to_ask_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core: dict[str, str] | None, is_secure: bool
) -> None:
    if core is not None:
        write(tmp_path, "core-site.xml", core)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    kerberos = {"hdfs.kerberosPrincipal": "flume/_HOST@R", "hdfs.kerberosKeytab": "/k"}
    config, problems = HdfsConfig.parse({"hdfs.path": "hdfs://nn:8020/data", **kerberos})
    assert config is not None, problems
    assert config.is_secure() == is_secure
    (warning,) = [problem for problem in config.warnings() if problem.option.startswith("hdfs.kerberos")]
    expected = "cannot be used now: the keytab /k cannot be read" if is_secure else "has no effect, as core-site"
    assert warning.message.startswith(expected)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("fs.permissions.umask-mode", "u=rwx,g=rx,o=", {"umask": "027"}),
        ("fs.permissions.umask-mode", "077", {"umask": "077"}),
        ("dfs.blocksize", "128m", {"blocksize": "134217728"}),
        ("dfs.block.size", "1048576", {"blocksize": "1048576"}),
        ("dfs.replication", "2", {"replication": "2"}),
        ("fs.permissions.umask-mode", "rwx", "fs.permissions.umask-mode in core-site.xml must be like 027"),
        ("dfs.blocksize", "1 MB", "dfs.blocksize in hdfs-site.xml must be like 134217728 or 128m"),
        ("dfs.replication", "two", "dfs.replication in hdfs-site.xml must be a number"),
    ],
)
def test_files_are_created_like_hadoops_client_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, found: dict[str, str] | str
) -> None:
    text = f"<configuration><property><name>{name}</name><value>{value}</value></property></configuration>"
    (tmp_path / "hdfs-site.xml").write_text(text)
    monkeypatch.delenv("FLUME_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    config, problems = HdfsConfig.parse({"hdfs.path": "webhdfs://nn:9870/logs"})
    if isinstance(found, str):
        assert any(found in problem.message for problem in problems)
    else:
        assert config is not None
        assert config.file_settings == found

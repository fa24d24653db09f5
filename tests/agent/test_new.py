"""`agent new`: its output works unchanged, and passes its own test."""

from __future__ import annotations

import ast
import base64
import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.plugins import Components
from tests.fixtures.plugins import found_by_python, pass_tests_of
from tests.fixtures.ports import free_port

NAMES = {"source": "made-up-lines", "channel": "made-up-store", "sink": "made-up-file", "interceptor": "madeup"}


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["new", *words])


def make(kind: str, name: str, directory: Path) -> None:
    result = run(kind, name, "--directory", str(directory))
    assert result.exit_code == 0, result.output
    assert f"agent check -c {directory}/agent.conf" in result.output
    lines = [line.strip() for line in result.output.splitlines()]
    install = "pip install pytest" if kind == "processor" else f"pip install -e {directory} pytest"
    assert lines.index(install) < lines.index(f"python -m pytest {directory}"), "what is run is installed before"


@pytest.mark.parametrize("kind", NAMES)
def test_a_component_is_found_by_its_type_and_passes_its_test(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, directory = NAMES[kind], tmp_path / "new"
    make(kind, name, directory)
    module = found_by_python(directory, monkeypatch)
    assert Components().get(kind, name).__module__ == module
    checked = CliRunner().invoke(main, ["check", "-c", str(directory / "agent.conf"), "--strict"])
    assert checked.exit_code == 0, checked.output
    pass_tests_of(importlib.import_module(f"test_{module}"), tmp_path)
    text = "".join(file.read_text() for file in directory.glob("*.py"))
    for word in ("Java", "com.example", "my_", "My", "template"):
        assert word not in text.replace("may_", ""), word


@pytest.mark.parametrize("kind", NAMES)
def test_an_agent_delivers_with_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, port = tmp_path / "new", free_port()
    make(kind, f"{NAMES[kind]}-at-work", directory)
    found_by_python(directory, monkeypatch)
    (directory / "in").write_text("hello\n")
    file = directory / "agent.conf"
    file.write_text(f"{file.read_text().replace('5150', str(port))}a1.monitoring.port = 0\n")
    spec, problems = load(file, None, components=Components())
    assert spec is not None, problems
    agent = Agent(spec)
    agent.start()
    try:
        until(lambda: agent.sources[0].was_open.is_set(), "the source to be open")
        if kind != "source":
            with socket.create_connection(("127.0.0.1", port)) as sender:
                sender.sendall(b"hello\n")
                assert sender.recv(2) == b"OK"
        delivered = agent.sinks[0].members[0].metrics
        until(lambda: delivered.get("EventDrainSuccessCount") == 1, "the event to be delivered")
        until(lambda: agent.channels["c1"].metrics.get("ChannelSize") == 0, "the channel to be empty")
    finally:
        assert agent.stop()


def test_a_processor_comes_with_a_test_and_a_configuration(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    make("processor", "made-up-words", directory)
    assert "processor = made_up_words:made_up_words" in (directory / "agent.conf").read_text()
    ast.parse((directory / "test_made_up_words.py").read_text())
    checked = CliRunner().invoke(main, ["check", "-c", str(directory / "agent.conf")])
    assert checked.exit_code == 0, checked.output


@pytest.mark.usefixtures("servers")
def test_a_processor_passes_its_test(tmp_path: Path) -> None:
    make("processor", "made-up-counts", tmp_path / "new")
    directory = tmp_path / "new"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "events").write_text("an error\nfine\n")
    words = ["process", "-c", str(directory / "agent.conf"), "--events", str(tmp_path / "events"), "--json"]
    done = subprocess.run([sys.executable, "-m", "flafka", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    body = base64.b64encode(b"an error").decode()
    assert json.loads(line) == {"output": "found", "row": {"body": body, "headers": {"bytes": "8"}}}


def test_a_new_agent_is_complete(tmp_path: Path) -> None:
    result = run("agent", "mine", "--directory", str(tmp_path / "new"))
    assert result.output.splitlines()[-1] == f"  agent start -c {tmp_path / 'new'}/agent.conf", result.output
    with (tmp_path / "new/agent.conf").open("a") as file:  # another agent of this host may have the usual port
        file.write(f"\na1.monitoring.port = {free_port()}\n")
    checked = CliRunner().invoke(main, ["check", "-c", str(tmp_path / "new/agent.conf"), "--connect"])
    assert checked.exit_code == 0, checked.output
    tested = CliRunner().invoke(main, ["test", str(tmp_path / "new/agent.test.toml")])
    assert tested.exit_code == 0, tested.output


def test_json_names_the_files(tmp_path: Path) -> None:
    result = run("sink", "made-up", "--directory", str(tmp_path / "new"), "--json")
    assert json.loads(result.output)["files"] == ["agent.conf", "made_up.py", "pyproject.toml", "test_made_up.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["source", "My Source"], "'My Source' is not a valid name of a source"),
        (["source", "json"], "a Python module json exists"),
        (["sink", "file_roll"], "a sink of type file_roll exists"),
        (["source", "class"], "a Python module class exists"),
    ],
)
def test_names_that_cannot_work_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    result = run(*words, "--directory", str(tmp_path / "new"))
    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("agent", "mine", "--directory", str(tmp_path))
    assert "is not empty" in result.output
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", NAMES)
def test_pip_installs_it_in_place(kind: str, tmp_path: Path) -> None:
    name, directory, environment = NAMES[kind], tmp_path / "new", tmp_path / "venv"
    make(kind, name, directory)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    packages = next((environment / "lib").glob("python*/site-packages"))
    here = [Path(__file__).parents[2], *(Path(path) for path in sys.path if path.endswith("site-packages"))]
    (packages / "shared.pth").write_text("".join(f"{path}\n" for path in here))
    clean_environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def python(*words: str | Path) -> None:
        command = [environment / "bin/python", "-m", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    python("pip", "install", "--quiet", "--no-deps", "-e", directory)
    python("pytest", "-q", "-p", "no:cacheprovider", directory)
    (tmp_path / "in").touch()
    python("agent", "check", "--strict", "-c", directory / "agent.conf")
    python("agent", "explain", kind, name)

"""`agent new`: its output works unchanged, and passes its own test."""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib
import itertools
import json
import os
import pty
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.pipelinetemplate import SETTINGS, Pipeline, render
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.plugins import Components
from tests.fixtures.plugins import found_by_python, pass_tests_of
from tests.fixtures.ports import free_port

ROOT = Path(__file__).parents[2]
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


def test_every_combination_passes_its_check_and_its_test(tmp_path: Path) -> None:
    components = Components()
    warnings = set()
    for types in itertools.product(*(SETTINGS[kind] for kind in ("source", "channel", "sink"))):
        pipeline, file = Pipeline(*types), tmp_path / "agent.conf"
        file.write_text(render(components, pipeline, "mine", tmp_path, {}))
        spec, problems = load(file, None, components=components)
        assert spec is not None, (types, problems)
        warnings |= {(types[1:], problem.severity, problem.message.split(" until")[0]) for problem in problems}
    assert warnings == {(("memory", "hdfs"), "warning", "leaves its events in a channel of type memory")}


@pytest.mark.parametrize("source", SETTINGS["source"])
def test_its_test_passes(source: str, tmp_path: Path) -> None:
    """Each source with some of the sinks: together all of them, and each channel."""
    number = [*SETTINGS["source"]].index(source)
    channel, sink = ([*SETTINGS[kind]][number % len(SETTINGS[kind])] for kind in ("channel", "sink"))
    result = run(
        "agent", "mine", "--directory", str(tmp_path), "--source", source, "--channel", channel, "--sink", sink
    )
    assert result.exit_code == 0, result.output
    tested = CliRunner().invoke(main, ["test", str(tmp_path / "agent.test.toml")])
    assert tested.exit_code == 0, tested.output


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_built_in_type_has_a_template(kind: str) -> None:
    assert {cls.type_name for cls in Components(entry_points=True).all(kind)} - {"spark"} >= {*SETTINGS[kind]}
    built_in = {file.stem.split("-")[1] for file in (ROOT / "docs/samples").glob(f"{kind}-*.conf")}
    assert built_in - {"spark"} == {*SETTINGS[kind]}


def test_directories_are_created_only_where_they_are_used(tmp_path: Path) -> None:
    run("agent", "mine", "--directory", str(tmp_path / "files"))
    run("agent", "mine", "--directory", str(tmp_path / "servers"), "--source", "HTTP", "--sink", "logger")
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"agent.conf", "agent.test.toml", "in", "out"}
    assert {path.name for path in (tmp_path / "servers").iterdir()} == {"agent.conf", "agent.test.toml"}


def test_json_asks_nothing_and_names_the_files(tmp_path: Path) -> None:
    result = run("agent", "mine", "--directory", str(tmp_path / "new"), "--sink", "null", "--json")
    assert json.loads(result.output)["files"] == ["agent.conf", "agent.test.toml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sink", "hdsf"], "--sink: unknown sink type 'hdsf', did you mean 'hdfs'?"),
        (["--source", "jms"], "; choose one of taildir, syslogtcp,"),
        (["--sink", "spark"], "--sink spark: `agent new processor NAME` makes one"),
        (["-c", "agent.conf"], "EVENTS and -c are for a test"),
    ],
)
def test_types_without_a_template_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    result = run("agent", "mine", "--directory", str(tmp_path / "new"), *words)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "new").exists()


def test_a_terminal_is_asked(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "flafka", "new", "agent", "mine"])
    answers = {
        "source [taildir]: ": "sysl0g",
        "Error: 'sysl0g' is not one of": "",  # what is no type is asked again
        "source [taildir]:": "SyslogTCP",
        "channel [file]: ": "",
        "sink [file_roll]: ": "",
        "source syslogtcp: port [5140]: ": "1514",
        f"sink file_roll: sink.directory [{tmp_path}/mine/out]: ": "",
        "agent start -c mine/agent.conf": "",
    }
    shown = ""
    try:
        for question, answer in answers.items():
            while question not in shown:
                assert select.select([terminal], [], [], 30)[0], (question, shown)
                shown += os.read(terminal, 4096).decode()
            shown = shown.partition(question)[2]
            if answer or question.endswith(": "):
                os.write(terminal, f"{answer}\n".encode())
        with contextlib.suppress(OSError):  # the end of the process ends the terminal
            while os.read(terminal, 4096):
                pass
    finally:
        os.close(terminal)
        _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    text = (tmp_path / "mine/agent.conf").read_text()
    assert "\na1.sources.in.port = 1514\n" in text
    assert f"\na1.sinks.out.sink.directory = {tmp_path}/mine/out\n" in text
    checked = CliRunner().invoke(main, ["check", "-c", str(tmp_path / "mine/agent.conf"), "--strict"])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("words", [[], ["--sink", "hdfs"]])
def test_a_pipe_is_never_asked(words: list[str], tmp_path: Path) -> None:
    """A pipe that stays open and empty would block a question."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "flafka", "new", "agent", "mine", *words]
    try:
        done = subprocess.run(command, stdin=reader, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine/agent.conf").exists()


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

"""`agent new`: what it makes works as it is, and passes its own test."""

from __future__ import annotations

import ast
import base64
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import main
from agent.services.running import free_port
from plugins import Components

NAMES = {"source": "made-up-lines", "sink": "made-up-file", "interceptor": "madeup"}


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["new", *words])


def make(kind: str, name: str, directory: Path) -> None:
    shown = run(kind, name, "--directory", str(directory))
    assert shown.exit_code == 0, shown.output
    assert f"agent check -c {directory}/agent.conf" in shown.output


def found_by_python(directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `pip install -e` leaves it: on the path, with the entry point of its pyproject.toml. Answers its module."""
    module = name.replace("-", "_")
    about = directory / f"{module}-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    project = (directory / "pyproject.toml").read_text()
    entry = project.partition("[project.entry-points.flafka]\n")[2].partition("\n")[0].replace('"', "")
    (about / "entry_points.txt").write_text(f"[flafka]\n{entry}\n")
    monkeypatch.syspath_prepend(directory)
    for one in (module, f"test_{module}"):
        monkeypatch.delitem(sys.modules, one, raising=False)
    return module


def pass_tests_of(module: ModuleType, directory: Path) -> None:
    names = [name for name in vars(module) if name.startswith("test_")]
    assert names
    for name in names:
        test = vars(module)[name]
        test(*[directory] * len(test.__annotations__.keys() - {"return"}))


@pytest.mark.parametrize("kind", NAMES)
def test_a_component_is_found_by_its_type_and_passes_its_test(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, directory = NAMES[kind], tmp_path / "new"
    make(kind, name, directory)
    module = found_by_python(directory, name, monkeypatch)
    assert Components().get(kind, name).__module__ == module
    checked = CliRunner().invoke(main, ["check", "-c", str(directory / "agent.conf"), "--strict"])
    assert checked.exit_code == 0, checked.output
    pass_tests_of(importlib.import_module(f"test_{module}"), tmp_path)
    text = "".join(file.read_text() for file in directory.glob("*.py"))
    for word in ("Java", "com.example", "my_", "My", "template"):
        assert word not in text.replace("may_", ""), word


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
    done = subprocess.run([sys.executable, "-m", "agent", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    body = base64.b64encode(b"an error").decode()
    assert json.loads(line) == {"output": "found", "row": {"body": body, "headers": {"bytes": "8"}}}


def test_an_agent_is_whole(tmp_path: Path) -> None:
    make("agent", "mine", tmp_path / "new")
    with (tmp_path / "new/agent.conf").open("a") as file:  # another agent of this host may have the usual port
        file.write(f"\na1.monitoring.port = {free_port()}\n")
    checked = CliRunner().invoke(main, ["check", "-c", str(tmp_path / "new/agent.conf"), "--connect"])
    assert checked.exit_code == 0, checked.output
    tested = CliRunner().invoke(main, ["test", str(tmp_path / "new/agent.test.toml")])
    assert tested.exit_code == 0, tested.output


def test_json_names_the_files(tmp_path: Path) -> None:
    shown = run("sink", "made-up", "--directory", str(tmp_path / "new"), "--json")
    assert json.loads(shown.output)["files"] == ["agent.conf", "made_up.py", "pyproject.toml", "test_made_up.py"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["source", "My Source"], "'My Source' is no name for a source"),
        (["source", "json"], "there is a Python module json already"),
        (["sink", "file_roll"], "there is a sink of the type file_roll already"),
        (["source", "class"], "there is a Python module class already"),
    ],
)
def test_names_that_cannot_work_are_refused(words: list[str], told: str, tmp_path: Path) -> None:
    shown = run(*words, "--directory", str(tmp_path / "new"))
    assert shown.exit_code == 1
    assert told in shown.output
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = run("agent", "mine", "--directory", str(tmp_path))
    assert "is not empty" in shown.output
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.soak
def test_pip_installs_it_in_place(tmp_path: Path) -> None:
    make("interceptor", "madeup", tmp_path / "new")
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    packages = next((environment / "lib").glob("python*/site-packages"))
    here = [Path(__file__).parents[2], *(Path(path) for path in sys.path if path.endswith("site-packages"))]
    (packages / "shared.pth").write_text("".join(f"{path}\n" for path in here))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "-e", tmp_path / "new"]
    subprocess.run(pip, check=True)
    done = subprocess.run(
        [python, "-m", "agent", "check", "-c", tmp_path / "new/agent.conf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

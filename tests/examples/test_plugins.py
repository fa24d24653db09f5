"""Plugins of conf/examples/plugins: each passes its own tests, and its type works once it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.plugins import Components
from flafka.plugins.manager import kind_of
from tests.fixtures.plugins import copy_of, found_by_python
from tests.interop.debian import unpacked

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "conf/examples/plugins").glob("*/pyproject.toml"))
SERVERS = {
    "journald": ("JOURNAL_REMOTE", "systemd-journal-remote", ("systemd-journal-remote", "libmicrohttpd12")),
    "redis_stream": (
        "REDIS_SERVER",
        "redis-server",
        ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"),
    ),
}
"""By plugin: the variable that names its program, and Debian's packages of it."""


def named(plugin: Path) -> str:
    return plugin.name


@pytest.mark.parametrize("plugin", PLUGINS, ids=named)
def test_the_type_of_a_plugin_works_once_installed(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copy_of(plugin, tmp_path / plugin.name)
    module = found_by_python(directory, monkeypatch)
    components = Components()
    assert not components.faults
    brought = [
        cls for kind in ("source", "interceptor", "sink") for cls in components.all(kind) if cls.__module__ == module
    ]
    assert [cls.type_name for cls in brought] == [plugin.name]
    assert kind_of(brought[0]) is not None
    result = CliRunner().invoke(main, ["check", "--strict", "-c", str(directory / "agent.conf")])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("plugin", PLUGINS, ids=named)
def test_a_plugin_passes_its_own_tests(plugin: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{plugin}", "PYTHONDONTWRITEBYTECODE": "1"}
    if plugin.name in SERVERS:
        variable, program, packages = SERVERS[plugin.name]
        found, libraries = unpacked(program, *packages)
        environment |= {variable: str(found), **libraries}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(plugin), str(plugin)]
    done = subprocess.run(command, cwd=plugin, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


@pytest.mark.usefixtures("lengthy")
def test_plugins_pass_the_type_checker(pytestconfig: pytest.Config) -> None:
    cache = f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"
    options = ["--strict", cache, "--config-file", os.devnull, "--follow-imports=silent"]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, [ROOT, *PLUGINS]))}
    command = [sys.executable, "-m", "mypy", *options, *PLUGINS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugins_import_only_public_modules() -> None:
    for file in (file for plugin in PLUGINS for file in plugin.glob("*.py")):
        imported = {
            line.split()[1] for line in file.read_text().splitlines() if line.startswith(("from ", "import "))
        }
        ours = {name for name in imported if name.partition(".")[0] in {path.stem for path in ROOT.iterdir()}}
        assert ours <= {"flafka", "flafka.plugins"}, file

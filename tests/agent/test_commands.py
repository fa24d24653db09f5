"""The command `agent` itself: first steps, help that comes at once, completion, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from agent.cli import COMMANDS, FIRST_STEPS, main

QUIET = {"demo", "start", "template"}
"""Commands that print nothing but a log or a program."""


def test_without_a_command_it_says_what_to_do_next() -> None:
    shown = CliRunner().invoke(main, [], prog_name="agent", terminal_width=80)
    lines = [line.strip() for line in shown.output.splitlines()]
    first = lines.index("First steps:") + 1
    assert [" ".join(line.split()) for line in lines[first : first + 5]] == [" ".join(step) for step in FIRST_STEPS]
    assert first < lines.index("Commands:")


def test_every_first_step_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line, _ in FIRST_STEPS:
        _, name, *words = line.split()
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        if name in ("new", "check"):
            assert CliRunner().invoke(main, [name, *words]).exit_code == 0
        else:
            command.make_context(name, words)


def test_completion_knows_the_commands_without_importing_them() -> None:
    found = BashComplete(main, {}, "agent", "_AGENT_COMPLETE").get_completions([], "t")
    assert [one.value for one in found] == [name for name in COMMANDS if name.startswith("t")]
    script = (
        "import sys\nfrom click.shell_completion import BashComplete\nfrom agent.cli import main\n"
        "BashComplete(main, {}, 'agent', 'X').get_completions([], '')\n"
        "print([m for m in sys.modules if m.startswith('agent.cli.') or m in ('pydantic', 'pyarrow')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_completion_knows_options() -> None:
    found = BashComplete(main, {}, "agent", "_AGENT_COMPLETE").get_completions(["top"], "--int")
    assert [one.value for one in found] == ["--interval"]


def commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    return [one for child, sub in command.commands.items() for one in commands(sub, f"{name} {child}")]


def test_the_help_of_every_command_fits_a_terminal_and_needs_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for top in COMMANDS:
        found = main.get_command(click.Context(main), top)
        assert found is not None
        for called, _ in commands(found, top):
            shown = CliRunner().invoke(main, [*called.split(), "--help"], terminal_width=80)
            assert shown.exit_code == 0, (called, shown.output)
            assert "Options:" in shown.output, called
            assert not [line for line in shown.output.splitlines() if len(line) > 80], called


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in QUIET])
def test_what_prints_prints_json_too(name: str) -> None:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    lacking = {called for called, one in commands(found, name) if "as_json" not in {p.name for p in one.params}}
    # These do something, and print nothing on standard output but another program's own output.
    assert lacking <= {
        *("cluster stop", "sandbox down", "sandbox hdfs", "sandbox hbase", "sandbox fetch"),
        *("topic create", "topic delete"),
    }


def test_the_graph_in_json() -> None:
    conf = str(Path(__file__).parents[2] / "conf/quickstart.conf")
    shown = CliRunner().invoke(main, ["graph", "-c", conf, "--json"])
    assert json.loads(shown.output)["agent"] == "a1"

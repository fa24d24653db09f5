"""Command `agent` itself: first steps, quick help, completion, JSON."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from flafka.agent import cli
from flafka.agent.cli import COMMAND_GROUPS, COMMANDS, FIRST_STEPS, main
from flafka.agent.runner.deadletters.store import DeadLetter, FileDeadLetterStore
from flafka.plugins import Event, EventId

CONF = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = seq
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""


def test_without_a_command_the_first_steps_are_shown() -> None:
    result = CliRunner().invoke(main, [], prog_name="agent", terminal_width=80)
    lines = [line.strip() for line in result.output.splitlines()]
    first = lines.index("First steps:") + 1
    assert [" ".join(line.split()) for line in lines[first : first + 5]] == [" ".join(step) for step in FIRST_STEPS]
    assert first < lines.index("Every day:")


def test_help_lists_each_command_once_under_one_of_four_headings() -> None:
    shown = CliRunner().invoke(main, ["--help"], prog_name="agent", terminal_width=80).output
    assert not [line for line in shown.splitlines() if len(line) > 80]
    _, *sections = re.split(r"^(\S.*):\n", shown.partition("First steps:")[2], flags=re.MULTILINE)
    listed = {
        heading: [line.split()[0] for line in text.splitlines() if line]
        for heading, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert listed == {heading: [*names] for heading, names in COMMAND_GROUPS.items()}
    assert len(listed) == 4
    modules = {file.stem for file in Path(cli.__path__[0]).glob("*.py")}
    found = {name.replace("_", "-") for name in modules if isinstance(command_in(name), click.Command)}
    assert found == {*COMMANDS}
    assert sum(map(len, listed.values())) == len(COMMANDS)


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
    items = BashComplete(main, {}, "agent", "_AGENT_COMPLETE").get_completions([], "t")
    assert [item.value for item in items] == [name for name in COMMANDS if name.startswith("t")]
    script = (
        "import sys\nfrom click.shell_completion import BashComplete\nfrom flafka.agent.cli import main\n"
        "BashComplete(main, {}, 'agent', 'X').get_completions([], '')\n"
        "print([m for m in sys.modules if m.startswith('flafka.agent.cli.') or m in ('pydantic', 'pyarrow')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_completion_knows_options() -> None:
    items = BashComplete(main, {}, "agent", "_AGENT_COMPLETE").get_completions(["top"], "--int")
    assert [item.value for item in items] == ["--interval"]


def command_in(name: str) -> object:
    """Return the command of a module's own name, or None."""
    return getattr(importlib.import_module(f"flafka.agent.cli.{name}"), name, None)


def top_command(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    return [verb for child, sub in command.commands.items() for verb in commands(sub, f"{name} {child}")]


def test_the_help_of_every_command_fits_a_terminal_and_needs_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for called in VERBS:
        result = CliRunner().invoke(main, [*called.split(), "--help"], terminal_width=80)
        assert result.exit_code == 0, (called, result.output)
        assert "Options:" in result.output, called
        assert not [line for line in result.output.splitlines() if len(line) > 80], called


@pytest.mark.parametrize("group", [name for name in COMMANDS if isinstance(top_command(name), click.Group)])
def test_the_purpose_of_a_verb_is_not_cut_off(group: str) -> None:
    listed = CliRunner().invoke(main, [group, "--help"], terminal_width=80).output.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


VERBS = dict(verb for top in COMMANDS for verb in commands(top_command(top), top))
SILENT = {
    *("start", "template", "completion", "grammar"),  # a log, with --log-format json; programs
    *("cluster stop", "sandbox down", "topic create", "topic delete"),  # they act without output
    *("sandbox hdfs", "sandbox hbase", "sandbox kinit"),  # another program's own output; lines for a shell
    *(
        f"flume-ng {name}" for name in ("agent", "avro-client", "help", "password", "tool", "version")
    ),  # as Flume does
}
"""Verbs that print no data of ours on standard output."""
HERE = {
    "check": "-c agent.conf",
    "cluster status": "--dir cluster",
    "dlq list": "-c agent.conf",
    "dlq replay": "-c agent.conf --dry-run",
    "dlq show": "-c agent.conf",
    "env": "",
    "explain": "sink hdfs",
    "graph": "-c agent.conf",
    "migrate": "agent.conf",
    "new": "sink made",
    "sandbox fetch": "bundle solr",
    "sandbox status": "",
    "size": "--events 1000 --bytes 200",
    "test": "agent.test.toml",
    "trace": "-c agent.conf c1-0-1-0",
}
"""Verbs without servers, with arguments; `cluster status` of a cluster that never ran prints nothing."""
ELSEWHERE = {
    "audit": "system/test_audit.py",
    "cluster start": "system/test_cluster_cli.py",
    "cluster describe": "system/test_kafka_commands.py",
    "cluster elect-leaders": "system/test_kafka_commands.py",
    "cluster quotas list": "system/test_kafka_commands.py",
    "cluster quotas remove": "system/test_kafka_commands.py",
    "cluster quotas set": "system/test_kafka_commands.py",
    "cluster reassign cancel": "system/test_kafka_commands.py",
    "cluster reassign list": "system/test_kafka_commands.py",
    "cluster reassign start": "system/test_kafka_commands.py",
    "cluster reassign wait": "system/test_kafka_commands.py",
    "dashboard": "agent/test_fleet.py",
    "demo": "soak/test_release_at_length.py",
    "group describe": "system/test_cluster_cli.py",
    "group list": "system/test_cluster_cli.py",
    "group move": "system/test_groups.py",
    "group reset": "system/test_cluster_cli.py",
    "process": "agent/test_new.py",
    "reload": "system/test_reload.py",
    "replay": "system/test_replay_and_trace.py",
    "sandbox up": "system/test_sandbox.py",
    "spark upload": "system/test_yarn.py",
    "tap": "agent/test_tap.py",
    "top": "agent/test_top.py",
    "topic consume": "system/test_kafka_commands.py",
    "topic describe": "system/test_cluster_cli.py",
    "topic list": "system/test_cluster_cli.py",
    "topic produce": "system/test_kafka_commands.py",
}
"""Verbs with servers, and the tests that read their JSON."""


def test_every_verb_that_prints_prints_json_too() -> None:
    assert {*HERE, *ELSEWHERE} | SILENT == {*VERBS}
    assert {
        called for called, command in VERBS.items() if "as_json" not in {p.name for p in command.params}
    } == SILENT
    for called, file in ELSEWHERE.items():
        written = (Path(__file__).parents[1] / file).read_text()
        assert "--json" in written, called
        assert re.search(rf"\b{called.split()[-1]}\b", written), called


@pytest.mark.parametrize("called", HERE)
def test_the_output_is_json_and_nothing_else(called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("flafka.agent.jvm.jars.bundle", lambda *_: 5)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    conf = f"{CONF}a1.deadletters.directory = {tmp_path}\n"
    (tmp_path / "agent.conf").write_text(conf)
    (tmp_path / "agent.test.toml").write_text("")
    letters = FileDeadLetterStore(tmp_path / "a1.c1.deadletters.jsonl")
    letters.put([DeadLetter("a1.sinks.k1", EventId("c1", 0, 1, 0), Event(b"body"), "it was refused")])
    letters.close()
    result = CliRunner().invoke(main, [*called.split(), *HERE[called].split(), "--json"])
    if called == "cluster status":
        assert (result.stdout, result.exit_code) == ("", 1)
    else:
        assert json.loads(result.stdout)


def test_the_graph_in_json() -> None:
    conf = str(Path(__file__).parents[2] / "conf/quickstart.conf")
    result = CliRunner().invoke(main, ["graph", "-c", conf, "--json"])
    assert json.loads(result.output)["agent"] == "a1"


@pytest.mark.parametrize(("ended", "code"), [("sys.exit(3)", 3), ("sys.exit('told')", 1), ("None", 0), ("1 / 0", 1)])
def test_a_process_with_a_kafka_client_ends_without_the_exit_handlers_of_c(ended, code):
    """OpenSSL has a handler that frees memory which a client's thread uses in a TLS handshake."""
    program = f"""
import atexit, ctypes, sys
import flafka.__main__, flafka.agent.cli, confluent_kafka
handler = ctypes.CFUNCTYPE(None)(lambda: print("C's own", flush=True))
ctypes.CDLL(None).on_exit(handler, None)

def main():
    atexit.register(print, "Python's")
    print("buffered", end=" ")
    {ended}

flafka.agent.cli.main = main
flafka.__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("buffered Python's\n", code), done.stderr
    assert ("told" in done.stderr, "ZeroDivisionError" in done.stderr) == ("told" in ended, "/" in ended)

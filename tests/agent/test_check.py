"""`agent check`, and the features that all commands share: help, errors, options that name a configuration."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import flafka.agent.cli
from flafka.agent.cli import check as check_module
from flafka.agent.cli import configuration, main
from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_or_exit
from flafka.plugins import FlafkaError
from tests.agent.config_sample import ANSWERED, COMPONENTS
from tests.agent.test_config_errors import GOOD, changed

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `agent` in a directory with `good.conf`, `bad.conf` and a conf directory."""
    monkeypatch.setattr(configuration, "Components", lambda: COMPONENTS)
    monkeypatch.setenv("FLUME_CONF_DIR", "")  # so that the value that -c DIR sets is removed after the test
    monkeypatch.chdir(tmp_path)
    Path("good.conf").write_text(GOOD)
    Path("warn.conf").write_text(changed("9 | a1.channels.c1.capacty = 1"))
    Path("bad.conf").write_text(changed("9 | a1.sinks.k1.limti = 1", "10 | a1.channels.c1.capacty = 1"))
    Path("conf").mkdir()
    return lambda *args: CliRunner().invoke(main, args)


def test_a_good_one(run: Run) -> None:
    result = run("check", "-c", "good.conf")
    assert (result.exit_code, result.output) == (
        0,
        "good.conf: agent a1 would run:\n  s1 (ticks) → c1 (memory) → k1 (index)\n",
    )


def test_a_bad_one(run: Run) -> None:
    result = run("check", "-c", "bad.conf")
    assert (result.exit_code, result.output) == (
        2,
        "bad.conf:9: a1.sinks.k1: unknown option 'limti', did you mean 'limit'?\n"
        "bad.conf:10: warning: a1.channels.c1: unknown option 'capacty', did you mean 'capacity'? (ignored)\n"
        "1 error, 1 warning: it would not start\n",
    )


def test_a_library_that_is_missing_is_an_error_with_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPONENTS.get("sink", "index"), "libraries", {"json": "x", "no_such_library": "solr"})
    message = "good.conf:7: a1.sinks.k1: no_such_library is not installed: pip install 'flafka[solr]'"
    checked = run("check", "-c", "good.conf")
    assert (checked.exit_code, checked.output) == (2, f"{message}\n1 error: it would not start\n")
    started = run("start", "-c", "good.conf")
    assert (started.exit_code, started.output) == (2, f"{message}\n1 error; nothing was started\n")
    migrated = run("migrate", "good.conf")
    assert "pip install" not in migrated.output, "it is no matter of the file"


def test_warnings_do_not_fail_but_for_strict(run: Run) -> None:
    result = run("check", "-c", "warn.conf")
    assert result.exit_code == 0
    assert result.output.splitlines()[1] == "warn.conf: agent a1 would run, with 1 warning:"
    strict = run("check", "-c", "warn.conf", "--strict")
    assert strict.exit_code == 2
    assert strict.output.splitlines()[-1] == "1 error: it would not start"


@pytest.mark.parametrize(
    ("type_name", "message"),
    [
        (
            "irc",
            "Flume's 'irc' sink is not supported; write a sink in Python: `agent template sink` prints one to start "
            "from",
        ),
        ("hdfs", "hdfs.path is required: add a1.sinks.k1.hdfs.path = …"),
    ],
)
def test_no_agent_runs_without_an_invalid_sink(run: Run, type_name: str, message: str) -> None:
    Path("bad.conf").write_text(changed(f"7 | a1.sinks.k1.type = {type_name}", "6 | a1.channels.c1.type = kafka"))
    for command, end in ("check", "it would not start"), ("start", "nothing was started"):
        result = run(command, "-c", "bad.conf")
        assert result.exit_code == 2
        assert result.output.splitlines()[0] == f"bad.conf:7: a1.sinks.k1: {message}"
        assert result.output.splitlines()[-1].endswith(end)


def test_the_flow_of_a_larger_one(run: Run) -> None:
    Path("big.conf").write_text(
        changed(
            "3 | a1.sinks = k1 k2",
            "6 | a1.channels.c1.type = kafka",
            "9 | a1.sinks.k2.type = hdfs",
            "+ | a1.sinks.k2.channel = c1",
            "+ | a1.sinks.k2.hdfs.path = /x",
            "+ | a1.sinks.k2.group = archive",
            "+ | a1.sinks.k2.runner = spark",
        )
    )
    result = run("check", "-c", "big.conf")
    ways = [
        "s1 (ticks) → c1 (kafka)",
        "c1 → k1 (index)",
        "c1 → k2 (hdfs, on Spark, group archive)",
    ]
    assert result.output.splitlines()[1:4] == [f"  {way}" for way in ways]
    assert run("graph", "-c", "big.conf").output.splitlines() == ways


def test_the_flow_of_a_sink_group(run: Run) -> None:
    Path("group.conf").write_text(
        changed(
            "3 | a1.sinks = k1 k2",
            "9 | a1.sinks.k2.type = index",
            "+ | a1.sinks.k2.channel = c1",
            "+ | a1.sinkgroups = g",
            "+ | a1.sinkgroups.g.sinks = k1 k2",
            "+ | a1.sinkgroups.g.processor.type = load_balance",
        )
    )
    result = run("check", "-c", "group.conf")
    assert result.output.splitlines()[1:] == [
        "  s1 (ticks) → c1 (memory)",
        "  c1 → k1 (index)",
        "  c1 → k2 (index)",
        "  sink group g: load_balance of k1, k2",
    ]


def test_json(run: Run) -> None:
    bad = json.loads(run("check", "-c", "bad.conf", "--json").output)
    assert bad == {
        "file": "bad.conf",
        "agent": "a1",
        "ok": False,
        "diagnostics": [
            {
                "severity": "error",
                "file": "bad.conf",
                "line": 9,
                "component": "a1.sinks.k1",
                "message": "unknown option 'limti', did you mean 'limit'?",
            },
            {
                "severity": "warning",
                "file": "bad.conf",
                "line": 10,
                "component": "a1.channels.c1",
                "message": "unknown option 'capacty', did you mean 'capacity'? (ignored)",
            },
        ],
        "flow": [],
        "paths": {},
        "starts": False,
        "asked": False,
    }
    report = json.loads(run("check", "-c", "none.conf", "--json").output)
    assert (report["ok"], report["agent"]) == (False, None)
    assert json.loads(run("check", "-c", "bad.conf", "-n", "b1", "--json").output)["agent"] is None
    good = json.loads(run("check", "-c", "good.conf", "--json").output)
    assert (good["ok"], good["agent"], good["flow"]) == (True, "a1", ["s1 (ticks) → c1 (memory) → k1 (index)"])


# --- Flume's command lines


def test_flumes_conf_directory_is_where_components_look_for_hadoops_files(run: Run) -> None:
    run("check", "-n", "a1", "-c", "conf", "-f", "good.conf")
    assert os.environ["FLUME_CONF_DIR"] == str(Path("conf").absolute())


def test_flumes_spelling(run: Run) -> None:
    assert run("check", "-n", "a1", "-c", "conf", "-f", "good.conf").exit_code == 0
    assert run("check", "--name", "a1", "--conf", "no-such-dir", "--conf-file", "good.conf").exit_code == 0
    given = "-Dflume.monitoring.type=http", "-Dflume.monitoring.port=34545", "-Dflume.root.logger=INFO,console"
    assert run("check", "-n", "a1", "-f", "good.conf", *given).exit_code == 0
    result = run("check", "-f", "good.conf", "-Dflume.monitoring.port=x")
    assert result.output.splitlines()[0] == (
        "-Dflume.monitoring.port: a1: monitoring.port must be a whole number, not 'x'"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "which configuration? Name it with -c FILE"),
        (["-c", "conf"], "conf is a directory (Flume's conf directory); name the configuration with -f"),
        (["-c", "good.conf", "-f", "bad.conf"], "both -c good.conf and -f bad.conf are files; give one of them"),
    ],
)
def test_usage_errors(args: list[str], message: str, run: Run) -> None:
    result = run("check", *args)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == f"Error: {message}"


def test_a_directory_with_a_configuration_in_it(run: Run) -> None:
    Path("conf/flume.conf").write_text(GOOD)
    assert run("check", "-c", "conf").output.splitlines()[-1].endswith("-f: -f conf/flume.conf")


def test_no_such_file_and_no_such_agent(run: Run) -> None:
    result = run("check", "-c", "none.conf")
    assert (result.exit_code, result.output.splitlines()[0]) == (
        2,
        "none.conf: cannot be read: No such file or directory",
    )
    result = run("check", "-c", "good.conf", "-n", "a2")
    assert result.output.splitlines()[0] == "good.conf: no agent 'a2' (agents in the file: a1)"


# --- --connect


@pytest.mark.parametrize(("url", "error"), [("broken", "probe fell over"), ("ending", "there is no licence")])
def test_connect_checks_every_component(run: Run, url: str, error: str) -> None:
    Path("good.conf").write_text(changed(f"9 | a1.sinks.k1.url = http://{url}"))
    result = run("check", "-c", "good.conf", "--connect", "-Dflume.monitoring.port=0")
    assert (result.exit_code, result.output) == (
        2,
        "good.conf:4: a1.sources.s1: the clock has stopped\n"
        f"good.conf:7: a1.sinks.k1: {error}\n"
        "2 errors: it would start, and retry these components: a1.sources.s1, a1.sinks.k1\n",
    )
    assert run("check", "-c", "good.conf").exit_code == 0


def test_connect_reports_that_servers_were_not_contacted_after_errors_in_the_file(run: Run) -> None:
    result = run("check", "-c", "bad.conf", "--connect")
    assert result.exit_code == 2
    assert result.output.splitlines()[-2:] == [
        "1 error, 1 warning: it would not start",
        "  servers and directories were not checked: fix these errors first",
    ]
    report = json.loads(run("check", "-c", "bad.conf", "--connect", "--json").stdout)
    assert (report["ok"], report["starts"], report["asked"]) == (False, False, False)


def test_connect_does_not_wait_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "CONNECT_SECONDS", 0.2)
    Path("good.conf").write_text(changed("9 | a1.sinks.k1.url = http://slow"))
    try:
        result = run("check", "-c", "good.conf", "--connect", "-Dflume.monitoring.port=0")
    finally:
        ANSWERED.set()
    assert "good.conf:7: a1.sinks.k1: gave no answer within 0 s" in result.output.splitlines()


# --- on a terminal


def test_colours_on_a_terminal_only(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, diagnostics = ChosenConfiguration(Path("bad.conf"), None, "normal", {}).load()
    configuration.print_diagnostics(diagnostics, sys.stdout)
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    configuration.print_diagnostics(diagnostics, sys.stdout)
    shown = capsys.readouterr().out.splitlines()
    assert [click.unstyle(line) for line in shown] == [
        "✗ bad.conf:9: a1.sinks.k1: unknown option 'limti', did you mean 'limit'?",
        "! bad.conf:10: a1.channels.c1: unknown option 'capacty', did you mean 'capacity'? (ignored)",
    ]


# --- shared with start


@click.command()
@configuration_options
def fake(chosen: ChosenConfiguration) -> None:
    click.echo(f"runs {load_or_exit(chosen).name}")


def test_load_or_exit(run: Run) -> None:
    warned = CliRunner().invoke(fake, ["-c", "warn.conf"])
    assert (warned.exit_code, warned.stdout, warned.stderr) == (0, "runs a1\n", ""), "`check` and `start` warn"
    failed = CliRunner().invoke(fake, ["-c", "bad.conf"])
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert failed.stderr.splitlines()[-1] == "1 error, 1 warning; nothing was started"


# --- the root command


def test_every_command_is_listed_with_its_purpose() -> None:
    context = click.Context(main)
    for name in flafka.agent.cli.COMMANDS:
        command = main.get_command(context, name)
        assert isinstance(command, click.Command), name
        assert command.get_short_help_str(), name


def test_a_mistyped_command() -> None:
    result = CliRunner().invoke(main, ["chek"])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == "Error: no command 'chek', did you mean 'check'?"


def test_errors_are_one_line_and_bugs_are_named_as_such(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> Callable[..., None]:
        def load(self: ChosenConfiguration, *, notes: bool) -> None:
            raise error

        return load

    monkeypatch.setattr(ChosenConfiguration, "load", raising(FlafkaError("Kafka is on fire: pour water on it")))
    result = run("check", "-c", "good.conf")
    assert (result.exit_code, result.stderr) == (1, "error: Kafka is on fire: pour water on it\n")
    monkeypatch.setattr(ChosenConfiguration, "load", raising(KeyError("x")))
    result = run("check", "-c", "good.conf")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: KeyError: 'x'\nThis is a bug. Please report it")
    assert isinstance(run("--debug", "check", "-c", "good.conf").exception, KeyError)


def test_of_several_files_the_later_wins(run: Run) -> None:
    Path("site.conf").write_text("a1.sinks.k1.limit = 5\na1.sinks.k1.limti = 5\n")
    result = run("check", "-n", "a1", "-f", "good.conf", "-f", "site.conf")
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "site.conf:2: a1.sinks.k1: unknown option 'limti', did you mean 'limit'?",
        "1 error: it would not start",
    ]
    Path("site.conf").write_text("a1.sinks.k1.limit = 5\n")
    assert run("check", "-n", "a1", "-f", "good.conf", "-f", "site.conf", "--strict").exit_code == 0
    missing = run("check", "-n", "a1", "-f", "good.conf", "-f", "nowhere.conf")
    assert missing.output.splitlines()[0] == "nowhere.conf: cannot be read: No such file or directory"

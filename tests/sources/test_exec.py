"""Source `exec`: real commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Retry
from flafka.sources.exec import MAX_LINE_BYTES, ExecConfig, ExecSource
from tests.sources.syslog_running import Running


def make(command: str, **properties: str) -> ExecSource:
    config, problems = ExecConfig.parse({"command": command} | properties)
    assert config is not None, problems
    return ExecSource(config)


def printed(command: str, **properties: str) -> list[bytes]:
    """Return all events of a command that ends by itself."""
    source = make(command, **properties)
    source.open()
    try:
        return [event.body for batch in source.batches() for event in batch]
    finally:
        source.close()


def test_many_lines_are_events() -> None:
    assert printed("seq 100000", shell="/bin/sh -c") == [b"%d" % n for n in range(1, 100001)]


def test_an_endless_line_is_cut() -> None:
    pieces = printed(f"head -c {2 * MAX_LINE_BYTES + 5} /dev/zero")
    assert [len(piece) for piece in pieces] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]


def test_a_command_is_restarted_if_so_configured(tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = f"echo run >> {count}; cat {count} | wc -l; exit 3"
    with Running(make(command, shell="/bin/sh -c", restart="true", restartThrottle="1")) as running:
        until(lambda: running.count >= 3)
    assert [event.body.strip() for event in running.events[:3]] == [b"1", b"2", b"3"]


def test_no_process_of_a_command_outlives_it() -> None:
    source = make("trap '' TERM; sleep 1000 & echo $!; wait", shell="/bin/sh -c")
    with Running(source) as running:
        child = int(running.wait_for(1)[0].body)
        os.kill(child, 0)
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text())


@pytest.mark.parametrize(("command", "sign"), [("tail -F /var/log/*.log", "*"), ("cat x | grep y", "|")])
def test_shell_syntax_without_a_shell_is_warned_of(command: str, sign: str) -> None:
    config, _ = ExecConfig.parse({"command": command})
    assert config is not None
    (warning,) = config.warnings()
    assert warning.message.startswith(f"{sign} means nothing without a shell")
    shell, _ = ExecConfig.parse({"command": command, "shell": "/bin/sh -c"})
    assert shell is not None
    assert [*shell.warnings()] == []


def test_standard_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert printed("echo oops >&2; echo out", shell="/bin/sh -c", logStdErr="true") == [b"out"]
    assert "oops" in caplog.text


def test_a_command_that_cannot_run_is_reported() -> None:
    with pytest.raises(Retry, match="'/no/such/program' cannot be run: No such file or directory"):
        make("/no/such/program x").open()

"""Tables of commands: in a pipe, and on a terminal of 80 columns."""

from __future__ import annotations

import io
import sys

import pytest

from flafka.agent.cli.output import show

COLUMNS = ("topic", "partition", "current_offset", "log_end_offset", "lag", "epoch", "consumer_id", "host")
ID = "worker-17.example.org.a1.archive-1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"
ROWS = [("flafka-events", 0, 1_234_567, 1_234_999, 432, None, ID, "/127.0.0.1"), ("flafka-events", 1, *[None] * 6)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    show(COLUMNS, ROWS, as_json=False)
    heading, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert heading[:4] == ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET"]
    assert lines == [["-" if value is None else str(value) for value in row] for row in ROWS]


def test_a_terminal_of_80_columns_cuts_no_number_and_no_word_of_the_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    show(COLUMNS, ROWS, as_json=False)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"PARTITION", "CURRENT", "OFFSET", "CONSUMER", "1234567", "1234999", "432"} <= words, terminal.getvalue()

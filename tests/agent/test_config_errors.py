"""Every message about a configuration, with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.config import Mode, load
from flafka.agent.config.sinkgroups import java_order
from tests.agent.config_sample import COMPONENTS

GOOD = """\
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = ticks
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = index
a1.sinks.k1.channel = c1
"""


def messages(text: str, tmp_path: Path, name: str | None = None, mode: Mode = "normal", **more: object) -> list[str]:
    """Return the messages about a file `agent.conf` with that text, without directories."""
    file = tmp_path / "agent.conf"
    file.write_text(text, "utf-8")
    spec, diagnostics = load(file, name, components=COMPONENTS, mode=mode, environment={}, notes=True, **more)
    assert (spec is None) == any(diagnostic.severity == "error" for diagnostic in diagnostics)
    shown = [str(diagnostic).replace(f"{tmp_path}/", "") for diagnostic in diagnostics]
    return [re.sub(r"\(\S*/(\w+\.py):\d+\)", r"(\1)", text) for text in shown]  # location of a class


def changed(*changes: str) -> str:
    """Return the good configuration with lines replaced or, beyond its last, added: `9 | …`, and `+ | …` for the
    next."""
    lines = dict(enumerate(GOOD.splitlines(), 1))
    number = 0.0
    for change in changes:
        where, _, line = change.partition(" |")
        number = number + 0.001 if where == "+" else float(where)
        lines[number] = line.removeprefix(" ")
    return "\n".join(lines[number] for number in sorted(lines))


def cases() -> Iterator[Any]:
    """Return the cases of `config_errors.txt`."""
    number = 1
    for block in Path(__file__).with_name("config_errors.txt").read_text("utf-8").split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        expected = [line[3:] for line in lines if line.startswith("=> ") and line != "=> nothing"]
        given = [line for line in lines if not line.startswith("=> ")]
        if given[:1] == ["only"]:
            yield pytest.param("\n".join(line[4:] for line in given[1:]), expected, id=f"line {number}")
        elif given:
            yield pytest.param(changed(*given), expected, id=f"line {number}")
        number += block.count("\n") + 2


def test_a_valid_configuration_has_no_messages(tmp_path: Path) -> None:
    assert messages(GOOD, tmp_path) == []


@pytest.mark.parametrize(("text", "expected"), list(cases()))
def test_message(text: str, expected: list[str], tmp_path: Path) -> None:
    assert messages(text, tmp_path) == expected


def test_all_errors_at_once(tmp_path: Path) -> None:
    text = changed(
        "4 | a1.sources.s1.type = tiks",
        "6 | a1.channels.c1.type = memory",
        "+ | a1.channels.c1.capacity = many",
        "8 | a1.sinks.k1.limit = -1",
        "+ | a1.sinks.k1.colour = red",
        "+ | a1.sinks.k1.channel = c3",
        "+ | a1.sinks.k1.url = ${nope}",
    )
    assert messages(text, tmp_path) == [
        "agent.conf:4: a1.sources.s1: unknown source type 'tiks', did you mean 'ticks'?",
        "agent.conf:7: a1.channels.c1: capacity must be a whole number, not 'many'",
        "agent.conf:9: a1.sinks.k1: limit must be at least 1, not '-1'",
        "agent.conf:10: a1.sinks.k1: unknown option 'colour'",
        "agent.conf:11: a1.sinks.k1: channel 'c3' is not declared; declared channels: c1",
        "agent.conf:12: a1.sinks.k1: ${nope} has no value: the file has no property 'nope'",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, "agent.conf: the file has several agents: choose one with -n (a1, tier2)"),
        ("teir2", "agent.conf: no agent 'teir2', did you mean 'tier2'? (agents in the file: a1, tier2)"),
        ("x", "agent.conf: no agent 'x' (agents in the file: a1, tier2)"),
        ("a1", None),
    ],
)
def test_which_agent(name: str | None, expected: str | None, tmp_path: Path) -> None:
    text = GOOD + GOOD.replace("a1.", "tier2.").replace("index", "indx")
    assert messages(text, tmp_path, name) == ([expected] if expected else [])


def test_mistakes_of_another_agent_are_not_reported(tmp_path: Path) -> None:
    assert messages(GOOD + "a2.sources = x\na2.foo = ${nope}", tmp_path, "a1") == []


def test_no_file(tmp_path: Path) -> None:
    spec, diagnostics = load(tmp_path / "none.conf", components=COMPONENTS)
    assert spec is None
    assert [str(d) for d in diagnostics] == [f"{tmp_path}/none.conf: cannot be read: No such file or directory"]


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    spec, diagnostics = load("/dev/zero", components=COMPONENTS)
    assert spec is None
    assert [str(d) for d in diagnostics] == ["/dev/zero: is larger than 16 MiB, the maximum size of a configuration"]


# --- modes


def test_strict_makes_warnings_errors(tmp_path: Path) -> None:
    text = changed("9 | a1.channels.c1.capacty = 1")
    assert messages(text, tmp_path, mode="strict") == [
        "agent.conf:9: a1.channels.c1: unknown option 'capacty', did you mean 'capacity'? (ignored)",
    ]


def test_each_line_that_flume_skips_is_an_error(tmp_path: Path) -> None:
    text = changed(
        "1 | a1.sources = s1 s2",
        "2 | a1.channels = c1 c2",
        "3 | a1.sinks = k1 k2 k3 k4",
        "5 | a1.sources.s1.channels = c1 nope",
        "9 | a1.sources.s2.type = ticks",
        "+ | a1.sources.s2.channel = c1",
        "+ | a1.channels.c2.type = memory",
        "12 | a1.channels.c2.capacity = x",
        "+ | a1.sinks.k2.type = index",
        "+ | a1.sinks.k2.channel = c2 c3",
        "+ | a1.sinks.k4.type = irc",
        "16 | a1.sinks.k4.channel = none",
        "+ | a1.sinks.k1.url = ${nope}",
    )
    assert messages(text, tmp_path) == [
        "agent.conf:3: a1.sinks.k3: is listed but has no properties; add a1.sinks.k3.type = …, or remove k3 "
        "from a1.sinks",
        "agent.conf:5: a1.sources.s1: channel 'nope' is not declared; declared channels: c1, c2",
        "agent.conf:10: a1.sources.s2: a source has the option 'channels', not 'channel': rename it",
        "agent.conf:12: a1.channels.c2: capacity must be a whole number, not 'x'",
        "agent.conf:14: a1.sinks.k2: a sink drains one channel, not 2: configure one sink for each",
        "agent.conf:14: a1.sinks.k2: channel 'c3' is not declared; declared channels: c1, c2",
        "agent.conf:15: a1.sinks.k4: Flume's 'irc' sink is not supported; write a sink in Python: `agent template "
        "sink` prints one to start from",
        "agent.conf:16: a1.sinks.k4: channel 'none' is not declared; declared channels: c1, c2",
        "agent.conf:17: a1.sinks.k1: ${nope} has no value: the file has no property 'nope'",
    ]


def group(tmp_path: Path, *more: str) -> tuple[Any, list[str]]:
    """Return the only sink group of three sinks, and the sinks that run."""
    text = changed(
        "3 | a1.sinks = k1 k2 k3",
        *(
            f"+ | {line}"
            for name in ("k2", "k3")
            for line in (f"a1.sinks.{name}.type = index", f"a1.sinks.{name}.channel = c1")
        ),
        "+ | a1.sinkgroups = g",
        "+ | a1.sinkgroups.g.sinks = k1 k2 k3",
        *(f"+ | a1.sinkgroups.g.processor.{line}" for line in more),
    )
    file = tmp_path / "agent.conf"
    file.write_text(text)
    spec, diagnostics = load(file, components=COMPONENTS, environment={})
    assert spec is not None, diagnostics
    return spec.groups[0] if spec.groups else None, [sink.name for sink in spec.sinks]


def test_a_group(tmp_path: Path) -> None:
    failover, sinks = group(
        tmp_path,
        "type = org.apache.flume.sink.FailoverSinkProcessor",
        "priority.k1 = 7",
        "priority.k2 = -1",
        "priority.k3 = +9",
        "maxpenalty = 5000",
    )
    assert sinks == ["k1", "k2", "k3"]
    assert failover.sinks == ("k1", "k2", "k3")
    assert failover.processor.priorities == {"k1": 7, "k2": -1, "k3": 9}
    assert failover.processor.max_penalty_seconds == 5
    balance, _ = group(
        tmp_path, "type = load_balance", "selector = RANDOM", "selector.maxTimeOut = 4000", "backoff = TRUE"
    )
    assert (balance.processor.policy, balance.processor.backoff, balance.processor.max_penalty_seconds) == (
        "random",
        True,
        4,
    )
    plain, _ = group(tmp_path, "type = load_balance")
    assert (plain.processor.policy, plain.processor.backoff, plain.processor.max_penalty_seconds) == (
        "round_robin",
        False,
        30,
    )


def test_missing_priorities_are_flumes(tmp_path: Path) -> None:
    ordered, _ = group(tmp_path, "type = failover")
    assert ordered.processor.priorities == {"k1": -1, "k2": -2, "k3": -3}


@pytest.mark.parametrize(
    ("names", "expected"),
    [  # seen in java.util.HashSet of OpenJDK 17
        ("k1 k2 k10 k3", ["k1", "k2", "k3", "k10"]),
        ("src1 Aa BB r2 é c", ["Aa", "BB", "r2", "c", "src1", "é"]),
    ],
)
def test_order_of_a_java_set(names: str, expected: list[str]) -> None:
    assert java_order(names.split()) == expected

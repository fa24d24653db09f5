"""Messages of `agent check` about a channel with a disk overflow."""

from pathlib import Path
from typing import Any

import pytest

from flafka.agent.config import Mode, load
from flafka.agent.graph import graph_of, text_lines
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components

CONFIGURATION = """
a1.sources = s1
a1.channels = c1 c2
a1.sources.s1.type = seq
a1.sources.s1.channels = c1
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = h1:9092
a1.channels.c1.overflow = c2
a1.channels.c2.type = file
"""


def loaded(tmp_path: Path, text: str, mode: Mode = "normal") -> tuple[AgentSpec | None, list[str]]:
    file = tmp_path / "a.conf"
    file.write_text(text)
    spec, diagnostics = load(file, None, components=Components(), mode=mode, system={})
    return spec, [f"{d.place.line} {d.severity} {d.component}: {d.message}" for d in diagnostics]


@pytest.mark.parametrize("cls", ["kafka", "org.apache.flume.channel.kafka.KafkaChannel"])
@pytest.mark.parametrize("mode", ["normal", "strict"])
def test_a_valid_overflow_has_no_messages(tmp_path: Path, cls: str, mode: Any) -> None:
    spec, messages = loaded(tmp_path, CONFIGURATION.replace("= kafka\n", f"= {cls}\n"), mode)
    assert messages == []
    assert spec is not None
    assert text_lines(graph_of(spec)) == [
        "s1 (seq) → c1 (kafka)",
        "c1 (kafka) → overflow [while brokers are away] c2 (file)",
    ]
    channel = spec.channels[0]
    assert (channel.overflow, channel.config.overflow_timeout) == ("c2", 5)


@pytest.mark.parametrize(
    ("instead", "message"),
    [
        ({"overflow = c2": "overflow = c3"}, "channel 'c3' is not declared"),
        ({"= file": "= memory"}, "channel 'c2' is of type memory, but an overflow channel must be of type file"),
        (
            {"overflow = c2": "overflow = c1"},
            "channel 'c1' is of type kafka, but an overflow channel must be of type file",
        ),
        ({"s1.channels = c1": "s1.channels = c1 c2"}, "must not be in use otherwise, but a1.sources.s1 names it"),
        (
            {"= file\n": "= file\na1.sinks = k1\na1.sinks.k1.type = null\na1.sinks.k1.channel = c2\n"},
            "must not be in use otherwise, but a1.sinks.k1 names it",
        ),
    ],
)
def test_an_unusable_overflow_is_an_error(tmp_path: Path, instead: dict[str, str], message: str) -> None:
    text = CONFIGURATION
    for old, new in instead.items():
        text = text.replace(old, new)
    spec, messages = loaded(tmp_path, text)
    assert spec is None
    (error,) = [line for line in messages if "overflow" in line]
    assert error.startswith("8 error a1.channels.c1: overflow: ")
    assert message in error


def test_two_channels_need_two_overflows(tmp_path: Path) -> None:
    more = "".join(line.replace(".c1.", ".c0.") + "\n" for line in CONFIGURATION.splitlines() if ".c1." in line)
    text = CONFIGURATION.replace("= c1 c2", "= c1 c2 c0").replace("s1.channels = c1", "s1.channels = c1 c0") + more
    spec, messages = loaded(tmp_path, text)
    assert spec is None
    assert messages == [
        "12 error a1.channels.c0: overflow: channel 'c2' is the overflow channel of a1.channels.c1: each "
        "channel needs its own"
    ]


def test_overflow_is_an_option_of_kafka_channels_only(tmp_path: Path) -> None:
    text = CONFIGURATION.replace("c2.type = file", "c2.type = file\na1.channels.c2.overflow = c1")
    _, messages = loaded(tmp_path, text)
    assert any("unknown option 'overflow'" in line for line in messages)

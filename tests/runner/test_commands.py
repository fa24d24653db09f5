"""Commands in messages: they work in a shell in any directory, and name the brokers of the component."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.runner.retries import Retries
from flafka.plugins import Components, Metrics, Retry

BROKERS = {"group": "b1:9092,b2:9092", "topic": "other:9092"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lost: agent group reset g --topic t:0 --to 5", " --bootstrap-server b1:9092,b2:9092"),
        ("lost: agent group reset g --topic t.a:0 --to 5 --new-ids", " --bootstrap-server b1:9092,b2:9092"),
        ("no topic t: agent topic create t", " --bootstrap-server other:9092"),
        ("agent topic create t --bootstrap-server x:1", ""),
        ("run agent group reset g --to latest, and start again", ""),
        ("an agent group reset", ""),
    ],
)
def test_a_command_names_the_brokers(text: str, shown: str) -> None:
    metrics = Metrics()
    retries = Retries("a1.sinks.k1", metrics)
    retries.brokers = BROKERS
    retries.failed(Retry(text))
    assert metrics.last_error == text + shown
    other = Retries("a1.sinks.k2", metrics)  # on a channel that is not in Kafka
    other.failed(Retry(text))
    assert metrics.last_error == text


def test_a_command_names_the_whole_path_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my agent.conf").write_text(
        "a1.channels = c\na1.sinks = k\na1.sinks.k.type = null\na1.sinks.k.channel = c\n"
    )
    Path("more.conf").write_text("a1.channels.c.type = memory\n")
    spec, diagnostics = load("my agent.conf", more=[Path("more.conf")], components=Components())
    assert spec is not None, diagnostics
    assert spec.command("dlq list") == (f"agent dlq list -f '{tmp_path}/my agent.conf' -f {tmp_path}/more.conf -n a1")
    Path("one.conf").write_text(Path("my agent.conf").read_text() + Path("more.conf").read_text())
    spec, diagnostics = load("one.conf", components=Components())
    assert spec is not None, diagnostics
    assert spec.command("tap k") == f"agent tap k -c {tmp_path}/one.conf -n a1"

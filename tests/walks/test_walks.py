"""The recorder finds the known functions of a batch. `./dev walks` prints the sizes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from tests.walks import statements
from tests.walks.__main__ import listing
from tests.walks.recording import OBSERVERS, Walk
from tests.walks.statements import Function, function_at
from tests.walks.walking import RecordedAgents

INTAKE = [
    "SyslogFramer.cut",
    "SourceRunner.deliver",
    "MaskInterceptor.apply",
    "KafkaChannel.put_in_order",
    "DeliveryReports._report",
]
DELIVERY = ["KafkaReader.on_messages", "Delivery.write", "HdfsSink.write", "HdfsSink.stage", "HdfsSink.commit"]
SOURCE = '''\
"""A module."""

class C:
    """A class."""

    @property
    def first(self):
        """Docstrings are no statements."""
        if self:
            return [n for n in self]

        def inner():
            return 1

        return lambda: inner

key = lambda: 1
'''


def test_walks_of_a_batch(tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    intake, delivery = RecordedAgents(tmp_path, kafka_cluster, hdfs_cluster, spark=False).run(idle_seconds=3)
    assert _in_order(intake, INTAKE) == INTAKE
    assert _in_order(delivery, DELIVERY) == DELIVERY
    # `SinkRunner.run` never returns: its call is recorded as a running caller.
    assert {"SinkRunner.run", "KafkaReader.take"} <= {function.name for function in delivery.loops}
    for walk in (intake, delivery):
        assert not [function for function in walk.functions if function.file.startswith(OBSERVERS)]
        assert "MainThread" not in {call.thread for call in walk.functions.values()}
    assert any(text.endswith("-deliver_0]") for text in listing(intake))
    assert not delivery.without(delivery, "nothing").functions


def _in_order(walk: Walk, names: list[str]) -> list[str]:
    return [function.name for function in walk.batch if function.name in names]


def test_statements_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "ROOT", tmp_path)
    (tmp_path / "counted.py").write_text(textwrap.dedent(SOURCE))
    first = Function("counted.py", 6, "C.first", 4)  # if, return, def, return
    assert function_at("counted.py", 6, "C.first") == first
    assert function_at("counted.py", 10, "C.first.<locals>.<listcomp>") == first
    assert function_at("counted.py", 15, "C.first.<locals>.<lambda>") == first
    assert function_at("counted.py", 12, "C.first.<locals>.inner") == Function(
        "counted.py", 12, "C.first.<locals>.inner", 1
    )
    assert function_at("counted.py", 17, "<lambda>") == Function("counted.py", 17, "<lambda>", 1)
    assert function_at("counted.py", 1, "<module>") is None
    assert function_at("counted.py", 3, "C") is None

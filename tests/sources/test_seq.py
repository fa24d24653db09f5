"""Source `seq`."""

import pytest

from flafka.plugins import conformance
from flafka.sources.seq import SeqConfig, SeqSource


@pytest.mark.parametrize(("total", "sizes"), [(0, []), (1, [1]), (7, [3, 3, 1]), (6, [3, 3])])
def test_seq_makes_the_requested_events(total: int, sizes: list[int]) -> None:
    batches = list(SeqSource(SeqConfig(total_events=total, batch_size=3)).batches())
    assert [len(batch) for batch in batches] == sizes


def test_an_endless_sequence_stops_on_request_and_resumes() -> None:
    source = SeqSource(SeqConfig(batch_size=2))
    for batch in source.batches():
        if batch.bodies[1].as_py() == b"99":
            source.stopping.set()
    source.stopping.clear()
    assert next(source.batches()).bodies.to_pylist() == [b"100", b"101"]


def test_names_documentation_and_life() -> None:
    conformance.check_component(SeqSource, {"totalEvents": "10"})

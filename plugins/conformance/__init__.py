"""Conformance kit: checks of a component against the contract.

In a test of your own:

    from flafka.plugins import conformance

    def test_conformance(tmp_path):
        out = tmp_path / "out"
        conformance.check_sink(MySink, {"path": str(out)}, delivered=lambda: out.read_bytes().splitlines())

Each check raises AssertionError with the violation and its consequence. The checks need no test framework, run the
real component, and take a few seconds.
"""

from flafka.plugins.conformance.channels import AssignmentListener, check_channel
from flafka.plugins.conformance.components import check_component, make
from flafka.plugins.conformance.interceptors import check_interceptor
from flafka.plugins.conformance.samples import sample_events
from flafka.plugins.conformance.sinks import check_sink
from flafka.plugins.conformance.sources import check_source

__all__ = [
    "AssignmentListener",
    "check_channel",
    "check_component",
    "check_interceptor",
    "check_sink",
    "check_source",
    "make",
    "sample_events",
]

"""The model of Solr does what Solr does, as the sink sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pysolr
import pytest

from flafka.agent.audit.reconciliation import solr_documents
from flafka.sinks.bulk import RequestRefused
from flafka.sinks.solr import sink as sink_module
from flafka.sinks.solr.config import SolrConfig
from flafka.sinks.solr.sink import SolrSink
from tests.fixtures.cores import create_core
from tests.simulator import http
from tests.simulator.running import replaced
from tests.simulator.stores import Solr
from tests.simulator.world import World
from tests.system.running import unique

pytestmark = pytest.mark.xdist_group("stores")  # the real ones ask for it when they run


@dataclass
class Core:
    """One collection, and a sink that writes to it."""

    url: str
    sink: SolrSink
    solr: Solr | None

    def documents(self) -> dict[str, dict[str, Any]]:
        """Documents of the collection, by id."""
        documents = solr_documents(self.url) if self.solr is None else self.solr.collections["c"]
        return {id: {k: v for k, v in d.items() if k not in ("id", "_version_")} for id, d in documents.items()}

    def add(self, *documents: dict[str, str]) -> str:
        """Send these in one request; what Solr says of one that it refuses."""
        try:
            self.sink._add(list(documents))
        except RequestRefused as e:
            return str(e)
        return ""


@pytest.fixture
def core(world: World | None, request: pytest.FixtureRequest) -> Iterator[Core]:
    logging.getLogger("pysolr").setLevel(logging.CRITICAL)
    if world is not None:
        solr = Solr(world, "c")
        with replaced(sink_module, pysolr, imported={"requests": http.requests}):
            yield Core("http://solr:8983/solr/c", sink_of("http://solr:8983/solr/c"), solr)
        return
    url = create_core(request.getfixturevalue("solr_cluster"), unique("c"))
    core = Core(url, sink_of(url), None)
    yield core
    core.sink.close()


def sink_of(url: str) -> SolrSink:
    config, problems = SolrConfig.parse({"url": url})
    assert config is not None, problems
    return SolrSink(config)


def test_documents_are_replaced_by_their_id(core: Core) -> None:
    core.sink.open()
    assert core.add({"id": "a", "body_t": "1", "x_s": "y"}, {"id": "b", "body_t": "2"}) == ""
    assert core.add({"id": "a", "body_t": "3"}, {"id": "c", "body_t": "4"}, {"id": "c", "body_t": "5"}) == ""
    assert core.documents() == {"a": {"body_t": "3"}, "b": {"body_t": "2"}, "c": {"body_t": "5"}}


def test_types_by_name(core: Core) -> None:
    core.sink.open()
    assert core.add({"id": "a", "n_i": "7", "at_dt": "2023-11-14T22:13:20.001Z", "body_t": ""}) == ""
    assert core.documents() == {"a": {"n_i": 7, "at_dt": "2023-11-14T22:13:20.001Z", "body_t": ""}}
    assert core.add({"id": "b", "n_i": ""}).endswith("Error adding field 'n_i'='' msg=For input string: \"\"")
    assert core.add({"id": "b", "n_i": "1.5"}).endswith(
        "Error adding field 'n_i'='1.5' msg=For input string: \"1.5\""
    )
    assert "Invalid Date String:'x'" in core.add({"id": "b", "at_dt": "x"})
    assert "unknown field 'nothing'" in core.add({"id": "b", "nothing": "x"})
    assert "immense term" in core.add({"id": "b", "x_s": "x" * 32_767})
    assert core.add({"id": "c", "x_s": "x" * 32_766}) == ""
    assert "missing mandatory uniqueKey field: id" in core.add({"body_t": "x"})
    assert core.documents().keys() == {"a", "c"}


def test_what_comes_before_a_document_that_is_refused_is_kept(core: Core) -> None:
    core.sink.open()
    assert "n_i" in core.add({"id": "a", "body_t": "1"}, {"id": "b", "n_i": "x"}, {"id": "c", "body_t": "1"})
    assert core.documents().keys() == {"a"}


def test_a_collection_that_is_missing(core: Core) -> None:
    url = f"{core.url}-missing"
    sink = sink_of(url)
    assert list(sink.check_connectivity()) == [f"Solr has no collection or core {url}: create it, or correct url"]


def test_the_schema(core: Core) -> None:
    assert list(core.sink.check_connectivity()) == []

"""The Solr sink on a real Solr: documents and their fields, what is refused, a server that goes away."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agent.services.solr import SOLR, SolrCluster
from plugins import Batch, Event, Origin, Rejected, Retry, conformance
from plugins.conformance.samples import sample_events
from sinks.solr import SolrConfig, SolrSink
from tests.fixtures.kit import exercises
from tests.system.running import unique

TIME = 1_700_000_000_000


def made(url: str, **options: str) -> SolrSink:
    config, problems = SolrConfig.parse({"url": url, **options})
    assert config is not None, problems
    return SolrSink(config)


def opened(url: str, **options: str) -> SolrSink:
    sink = made(url, **options)
    sink.open()
    return sink


def documents(url: str) -> dict[str, dict[str, Any]]:
    """All there are, by id; committed first, so that they can be found."""
    urllib.request.urlopen(f"{url}/update?commit=true", timeout=30).close()
    query = urllib.parse.urlencode({"q": "*:*", "rows": 100_000, "wt": "json", "fl": "*"})
    with urllib.request.urlopen(f"{url}/select?{query}", timeout=30) as answer:
        found = json.load(answer)["response"]
    assert len(found["docs"]) == found["numFound"]
    return {document.pop("id"): document for document in found["docs"] if document.pop("_version_")}


def batch(*events: Event, offset: int = 0) -> Batch:
    numbers = np.arange(offset, offset + len(events))
    return Batch.of(events, Origin("app", 0, numbers, np.zeros(len(events), np.int32), TIME + numbers))


def deliver(sink: SolrSink, *batches: Batch) -> dict[str, str]:
    """Write and flush; what was rejected, by id."""
    for some in batches:
        sink.write(some)
    try:
        sink.flush()
    except Rejected as e:
        return {str(id): reason for id, reason in e.reasons.items()}
    return {}


@pytest.fixture
def core(solr_cluster: SolrCluster) -> str:
    """The URL of a core of its own for each test."""
    return solr_cluster.create_core(unique("c"))


@exercises("sink solr")
def test_conformance(core: str) -> None:
    written = {event.body.decode("utf-8", "backslashreplace"): event.body for event in sample_events()}
    conformance.check_sink(
        SolrSink,
        {"url": core},
        delivered=lambda: [written[document["body_t"]] for document in documents(core).values()],
        failing={"url": "http://127.0.0.1:1/solr/c"},
    )


def test_fields_and_a_redelivery(core: str) -> None:
    mapping = {
        "field.host_s": "%{host}",
        "field.at_dt": "%[time]",
        "field.n_i": "%{n}",
        "field.all_s": "%[id] %[body]",
    }
    for _ in range(2):
        sink = opened(core, **mapping, headerSuffix="_t")
        assert list(sink.probe()) == []
        sink.open()
        events = Event(b"caf\xe9 \0", {"host": "a", "n": "7", "x y": "z"}), Event(b"", {}), Event("😀".encode(), {})
        assert deliver(sink, batch(*events)) == {}
        sink.close()
    assert documents(core) == {
        "app-0-0-0": {
            "body_t": "caf\\xe9 \0",
            "host_t": "a",
            "n_t": "7",
            "x_y_t": "z",
            "host_s": "a",
            "n_i": 7,
            "all_s": "app-0-0-0 caf\\xe9 \0",
            "at_dt": "2023-11-14T22:13:20Z",
        },
        "app-0-1-0": {"all_s": "app-0-1-0 ", "at_dt": "2023-11-14T22:13:20.001Z"},
        "app-0-2-0": {"body_t": "😀", "all_s": "app-0-2-0 😀", "at_dt": "2023-11-14T22:13:20.002Z"},
    }


@pytest.mark.parametrize("chain", [{}, {"updateChain": "tolerant"}], ids=["halves", "tolerant chain"])
def test_what_solr_refuses_is_found_among_the_rest(core: str, chain: dict[str, str]) -> None:
    wrong = {3: "no number", 500: "1.5", 1499: ""}
    events = [Event(b"%d" % n, {"n": wrong.get(n, str(n))}) for n in range(1500)]
    events[700] = Event(b"x", {"n": "1", "long": "x" * 40_000})  # a word of Solr's index holds 32,766 bytes
    sink = opened(core, **{"field.n_i": "%{n}"}, **chain)
    rejected = deliver(sink, batch(*events))
    assert rejected.keys() == {"app-0-3-0", "app-0-500-0", "app-0-700-0"}  # no field at all for an empty text
    assert "Error adding field 'n_i'='no number'" in rejected["app-0-3-0"]
    assert "immense term" in rejected["app-0-700-0"]
    assert documents(core).keys() == {f"app-0-{n}-0" for n in range(1500)} - rejected.keys()
    sink.close()


def test_probe_names_what_is_wrong(core: str, solr_cluster: SolrCluster) -> None:
    def troubles(url: str, **options: str) -> list[str]:
        return [str(sentence) for sentence in made(url, **options).probe()]

    assert troubles(core) == []
    assert troubles("http://127.0.0.1:1/solr/c") == ["Solr is away: no answer from http://127.0.0.1:1/solr/c"]
    missing = f"{solr_cluster.address}/missing"
    assert troubles(missing) == [f"Solr has no collection or core {missing}: create it, or mend url"]
    (sentence,) = troubles(core, updateChain="none")
    assert sentence.startswith(f"{core} accepts no updates: unknown UpdateRequestProcessorChain: none")
    cautions = troubles(core, **{"field.nothing": "x", "idField": "key_s"})
    assert ["no field 'nothing'" in cautions[0], "is there twice" in cautions[1]] == [True, True]


def test_a_solr_that_was_away_has_everything_once(core: str, solr_cluster: SolrCluster) -> None:
    sink = opened(core)
    bodies = [Event(b"%d" % n) for n in range(3000)]
    try:
        assert deliver(sink, batch(*bodies)) == {}
        solr_cluster.kill(SOLR)
        failed: list[Callable[[], None]] = [sink.flush, sink.open]
        sink.write(batch(*bodies, offset=3000))
        for call in failed:
            with pytest.raises(Retry, match="Solr is away: no answer from"):
                call()
        sink.reset()
    finally:
        solr_cluster.start()
    assert deliver(sink, batch(*bodies, offset=3000)) == {}
    assert documents(core).keys() == {f"app-0-{n}-0" for n in range(6000)}
    sink.close()

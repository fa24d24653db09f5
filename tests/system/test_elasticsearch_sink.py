"""Elasticsearch sink on a real OpenSearch: documents, rejected documents, and a killed server."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.running import RunningAgent
from flafka.plugins import Event, EventId, Retry, conformance
from flafka.plugins.conformance.samples import sample_events
from flafka.sinks.elasticsearch import ElasticsearchConfig, ElasticsearchSink
from tests.fixtures.kit import exercises
from tests.fixtures.opensearch import OPENSEARCH, OpenSearchCluster
from tests.fixtures.partitions import assignment
from tests.fixtures.ports import free_port
from tests.system.delivering import batch, deliver
from tests.system.overflow import Sender
from tests.system.running import unique

DAY = "2023-11-14"


def opened(cluster: OpenSearchCluster, index: str, **options: str) -> ElasticsearchSink:
    config, problems = ElasticsearchConfig.parse({"hostNames": cluster.address, "indexName": index, **options})
    assert config is not None, problems
    sink = ElasticsearchSink(config)
    sink.open()
    return sink


def ask(cluster: OpenSearchCluster, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"http://{cluster.address}/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def documents(cluster: OpenSearchCluster, index: str) -> dict[str, dict[str, Any]]:
    """Return all documents by id; a star in the name selects several indexes."""
    ask(cluster, "POST", f"{index}/_refresh")
    hits = ask(cluster, "POST", f"{index}/_search", {"size": 10_000, "track_total_hits": True})["hits"]
    assert len(hits["hits"]) == hits["total"]["value"]
    return {hit["_id"]: {"_index": hit["_index"], **hit["_source"]} for hit in hits["hits"]}


@exercises("sink elasticsearch")
def test_conformance(opensearch_cluster: OpenSearchCluster) -> None:
    index = unique("c")
    written = {event.body.decode("utf-8", "backslashreplace"): event.body for event in sample_events()}
    conformance.check_sink(
        ElasticsearchSink,
        {"hostNames": opensearch_cluster.address, "indexName": index},
        delivered=lambda: [
            written[document["@message"]] for document in documents(opensearch_cluster, f"{index}-*").values()
        ],
        failing={"hostNames": "127.0.0.1:1"},
    )


def test_documents_and_a_redelivery(opensearch_cluster: OpenSearchCluster) -> None:
    index = unique("d")
    events = (
        Event(b"caf\xe9 \0", {"host": "a", "timestamp": "1600000000000", "x.y": "z"}),
        Event(b'{"n": 7,\n"deep": [{"a": null}]}', {"type": "json"}),
        Event("😀".encode(), {}),
    )
    for _ in range(2):
        sink = opened(opensearch_cluster, index)
        assert list(sink.check_connectivity()) == []
        sink.open()
        # Values of one type in each index: OpenSearch maps a field as text or as an object.
        assert deliver(sink, batch(events[0])) == {}
        assert deliver(sink, batch(events[2], offset=1)) == {}
        sink.close()
    sink = opened(
        opensearch_cluster,
        index + "-%{type}",
        indexNameBuilder="org.apache.flume.sink.elasticsearch.SimpleIndexNameBuilder",
        serializer="org.apache.flume.sink.elasticsearch.ElasticSearchDynamicSerializer",
    )
    assert deliver(sink, batch(events[1], offset=2)) == {}
    sink.close()
    assert documents(opensearch_cluster, f"{index}*") == {
        "app-0-0-0": {
            "_index": f"{index}-2020-09-13",
            "@message": "caf\\xe9 \0",
            "@timestamp": "2020-09-13T12:26:40.000Z",
            "@source_host": "a",
            "@fields": {"host": "a", "timestamp": "1600000000000", "x.y": "z"},
        },
        "app-0-1-0": {"_index": f"{index}-{DAY}", "@message": "😀", "@fields": {}},
        "app-0-2-0": {"_index": f"{index}-json", "body": {"n": 7, "deep": [{"a": None}]}, "type": "json"},
    }
    committed = assignment("cluster", "app", "id", "g", 0, 0)
    for known in (batch(events[1], offset=2), None):
        (trace,) = sink.trace(committed, EventId("app", 0, 2, 0), known)
        assert (trace["index"], trace["id"], trace["document"]["body"]["n"]) == (f"{index}-json", "app-0-2-0", 7)
    (missing,) = sink.trace(committed, EventId("app", 0, 3, 0), batch(events[1], offset=3))
    assert "has a document app-0-3-0" in missing["missing"]


def test_a_data_stream_has_each_document_once(opensearch_cluster: OpenSearchCluster) -> None:
    """Templates apply to names of data streams, which refuse the action `index`."""
    name = unique("logs-s")
    template = {"index_patterns": [f"{name}*"], "data_stream": {}, "priority": 500}
    properties = {"n": {"type": "integer"}}
    template["template"] = {"mappings": {"properties": properties}}
    ask(opensearch_cluster, "PUT", f"_index_template/{name}", template)
    simple = {"indexNameBuilder": "SimpleIndexNameBuilder", "serializer": "ElasticSearchDynamicSerializer"}
    times = {"n": "1", "timestamp": "1600000000000"}, {"n": "2"}, {"n": "no number"}, {"n": "4", "@timestamp": "5"}
    events = batch(*(Event(b"x", headers) for headers in times))
    for _ in range(2):
        sink = opened(opensearch_cluster, name, **simple)
        assert deliver(sink, events) == {
            "app-0-2-0": "Elasticsearch refuses its document: failed to parse field [n] of type [integer]"
        }
        # the delivered documents are present, without a dead letter
        assert deliver(sink, events).keys() == {"app-0-2-0"}
        sink.close()
    stored = documents(opensearch_cluster, name)
    assert {id: (document["n"], document["@timestamp"]) for id, document in stored.items()} == {
        "app-0-0-0": ("1", 1_600_000_000_000),
        "app-0-1-0": ("2", events.origin.timestamps[1] if events.origin else 0),
        "app-0-3-0": ("4", "5"),
    }
    committed = assignment("cluster", "app", "id", "g", 0, 0)
    assert sink.duplicate_risk(committed).startswith(f"{name} is a data stream: ")
    assert opened(opensearch_cluster, unique("plain")).duplicate_risk(committed) == ""


def test_only_refused_documents_are_rejected(opensearch_cluster: OpenSearchCluster) -> None:
    index = unique("r")
    ask(opensearch_cluster, "PUT", f"{index}-{DAY}", {"mappings": {"properties": {"n": {"type": "integer"}}}})
    wrong = {3: "no number", 500: "1e99", 1499: '{"x":5}'}
    events = [Event(b"%d" % n, {"n": wrong.get(n, str(n))}) for n in range(1500)]
    events[700] = Event(b"x", {"": "no name"})
    sink = opened(opensearch_cluster, index + "%{tail}", serializer="ElasticSearchDynamicSerializer")
    events[800] = Event(b"x", {"tail": "-UPPER"})
    rejected = deliver(sink, batch(*events))
    sink.close()
    assert rejected == {
        "app-0-3-0": "Elasticsearch refuses its document: failed to parse field [n] of type [integer]",
        "app-0-500-0": "Elasticsearch refuses its document: failed to parse field [n] of type [integer]",
        "app-0-700-0": "Elasticsearch refuses its document: failed to parse: field name cannot be an empty string",
        "app-0-800-0": "Elasticsearch refuses its index: its name must be lowercase",
        "app-0-1499-0": "Elasticsearch refuses its document: failed to parse field [n] of type [integer]",
    }
    assert (
        documents(opensearch_cluster, f"{index}-*").keys() == {f"app-0-{n}-0" for n in range(1500)} - rejected.keys()
    )


def test_an_index_that_takes_nothing_rejects_nothing(opensearch_cluster: OpenSearchCluster) -> None:
    index = unique("b")
    name = f"{index}-{DAY}"
    sink = opened(opensearch_cluster, index)
    assert deliver(sink, batch(Event(b"0"))) == {}

    def settings(path: str, **values: Any) -> None:
        ask(opensearch_cluster, "PUT", path, values)

    def fails(reason: str, to: str = name, into: ElasticsearchSink = sink) -> None:
        into.write(batch(Event(b"1"), offset=1))
        with pytest.raises(Retry) as failed:
            into.flush()
        into.reset()
        assert str(failed.value).startswith(f"Elasticsearch does not write to {to}: "), failed.value
        assert reason in str(failed.value)

    settings(f"{name}/_settings", **{"index.blocks.read_only_allow_delete": True})
    fails("disk usage exceeded flood-stage watermark, index has read-only-allow-delete block")
    settings(f"{name}/_settings", **{"index.blocks.read_only_allow_delete": None})
    settings(f"{name}/_settings", **{"index.blocks.write": True})
    fails("FORBIDDEN/8/index write")
    settings(f"{name}/_settings", **{"index.blocks.write": None})
    ask(opensearch_cluster, "POST", f"{name}/_close")
    fails("closed")
    ask(opensearch_cluster, "POST", f"{name}/_open")
    missing = opened(opensearch_cluster, unique("missing"), indexNameBuilder="SimpleIndexNameBuilder")
    new = missing.config.index_name
    try:
        settings("_cluster/settings", transient={"action.auto_create_index": False})
        fails("no such index", new, missing)
        settings("_cluster/settings", transient={"action.auto_create_index": None, "cluster.max_shards_per_node": 1})
        fails("this action would add", new, missing)
    finally:
        settings(
            "_cluster/settings", transient={"action.auto_create_index": None, "cluster.max_shards_per_node": None}
        )
    assert deliver(missing, batch(Event(b"1"), offset=1)) == {}
    assert deliver(sink, batch(Event(b"1"), offset=1)) == {}
    assert documents(opensearch_cluster, name).keys() == {"app-0-0-0", "app-0-1-0"}
    sink.close()
    missing.close()


@pytest.mark.drawn(1, of="kills")
def test_a_server_killed_under_load_has_everything_once(opensearch_cluster: OpenSearchCluster) -> None:
    index = unique("k")
    sink = opened(opensearch_cluster, index)
    failures: list[str] = []
    reached_half = threading.Event()

    def load() -> None:
        for offset in range(0, 6000, 200):
            if offset == 2000:
                reached_half.set()
            while True:  # as the runner does
                try:
                    deliver(sink, batch(*(Event(b"%d" % n) for n in range(offset, offset + 200)), offset=offset))
                    break
                except Retry as e:
                    failures.append(str(e))
                    sink.reset()
                    restored.wait(0.5)

    restored = threading.Event()
    loading = threading.Thread(target=load)
    loading.start()
    try:
        assert reached_half.wait(120)
        opensearch_cluster.kill(OPENSEARCH)
    finally:
        opensearch_cluster.start()
        restored.set()
    loading.join(120)
    assert not loading.is_alive()
    assert f"Elasticsearch is away: no answer from {opensearch_cluster.address}" in failures
    stored = documents(opensearch_cluster, f"{index}-*")
    assert {id: document["@message"] for id, document in stored.items()} == {
        f"app-0-{n}-0": str(n) for n in range(6000)
    }
    sink.close()


@pytest.mark.drawn(1, of="kills")
def test_an_agent_killed_under_load_stores_each_event_once(
    tmp_path: Path, opensearch_cluster: OpenSearchCluster
) -> None:
    index, port = unique("a"), free_port()
    configuration = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = {port}
a1.sources.s1.channels = c1
a1.channels.c1.type = file
a1.channels.c1.checkpointDir = {tmp_path}/checkpoint
a1.channels.c1.dataDirs = {tmp_path}/data
a1.sinks.k1.type = elasticsearch
a1.sinks.k1.channel = c1
a1.sinks.k1.hostNames = {opensearch_cluster.address}
a1.sinks.k1.indexName = {index}
a1.sinks.k1.batchSize = 20
"""
    sender = Sender("n", port)
    with sender:
        for kill in (True, True, False):
            with RunningAgent(tmp_path, configuration) as agent:
                before = len(sender.acknowledged)
                agent.until(
                    lambda before=before: (
                        len(sender.acknowledged) > before + 300
                        and agent.count("SINK.k1", "EventDrainSuccessCount") > 100
                    ),
                    "events to be stored",
                )
                if kill:
                    agent.process.kill()
                    agent.wait_for_exit()
                    continue
                sender.end()
                agent.until(lambda: not agent.count("CHANNEL.c1", "ChannelSize"), "all events to be stored")
                assert agent.stop() == 0
    counts = Counter(document["@message"] for document in documents(opensearch_cluster, f"{index}-*").values())
    assert {f"n {number}" for number in sender.acknowledged} <= counts.keys()
    assert [message for message, times in counts.items() if times > 1] == []

"""Options of the Elasticsearch sink, its documents compared with Flume's, and rare answers of a server.

A real server is in tests/system/test_elasticsearch_sink.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.plugins import Batch, Event, Origin, Rejected, Retry
from flafka.sinks.elasticsearch import ElasticsearchConfig, ElasticsearchSink
from tests.plugins.certificates import certificate
from tests.sinks.fake_elasticsearch import Server, item

FLUME = Path(__file__).parents[1] / "data" / "flume_documents.jsonl"
"""Results of the classes of Flume 1.9.0 (the last with this sink) and Elasticsearch 0.90.1 for an event. An event has
`body` in Base64, `headers`, and `index` as indexName. Results are the documents of both serializers, and the indexes
of both builders, in UTC on 22 November 2026; null for an exception."""
NOON_MS = 1_795_348_800_000
"""Milliseconds of that day at 12:00 UTC."""
PACKAGE = "org.apache.flume.sink.elasticsearch."


def problems(properties: dict[str, str]) -> list[str]:
    return [f"{problem.option}: {problem.message}" for problem in ElasticsearchConfig.parse(properties)[1]]


def make_sink(**options: str) -> ElasticsearchSink:
    config, problems = ElasticsearchConfig.parse({"hostNames": "h", **options})
    assert config is not None, problems
    return ElasticsearchSink(config)


def batch(*events: Event) -> Batch:
    return Batch.of(events, Origin.of_record("t", 0, 7, NOON_MS, len(events)))


# --- options


def test_a_file_of_flumes_runs_as_it_is() -> None:
    config, problems = ElasticsearchConfig.parse(
        {
            "hostNames": "es-1:9300, es-2 ,[::1]:9243",
            "indexName": "logs-%{host}",
            "indexType": "bar_type",
            "clusterName": "foobar_cluster",
            "batchSize": "500",
            "ttl": "5d",
            "client": "transport",
            "indexNameBuilder": PACKAGE + "SimpleIndexNameBuilder",
            "indexNameBuilder.dateFormat": "yyyy",
            "serializer": PACKAGE + "ElasticSearchDynamicSerializer",
        }
    )
    assert (config is not None, problems) == (True, [])
    assert config is not None
    assert [(host["host"], host["port"]) for host in config.hosts()] == [
        ("es-1", 9200),
        ("es-2", 9200),
        ("::1", 9243),
    ]
    port, ttl = config.warnings()
    assert port.message.startswith("port 9300 is for a protocol that servers no longer speak: port 9200")
    assert port.replacement == {"hostNames": "es-1:9200, es-2 ,[::1]:9243"}
    assert (ttl.option, ttl.replacement) == ("ttl", {})
    sink = ElasticsearchSink(config)
    assert (config.batch_size, sink.uses_headers()) == (500, {"indexName": {"host"}})
    assert not list(make_sink(hostNames="es:9200").config.warnings())


def test_an_address_with_https_needs_no_other_option() -> None:
    assert make_sink(hostNames="https://es:9243").config.tls
    assert problems({"hostNames": "https://es,http://es"}) == [
        "hostNames: must be all https:// with ssl = true, and all http:// without"
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hostNames": ""}, "hostNames: must name a server"),
        ({"hostNames": " , "}, "hostNames: must name a server"),
        ({"hostNames": "es:x"}, "hostNames: must be host:port,host:port, or http://host:port, not 'es:x'"),
        ({"hostNames": "es:0"}, "hostNames: must be host:port"),
        ({"hostNames": "http://es/path"}, "hostNames: must be host:port"),
        ({"hostNames": "ftp://es"}, "hostNames: must be host:port"),
        ({"hostNames": "http://u:p@es"}, "hostNames: must not contain a user"),
        ({"indexName": "Logs"}, "indexName: must be in lower case, without 'L'"),
        ({"indexName": "a b"}, "indexName: must be in lower case, without ' '"),
        ({"indexName": "_logs"}, "indexName: must not begin with '_'"),
        ({"indexName": "logs-%{host"}, "indexName: '%{host' has no closing brace"),
        ({"serializer": "com.x.Nginx"}, "serializer: the serializer of Elasticsearch com.x.Nginx is a Java class"),
        (
            {"indexNameBuilder": "com.x.Builder"},
            "indexNameBuilder: the index name builder of Elasticsearch com.x.Builder is a Java class",
        ),
        ({"username": "u"}, "username: must be set together with password"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, str], message: str) -> None:
    (problem,) = problems({"hostNames": "h", **wrong})
    assert problem.startswith(message), problem


def test_names_with_escapes_are_no_names_yet() -> None:
    for name in ("%{Host}-logs", "logs-%Y.%m.%d", "%{a}_b", "logs%{X}"):
        assert problems({"hostNames": "h", "indexName": name}) == []


def test_it_travels_to_an_executor_and_keeps_its_secret() -> None:
    config = make_sink(username="u", password="hunter2").config
    assert "hunter2" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


# --- documents


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


OURS: dict[bytes, Any] = {
    b"caf\xe9 \0 \x01": "caf\\xe9 \0 \x01",
    b'{"a":"\xff"}': '{"a":"\\xff"}',
    # Flume loses the rest of these: it stores the JSON at their beginning.
    b'{"a":1}{"b":2}': '{"a":1}{"b":2}',
    b'2024 {"a":1}': '2024 {"a":1}',
    # JSON by the settings of Elasticsearch's parser alone, and YAML, which Flume loses, or fails at repeatedly.
    b"{a:1}": "{a:1}",
    b'/* c */ {"a":1}': '/* c */ {"a":1}',
    b"---": "---",
    b"--- FAIL: TestX": "--- FAIL: TestX",
    b'{"n":123456789012345678901234567890,"f":1.10,"e":1e400}': {
        "n": 123456789012345678901234567890,
        "f": 1.1,
        "e": float("inf"),
    },
}
"""Bodies that are stored differently from Flume."""


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("builder", ["time", "simple"])
@pytest.mark.parametrize("serializer", ["logstash", "dynamic"])
def test_documents_and_indexes_agree_with_flume(serializer: str, builder: str) -> None:
    names = {
        "logstash": "ElasticSearchLogStashEventSerializer",
        "dynamic": "ElasticSearchDynamicSerializer",
        "time": "TimeBasedIndexNameBuilder",
        "simple": "SimpleIndexNameBuilder",
    }
    differing_bodies = set()
    for line in FLUME.read_text().splitlines():
        case = json.loads(line)
        body = base64.b64decode(case["body"])
        sink = make_sink(
            indexName=case["index"], serializer=names[serializer], indexNameBuilder=PACKAGE + names[builder]
        )
        expected, index = case[serializer] and json.loads(case[serializer]), case[builder]
        if body in OURS:
            differing_bodies.add(body)
            text = {"logstash": "@message", "dynamic": "body"}[serializer]
            assert expected is None or expected[text] != OURS[body], "no longer a difference"
            fields = {"logstash": {"@fields": case["headers"]}, "dynamic": case["headers"]}[serializer]
            expected = {text: OURS[body], **fields}
        if expected is None or index is None:
            (reason,) = sink._make_items(batch(Event(body, case["headers"]))).values()
            assert reason.startswith(("its header 'timestamp' is", "it has no header 'timestamp'"))
            assert sink._items == []
            continue
        sink._make_items(batch(Event(body, case["headers"])))
        (document,) = sink._items
        action, source, end = document.lines.split(b"\n")
        assert end == b""
        assert json.loads(action) == {"index": {"_index": index, "_id": "t-0-7-0"}}, case
        assert json.loads(source) == expected, case
    assert differing_bodies == OURS.keys()


def test_json_is_stored_as_deep_as_it_can_be_read() -> None:
    sink = make_sink()
    deep = b"[" * 10 + b'{"a":' * 100_000
    sink._make_items(batch(Event(deep)))
    (document,) = sink._items
    assert json.loads(document.lines.splitlines()[1])["@message"] == deep.decode()


# --- answers


@pytest.fixture
def server() -> Iterator[Server]:
    with contextlib.closing(Server()) as running:
        yield running


@contextlib.contextmanager
def opened(server: Server, **options: str) -> Iterator[ElasticsearchSink]:
    sink = make_sink(hostNames=server.address, **options)
    sink.open()
    try:
        yield sink
    finally:
        sink.close()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (item(429, "rejected_execution_exception"), "does not write to flume-2026-11-22: because"),
        (item(429, "cluster_block_exception", "index [x] blocked by: [flood stage]"), "blocked by: .flood stage."),
        (item(403, "cluster_block_exception", "index [x] blocked"), "index .x. blocked"),
        (item(404, "index_not_found_exception", "no such index [x]"), "no such index"),
        (item(400, "index_closed_exception", "closed"), "closed"),
        (item(400, "validation_exception", "this action would add [2] shards"), "this action would add"),
        (item(503, "unavailable_shards_exception", "primary shard is not active"), "primary shard"),
        (item(500), "because"),
        ({"index": {"status": 502, "error": "a text"}}, "a text"),
    ],
)
def test_a_temporary_refusal_is_retried_with_its_reason(server: Server, bad: dict[str, Any], reason: str) -> None:
    server.answer = lambda documents: (200, {"items": [item(201), bad, item(400)][: len(documents)]})
    with opened(server) as sink:
        sink.write(batch(Event(b"a"), Event(b"b"), Event(b"c")))
        with pytest.raises(Retry, match=reason):
            sink.flush()
        sink.reset()
        server.answer = lambda documents: (200, {"items": [item(200) for _ in documents]})
        sink.write(batch(Event(b"a"), Event(b"b"), Event(b"c")))
        sink.flush()
    assert {document["@message"] for document in server.stored.values()} == {"a", "b", "c"}


def test_refused_documents_are_rejected_with_a_common_reason(server: Server) -> None:
    preview = "failed to parse field [n] of type [long] in document with id '{}'. Preview of field's value: '{}\n'"
    errors = [
        item(400, "mapper_parsing_exception", preview.format("t-0-7-0", "no\n'number'")),
        item(400, "document_parsing_exception", "[1:23] " + preview.format("t-0-7-1", "{x=5}")),
        item(
            400, "mapper_parsing_exception", "failed to parse", caused_by={"reason": "Duplicate field 'n'\n at [x]"}
        ),
        item(400, "invalid_index_name_exception", "Invalid index name [Upper], must be lowercase"),
        item(201),
    ]
    server.answer = lambda documents: (200, {"items": errors})
    with opened(server) as sink:
        sink.write(batch(*[Event(b"x")] * 5))
        with pytest.raises(Rejected) as rejected:
            sink.flush()
        sink.flush()
    assert {id.index: reason for id, reason in rejected.value.reasons.items()} == {
        0: "Elasticsearch refuses its document: failed to parse field [n] of type [long]",
        1: "Elasticsearch refuses its document: failed to parse field [n] of type [long]",
        2: "Elasticsearch refuses its document: failed to parse: Duplicate field 'n'",
        3: "Elasticsearch refuses its index: its name must be lowercase",
    }
    assert len(server.requests) == 2


@pytest.mark.parametrize(("status", "reason"), [(413, "it is too large for a request"), (400, "no")])
def test_a_request_that_is_refused_as_a_whole_costs_one_event(server: Server, status: int, reason: str) -> None:
    def answer(documents: list[dict[str, Any]]) -> tuple[int, Any]:
        if any(document["@message"] == "bad" for document in documents):
            return status, {"error": {"type": "x", "reason": "no"}, "status": status}
        return 200, {"items": [item(201) for _ in documents]}

    server.answer = answer
    with opened(server) as sink:
        sink.write(batch(*[Event(b"bad" if row == 5 else b"good") for row in range(9)]))
        with pytest.raises(Rejected) as rejected:
            sink.flush()
    assert {str(id): text for id, text in rejected.value.reasons.items()} == {
        "t-0-7-5": f"Elasticsearch refuses its document: {reason}"
    }
    assert len(server.stored) == 8


def test_large_events_are_sent_in_requests_of_a_bounded_size(server: Server) -> None:
    with opened(server) as sink:
        sink.write(batch(*[Event(b"x" * 1_000_000)] * 12))
        sink.flush()
    assert (len(server.stored), len(server.sizes), max(server.sizes) <= ElasticsearchSink.max_size) == (12, 3, True)


@pytest.mark.parametrize(
    ("info", "trouble"),
    [
        ((401, "Unauthorized"), "does not let this user write: check username and password (Unauthorized)"),
        ((200, {"version": {"number": "6.8.23"}}), "Elasticsearch 6.8.23 at {} is too old: it must be 7 or later"),
        ((200, {"version": {"number": "1.3.20", "distribution": "opensearch"}}), ""),
        ((200, {"version": {"number": "9.2.0", "build_flavor": "default"}}), ""),
        ((200, {"title": "another"}), "{} is no Elasticsearch or OpenSearch: it answers"),
        ((200, "<html>hello"), "{} is no Elasticsearch: its answer is no JSON"),
        ((404, "<html>none"), "Elasticsearch at {} answers 404: <html>none"),
        ((429, {"error": {"type": "x", "reason": "slow down"}}), "Elasticsearch at {} is overloaded: slow down"),
        ((503, "not yet"), "Elasticsearch at {} answers 503: not yet"),
    ],
)
def test_probe_names_each_mistake(server: Server, info: tuple[int, Any], trouble: str) -> None:
    server.info = info
    sentences = [
        str(sentence)
        for sentence in make_sink(hostNames=server.address, username="u", password="p").check_connectivity()
    ]
    if not trouble:
        assert sentences == []
    else:
        (sentence,) = sentences
        assert trouble.format(server.address) in sentence
    assert server.requests[0][2]["authorization"] == "Basic " + base64.b64encode(b"u:p").decode()


def test_an_answer_of_something_else_is_no_success(server: Server) -> None:
    answers: list[Any] = [{"items": []}, {}, [], "<html>login"]
    with opened(server) as sink:
        for answer in answers:
            server.answer = lambda _, answer=answer: (200, answer)
            sink.write(batch(Event(b"a")))
            with pytest.raises(Retry, match="is no Elasticsearch"):
                sink.flush()
            sink.reset()


def test_one_of_two_servers_is_enough(server: Server) -> None:
    sink = make_sink(hostNames=f"127.0.0.1:1,{server.address}")
    sink.open()
    for _ in range(4):
        sink.write(batch(Event(b"a")))
        sink.flush()
    sink.close()
    assert len(server.stored) == 1
    assert list(make_sink(hostNames="127.0.0.1:1,127.0.0.1:2").check_connectivity()) == [
        "Elasticsearch is away: no answer from 127.0.0.1:1,127.0.0.1:2"
    ]


def test_a_silent_server_is_not_waited_for(server: Server) -> None:
    over = threading.Event()

    def answer(documents: list[dict[str, Any]]) -> tuple[int, Any]:
        over.wait(30)
        return 500, {}

    server.answer = answer
    with opened(server, timeout="100") as sink:
        sink.write(batch(Event(b"a")))
        with pytest.raises(Retry, match="Elasticsearch is away: no answer from"):
            sink.flush()
        over.set()


def test_tls_with_a_private_authority(tmp_path: Path) -> None:
    folder = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    with contextlib.closing(Server(context)) as server:
        address = f"https://{server.address}"
        (trouble,) = make_sink(hostNames=address).check_connectivity()
        assert trouble == f"the certificate of {address} is not accepted: set truststore to a file with its authority"
        assert list(make_sink(hostNames=address, truststore=str(folder / "server.crt")).check_connectivity()) == []
        assert list(make_sink(hostNames=address, **{"trust-all-certs": "true"}).check_connectivity()) == []
        (trouble,) = make_sink(hostNames=server.address).check_connectivity()
        assert trouble.startswith("Elasticsearch is away: no answer from 127.0.0.1:")
    with contextlib.closing(Server()) as server:
        (trouble,) = make_sink(hostNames=f"https://{server.address}").check_connectivity()
        assert "the TLS handshake with" in trouble, trouble


def test_a_missing_library_for_truststores_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config, problems = ElasticsearchConfig.parse({"hostNames": "h", "ssl": "true", "truststore": "/ca.jks"})
    assert config is not None, problems
    messages = {problem.option: problem.message for problem in config.warnings()}
    assert messages["truststore"] == "needs cryptography, which is not installed: pip install 'flafka[tls]'"

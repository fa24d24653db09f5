"""Options of the Solr sink; what it does with them is tests/system/test_solr_sink.py."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import ssl
import threading
from pathlib import Path

import pytest

from plugins import Batch, Event, Origin, Rejected
from sinks.solr import SolrConfig, SolrSink
from tests.plugins.certificates import certificate

URL = "http://h:8983/solr/logs"


def problems(properties: dict[str, str]) -> list[str]:
    return [f"{problem.option}: {problem.message}" for problem in SolrConfig.parse(properties)[1]]


def test_what_carries_over_from_a_morphline_sink() -> None:
    config, found = SolrConfig.parse({"url": URL + "/", "batchSize": "500", "batchDurationMillis": "2000"})
    assert found == []
    assert config is not None
    assert config.url == URL
    sink = SolrSink(config)
    assert (sink.batch_size, sink.flush_interval) == (500, 2.0)


def test_what_does_not_is_refused_with_the_way_out() -> None:
    found = problems({"morphlineFile": "/etc/m.conf", "morphlineId": "m1", "isProductionMode": "true"})
    assert found[0] == "url: is required: add url = http://host:8983/solr/<collection>"
    assert ["morphlines do not run here" in problem for problem in found] == [False, True, True, False]
    assert found[3].startswith("isProductionMode: is not needed: remove it")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": "h:8983/solr/logs"}, "url: must be http://"),
        ({"url": "http://h:8983"}, "url: must be http://"),
        (
            {"url": "http://h:8983/solr"},
            "url: must end in the name of the collection: http://h:8983/solr/<collection>",
        ),
        ({"url": "http://u:p@h/solr/c"}, "url: must be the address alone"),
        ({"field.a_s": "%[uuid]"}, "field.a_s: %[uuid] is none of"),
        ({"username": "u"}, "username: must be set together with password"),
    ],
)
def test_what_cannot_be_is_refused_in_words(wrong: dict[str, str], message: str) -> None:
    (problem,) = problems({"url": URL, **wrong})
    assert problem.startswith(message), problem


def test_it_travels_to_an_executor_and_keeps_its_secret() -> None:
    config, _ = SolrConfig.parse({"url": URL, "username": "u", "password": "hunter2", "field.a_s": "%{a}"})
    assert config is not None
    assert "hunter2" not in repr(config)
    sent: SolrConfig = pickle.loads(pickle.dumps(config))
    assert sent == config
    SolrSink(sent).close()


def test_the_last_of_events_with_one_document_id_counts() -> None:
    config, _ = SolrConfig.parse({"url": URL, "documentId": "%{host} %{minute}", "bodyField": "none"})
    assert config is not None
    sink = SolrSink(config)
    some = [
        Event(b"", headers) for headers in ({"host": "a", "minute": "1"}, {"host": "a"}, {"host": "b", "minute": "2"})
    ]
    with pytest.raises(Rejected) as rejected:
        sink.write(Batch.of(some, Origin.of_records("t", 0, [7, 8, 9], [0, 0, 0])))
    assert {str(id): reason for id, reason in rejected.value.reasons.items()} == {
        "t-0-8-0": "its document has no id: it has no header 'minute', which '%{host} %{minute}' needs"
    }
    assert [document.fields["id"] for document in sink._documents] == ["a 1", "b 2"]
    (problem,) = problems({"url": URL, "documentId": "%[uuid]"})
    assert problem.startswith("documentId: %[uuid] is")


@pytest.mark.parametrize("named", [True, False])
def test_what_a_tolerant_chain_refuses_is_rejected_by_whatever_name(named: bool) -> None:
    config, _ = SolrConfig.parse({"url": URL})
    assert config is not None
    sink = SolrSink(config)

    def add(documents: list[dict[str, str]]) -> str:
        bad = [document["id"] for document in documents if document["body_t"] == "bad"]
        errors = [{"type": "ADD", "id": id if named else "of another field", "message": "ERROR: no"} for id in bad]
        return json.dumps({"responseHeader": {"status": 0, "errors": errors}})

    sink._add = add
    events = Batch.of([Event(b"bad" if row in (3, 5) else b"good") for row in range(9)])
    sink.write(Batch(events.records, Origin.of_record("t", 0, 7, 5, 9)))
    with pytest.raises(Rejected) as rejected:
        sink.flush()
    assert {id.index: reason for id, reason in rejected.value.reasons.items()} == dict.fromkeys(
        (3, 5), "Solr refuses its document: no"
    )


def test_a_certificate_that_is_not_trusted_is_told(tmp_path: Path) -> None:
    folder = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")

    def serve() -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(listener.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        config, _ = SolrConfig.parse({"url": f"https://localhost:{listener.getsockname()[1]}/solr/logs"})
        assert config is not None
        (trouble,) = SolrSink(config).probe()
        thread.join()
    assert "is not accepted: REQUESTS_CA_BUNDLE" in trouble

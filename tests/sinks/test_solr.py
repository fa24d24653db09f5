"""Options of the Solr sink; tests/system/test_solr_sink.py has its deliveries."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import ssl
import threading
from pathlib import Path

import pytest

from flafka.plugins import Batch, Event, Origin, Rejected, Retry
from flafka.sinks.solr import SolrConfig, SolrSink
from tests.plugins.certificates import certificate

URL = "http://h:8983/solr/logs"


def problems(properties: dict[str, str]) -> list[str]:
    return [f"{problem.option}: {problem.message}" for problem in SolrConfig.parse(properties)[1]]


def test_options_of_a_morphline_sink_are_accepted() -> None:
    config, errors = SolrConfig.parse({"url": URL + "/", "batchSize": "500", "batchDurationMillis": "2000"})
    assert errors == []
    assert config is not None
    assert config.url == URL
    sink = SolrSink(config)
    assert (config.batch_size, sink.flush_interval) == (500, 2.0)


MORPHLINE = (
    """
SOLR_LOCATOR : { collection : logs, zkHost : "127.0.0.1:2181/solr" }
morphlines : [
  {
    id : m1
    importCommands : ["org.kitesdk.**", "org.apache.solr.**"]
    commands : [
      { readLine { charset : UTF-8 } }
      # { java { code : "" } }
      { grok { expressions : { message : """
    + '"""(?<level>\\S+) (?<n_i>\\d+)"""'
    + """ } } }
      { generateUUID { field : id } }
      { addValues { java : "no command { java { }" } }
      { sanitizeUnknownSolrFields { solrLocator : ${SOLR_LOCATOR} } }
      { loadSolr { solrLocator : ${SOLR_LOCATOR} } }
    ]
  }
]
"""
)


def write_morphline(directory: Path, text: str = MORPHLINE) -> dict[str, str]:
    file = directory / "morphline.conf"
    file.write_text(text)
    return {"morphlineFile": str(file), "morphlineId": "m1"}


def with_morphline(properties: dict[str, str]) -> SolrSink:
    config, errors = SolrConfig.parse(properties)
    assert config is not None, errors
    sink = SolrSink(config)
    schema = {"uniqueKey": "id", "fields": [{"name": "id"}], "dynamicFields": [{"name": "*_i"}]}
    sink._maker.attach(config.open_morphline(lambda record: True, sink), schema)
    return sink


def batch_of(*bodies: bytes) -> Batch:
    numbers = list(range(len(bodies)))
    return Batch.of([Event(body) for body in bodies], Origin.of_records("t", 0, numbers, numbers))


def test_a_morphline_needs_no_other_address_than_its_own(tmp_path: Path) -> None:
    flumes = write_morphline(tmp_path) | {
        "isProductionMode": "true",
        "recoverableExceptionClasses": "java.io.IOException",
    }
    assert problems(flumes) == []
    assert problems({"morphlineFile": "/etc/m.conf"}) == []
    config, _ = SolrConfig.parse({"morphlineFile": "/etc/m.conf"})
    assert config is not None
    assert [str(problem.message) for problem in config.warnings()] == [
        "/etc/m.conf does not exist: the component starts once it does"
    ]
    with pytest.raises(Retry, match=r"the morphline cannot run: .*No such file"):
        SolrSink(config).open()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{ readLine { charset : UTF-8 } }", "{ userAgent { a : b } }",
         ":8: the command `userAgent` is not supported"),
        ("{ readLine { charset : UTF-8 } }", "{ java { code : x } }", ":8: the command `java` is code in Java"),
        ("charset : UTF-8", "charset : UTF-7a", ":8: the command `readLine` unknown character set 'UTF-7a'"),
        ("charset : UTF-8", "charSet : UTF-8", ":8: the command `readLine` does not know charSet"),
        ("{ expressions", "{ dictionaryFiles : [/none], expressions", ":10: the command `grok` cannot read its"),
        ("(?<level>", "%{LEVEL:level} (?<l>", ":10: the command `grok` names the pattern 'LEVEL', which is not in"),
        ("m1", "m2", "has no morphline 'm1'; it has 'm2'"),
        ("morphlines : [", "morphlines : {", "morphline.conf:"),
        ("127.0.0.1:2181/solr", "$ZK_HOST", ":13: zkHost '$ZK_HOST' is a placeholder: write its hosts, or add url"),
        ("zkHost : \"127.0.0.1:2181/solr\"", "", ":13: its solrLocator has neither solrUrl nor zkHost"),
        ("org.kitesdk.**", "x.y", "imports none of Kite's commands"),
        ("{ loadSolr { solrLocator : ${SOLR_LOCATOR} } }",
         "{ loadSolr { solrLocator : { solrUrl : \"http://h/solr/c\" } } }",
         ":14: names another collection"),
    ],
)  # fmt: skip
def test_mistakes_of_a_morphline_are_reported_with_their_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in MORPHLINE
    (problem,) = problems(write_morphline(tmp_path, MORPHLINE.replace(old, new)))
    assert problem.startswith("morphlineFile: ")
    assert message in problem


def test_all_unsupported_commands_are_reported_at_once(tmp_path: Path) -> None:
    text = MORPHLINE.replace("{ readLine {", "{ geoIP {").replace("{ generateUUID {", "{ solrCell {")
    (problem,) = problems(write_morphline(tmp_path, text))
    assert ":8: the command `geoIP`" in problem
    assert ":11: the command `solrCell`" in problem


def test_a_redelivered_event_gives_the_same_documents(tmp_path: Path) -> None:
    deliveries = []
    for _ in range(2):
        sink = with_morphline(write_morphline(tmp_path))
        assert not sink._make_items(batch_of(b"INFO 1\nWARN 2", b"ERROR 3"))
        deliveries.append([document.fields for document in sink._items])
    assert deliveries[0] == deliveries[1]
    assert [document.pop("n_i") for document in deliveries[0]] == ["1", "2", "3"]
    assert len({document["id"] for document in deliveries[0]}) == 3
    assert all(document.keys() == {"id"} for document in deliveries[0])


def test_an_event_with_which_a_morphline_fails_is_rejected(tmp_path: Path) -> None:
    sink = with_morphline(write_morphline(tmp_path))
    rejected = sink._make_items(batch_of(b"INFO 1", b"INFO one", b"", b"INFO 2\nno"))
    assert {id.offset for id in rejected} == {1, 2, 3}
    assert [document.fields["n_i"] for document in sink._items] == ["1", "2"]
    assert set(rejected.values()) == {"a command of the morphline fails"}


def test_variables_come_before_the_files_own_values(tmp_path: Path) -> None:
    properties = write_morphline(tmp_path) | {
        "morphlineVariable.SOLR_LOCATOR.solrUrl": "http://h:8983/solr/other",
        "morphlineVariable.SOLR_LOCATOR.zkHost": "",
    }
    config, errors = SolrConfig.parse(properties)
    assert config is not None, errors
    sink = SolrSink(config)
    assert sink._address(config.open_morphline(lambda record: True, sink)) == "http://h:8983/solr/other"


def test_solr_is_found_by_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ZooKeeper:
        def __init__(self, hosts: str, read_only: bool) -> None:
            assert hosts == "127.0.0.1:2181/solr"

        def get_children(self, path: str) -> list[str]:
            assert path == "/live_nodes"
            return ["b:8983_solr", "a:7574_solr"]

        def start(self, timeout: float) -> None: ...
        def stop(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr("kazoo.client.KazooClient", ZooKeeper)
    config, errors = SolrConfig.parse(write_morphline(tmp_path))
    assert config is not None, errors
    sink = SolrSink(config)
    assert sink._address(config.open_morphline(lambda record: True, sink)) == "http://a:7574/solr/logs"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": "h:8983/solr/logs"}, "url: must be http://"),
        ({"url": "http://h:8983"}, "url: must be http://"),
        (
            {"url": "http://h:8983/solr"},
            "url: must end in the name of the collection: http://h:8983/solr/<collection>",
        ),
        ({"url": "http://u:p@h/solr/c"}, "url: must contain neither user nor parameters"),
        ({"field.a_s": "%[uuid]"}, "field.a_s: %[uuid] is none of"),
        ({"documentId": "%[uuid]"}, "documentId: %[uuid] is none of"),
        ({"username": "u"}, "username: must be set together with password"),
        ({"bodyField": "id"}, "bodyField: must be another field than idField, 'id'"),
        ({"idField": "body_t"}, "bodyField: must be another field than idField, 'body_t'"),
        ({"field.body_t": "%{a}"}, "field.body_t: must be another field than bodyField, as the body would be lost"),
        ({"bodyField": "text", "field.text": "%[body]"}, "field.text: must be another field than bodyField"),
        ({"field.id": "%{a}"}, "field.id: must be another field than idField: write the text as documentId"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, str], message: str) -> None:
    (problem,) = problems({"url": URL, **wrong})
    assert problem.startswith(message), problem


def test_a_field_may_have_the_name_of_a_body_that_is_not_stored() -> None:
    assert problems({"url": URL, "bodyField": "none", "field.body_t": "%[body]", "field.none": "%{a}"}) == []


def test_it_travels_to_an_executor_and_keeps_its_secret() -> None:
    config, _ = SolrConfig.parse({"url": URL, "username": "u", "password": "hunter2", "field.a_s": "%{a}"})
    assert config is not None
    assert "hunter2" not in repr(config)
    sent: SolrConfig = pickle.loads(pickle.dumps(config))
    assert sent == config
    SolrSink(sent).close()


@pytest.mark.parametrize("named", [True, False])
def test_documents_that_a_tolerant_chain_refuses_are_rejected_by_any_id(named: bool) -> None:
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


@pytest.mark.parametrize(
    ("properties", "at_once"),
    [({}, 2), ({"connections": "3"}, 3), ({"updateChain": "c"}, 1), ({"documentId": "%{minute}"}, 1)],
)
def test_requests_are_concurrent_except_for_one_document(properties: dict[str, str], at_once: int) -> None:
    config, _ = SolrConfig.parse({"url": URL, "batchSize": "1", **properties})
    assert config is not None
    sink = SolrSink(config)
    together, guard = threading.Barrier(at_once), threading.Semaphore(at_once)
    bodies: list[str] = []

    def add(documents: list[dict[str, str]]) -> str:
        assert guard.acquire(blocking=False), "more at once"
        bodies.extend(document["body_t"] for document in documents)
        together.wait(60)
        guard.release()
        return "{}"

    sink._add = add
    for number in range(6):
        events = Batch.of([Event(b"%d" % number, {"minute": "1"})])
        sink.write(Batch(events.records, Origin.of_record("t", 0, number, 5, 1)))
    sink.flush()
    sink.close()
    assert sorted(bodies) == ["0", "1", "2", "3", "4", "5"]
    assert at_once > 1 or bodies == sorted(bodies)


def test_an_untrusted_certificate_is_reported(tmp_path: Path) -> None:
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
        (trouble,) = SolrSink(config).check_connectivity()
        thread.join()
    assert "is not accepted: set REQUESTS_CA_BUNDLE" in trouble

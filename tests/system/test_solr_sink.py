"""Solr sink on a real Solr: documents and their fields, refused documents, and an unavailable server."""

from __future__ import annotations

import json
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.running import RunningAgent
from flafka.agent.services.solr import SOLR, SolrCluster
from flafka.plugins import Event, Retry, conformance
from flafka.plugins.conformance.samples import sample_events
from flafka.sinks.solr import SolrConfig, SolrSink
from tests.fixtures.cores import create_core
from tests.fixtures.kit import exercises
from tests.system.delivering import batch, deliver
from tests.system.running import unique


def sink_of(url: str, **options: str) -> SolrSink:
    config, problems = SolrConfig.parse({"url": url, **options})
    assert config is not None, problems
    return SolrSink(config)


def opened(url: str, **options: str) -> SolrSink:
    sink = sink_of(url, **options)
    sink.open()
    return sink


def documents(url: str) -> dict[str, dict[str, Any]]:
    """Return all documents by id, after a commit that makes them visible."""
    urllib.request.urlopen(f"{url}/update?commit=true", timeout=30).close()
    query = urllib.parse.urlencode({"q": "*:*", "rows": 100_000, "wt": "json", "fl": "*"})
    with urllib.request.urlopen(f"{url}/select?{query}", timeout=30) as answer:
        response = json.load(answer)["response"]
    assert len(response["docs"]) == response["numFound"]
    return {document.pop("id"): document for document in response["docs"] if document.pop("_version_")}


@pytest.fixture
def core(solr_cluster: SolrCluster) -> str:
    """URL of a new core for each test."""
    return create_core(solr_cluster, unique("c"))


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
        assert list(sink.check_connectivity()) == []
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
def test_only_what_solr_refuses_is_rejected(core: str, chain: dict[str, str]) -> None:
    wrong = {3: "no number", 500: "1.5", 1499: ""}
    events = [Event(b"%d" % n, {"n": wrong.get(n, str(n))}) for n in range(1500)]
    events[700] = Event(b"x", {"n": "1", "long": "x" * 40_000})  # a term of Solr's index has at most 32,766 bytes
    events[900] = Event(b"x", {"n": "1", "v": "5"})  # requires this version of the document
    events[901] = Event(b"x", {"n": "1", "v": "-1"})  # requires that the document is new
    sink = opened(core, **{"field.n_i": "%{n}", "field._version_": "%{v}"}, **chain)
    rejected = deliver(sink, batch(*events))
    # An empty text makes no field.
    assert rejected.keys() == {"app-0-3-0", "app-0-500-0", "app-0-700-0", "app-0-900-0"}
    assert "version conflict" in rejected["app-0-900-0"]
    assert deliver(sink, batch(events[901], offset=901)) == {}  # after a kill
    assert "Error adding field 'n_i'='no number'" in rejected["app-0-3-0"]
    assert "immense term" in rejected["app-0-700-0"]
    assert documents(core).keys() == {f"app-0-{n}-0" for n in range(1500)} - rejected.keys()
    sink.close()


def test_probe_names_each_mistake(core: str, solr_cluster: SolrCluster) -> None:
    def troubles(url: str, **options: str) -> list[str]:
        return [str(sentence) for sentence in sink_of(url, **options).check_connectivity()]

    assert troubles(core) == []
    assert troubles("http://127.0.0.1:1/solr/c") == ["Solr is away: no answer from http://127.0.0.1:1/solr/c"]
    missing = f"{solr_cluster.address}/missing"
    assert troubles(missing) == [f"Solr has no collection or core {missing}: create it, or correct url"]
    (sentence,) = troubles(core, updateChain="none")
    assert sentence.startswith(f"{core} accepts no updates: unknown UpdateRequestProcessorChain: none")
    cautions = troubles(core, **{"field.nothing": "x", "idField": "key_s"})
    assert ["no field 'nothing'" in cautions[0], "duplicates documents" in cautions[1]] == [True, True]


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


MORPHLINES = """
# Takes syslog apart.
SOLR_LOCATOR : {
  solrUrl : "%s"
}
SOLR_LOCATOR : ${?ENV_SOLR_LOCATOR}

morphlines : [
  {
    id : morphline1
    importCommands : ["org.kitesdk.**", "org.apache.solr.**"]
    commands : [
      { readLine { charset : UTF-8 } }
      {
        grok {
          dictionaryFiles : [%s]
          expressions : {
            message : QUOTES<%%{POSINT:priority_i}>%%{TS:time_dt} %%{HOST:host_s} %%{PROGRAM}: %%{TEXT}QUOTES
          }
        }
      }
      {
        if {
          conditions : [ { equals { program_s : cron } } ]
          then : [ { dropRecord {} } ]
        }
      }
      {
        convertTimestamp {
          field : time_dt
          inputFormats : ["yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "MMM d HH:mm:ss"]
          inputTimezone : America/Los_Angeles
          outputFormat : "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
          outputTimezone : UTC
        }
      }
      { generateUUID { field : id } }
      { logDebug { format : "output record: {}", args : ["@{}"] } }
      { sanitizeUnknownSolrFields { solrLocator : ${SOLR_LOCATOR} } }
      { loadSolr { solrLocator : ${SOLR_LOCATOR} } }
    ]
  }
]
"""
DICTIONARY = r"""
POSINT \b(?:[1-9][0-9]*)\b
TS (?:Jan|Feb|Mar) +\d+ (?!<[0-9])\d\d:\d\d:\d\d(?![0-9])
HOST \b(?:[0-9A-Za-z][0-9A-Za-z-]{0,62})\b
PROGRAM %{DATA:program_s}(?:\[%{POSINT:pid_i}\])?
TEXT %{GREEDYDATA:text_t}
DATA .*?
GREEDYDATA .*
"""
FLUME = """
agent.sources = netcat
agent.channels = memory
agent.sinks = solrSink
agent.sources.netcat.type = netcat
agent.sources.netcat.bind = 127.0.0.1
agent.sources.netcat.port = 0
agent.sources.netcat.channels = memory
agent.sources.netcat.interceptors = port
agent.sources.netcat.interceptors.port.type = org.apache.flume.sink.solr.morphline.MorphlineInterceptor$Builder
agent.sources.netcat.interceptors.port.morphlineFile = {directory}/interceptor.conf
agent.channels.memory.type = memory
agent.sinks.solrSink.type = org.apache.flume.sink.solr.morphline.MorphlineSolrSink
agent.sinks.solrSink.channel = memory
agent.sinks.solrSink.batchSize = 100
agent.sinks.solrSink.batchDurationMillis = 200
agent.sinks.solrSink.isProductionMode = true
agent.sinks.solrSink.morphlineFile = {directory}/morphlines.conf
agent.sinks.solrSink.morphlineId = morphline1
"""


def test_an_agent_with_flumes_morphlines(core: str, tmp_path: Path) -> None:
    (tmp_path / "grok-patterns").write_text(DICTIONARY)
    text = MORPHLINES % (core, tmp_path / "grok-patterns")
    (tmp_path / "morphlines.conf").write_text(text.replace("QUOTES", '"' * 3))
    (tmp_path / "interceptor.conf").write_text(
        "morphlines : [{ id : m, commands : [{ addValues { port_i : 514, unknown : x } }] }]"
    )
    lines = [
        b"<164>Feb  4 10:46:14 web sshd[607]: listening on 0.0.0.0 port 22.",
        b"<13>Feb 14 23:46:14 web app: started",
        b"<13>Feb 14 23:46:15 web cron: nobody needs that",
        b"no syslog",
    ]
    with RunningAgent(tmp_path, FLUME.format(directory=tmp_path)) as agent:
        with socket.create_connection(("127.0.0.1", agent.port("netcat")), timeout=60) as sender:
            sender.sendall(b"".join(line + b"\n" for line in lines))
            assert [sender.makefile("rb").readline()] == [b"OK\n"]
            agent.until(lambda: len(documents(core)) == 2, "documents")
            agent.until(lambda: agent.count("SINK.solrSink", "EventRejectedCount") == 1, "what is no syslog")
        assert agent.stop() == 0
    stored = sorted(documents(core).values(), key=lambda document: str(document["program_s"]))
    common = {"port_i": 514, "host_s": "web"}
    assert stored == [
        common | {"priority_i": 13, "time_dt": "1970-02-15T07:46:14Z", "program_s": "app", "text_t": "started"},
        common
        | {"priority_i": 164, "time_dt": "1970-02-04T18:46:14Z", "program_s": "sshd", "pid_i": 607}
        | {"text_t": "listening on 0.0.0.0 port 22."},
    ]

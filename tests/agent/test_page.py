"""Requests of an agent's page, and access to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flafka.agent.graph import Graph
from flafka.agent.monitoring.history import SAMPLE_SECONDS, History
from flafka.agent.monitoring.kafkamonitor import KafkaMonitor
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.routes import LenientJsonResponse
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.monitoring.view import View
from flafka.plugins import Metrics, TailedFile
from flafka.plugins.net.tls import TlsServerConfig


def view_of(registry: Registry, files: list[TailedFile] | None = None) -> View:
    graph = Graph("a1", "agent.conf", (), (), ())
    view = View(graph, registry)
    view.set_agent(graph, KafkaMonitor({}, {}), {"s1": lambda: files or []})
    return view


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def asking(
    host: str = "127.0.0.1",
    token: str = "",
    requested_host: str = "localhost",
    view: View | None = None,
    *,
    ssl: bool | None = None,
) -> Callable[..., Answer]:
    """Return a function for requests to a server on `host`, under the name `requested_host`; without a network.

    `ssl` is as in the option.
    """
    registry = view.registry if view is not None else Registry("a1")
    server = (registry, host, 0, view or view_of(registry), token, TlsServerConfig() if ssl else None)
    app = MetricsServer(*server, behind_proxy=ssl is False)._app()

    def ask(path: str, headers: Mapping[str, str] | None = None) -> Answer:
        sent: list[Any] = []
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "scheme": "https" if ssl else "http",
            "query_string": query.encode(),
            "server": (requested_host, 14141),
            "root_path": "",
            "headers": [
                (k.encode(), v.encode()) for k, v in {"host": f"{requested_host}:14141", **(headers or {})}.items()
            ],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(app(scope, receive, send))
        received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], received, b"".join(part.get("body", b"") for part in sent[1:]))

    return ask


@pytest.mark.parametrize(
    ("host", "token", "ssl", "requested_host", "path", "headers", "status"),
    [
        ("127.0.0.1", "", None, "localhost", "/", {}, 200),
        ("127.0.0.1", "", True, "[::1]", "/api/state", {}, 200),
        ("127.0.0.1", "", None, "evil.example", "/", {}, 403),
        ("127.0.0.1", "", None, "evil.example", "/api/state", {}, 403),
        ("127.0.0.1", "", True, "evil.example", "/API/state", {}, 403),
        ("127.0.0.1", "", None, "evil.example", "/metrics", {}, 200),
        ("127.0.0.1", "word", None, "localhost", "/api/state", {"authorization": "Bearer word"}, 200),
        ("0.0.0.0", "", None, "localhost", "/", {}, 403),
        ("0.0.0.0", "", True, "localhost", "/", {}, 403),
        ("0.0.0.0", "", False, "localhost", "/", {}, 403),
        ("0.0.0.0", "", None, "localhost", "/healthz", {}, 200),
        ("0.0.0.0", "wöord", True, "host.example", "/", {}, 403),
        ("0.0.0.0", "word", None, "host.example", "/api/graph", {"authorization": "Bearer word"}, 403),
        ("0.0.0.0", "word", False, "host.example", "/api/graph", {"authorization": "Bearer word"}, 200),
        ("0.0.0.0", "word", True, "host.example", "/api/graph", {"authorization": "Bearer word"}, 200),
        ("0.0.0.0", "word", True, "host.example", "/api/graph", {"authorization": "Bearer words"}, 403),
        ("0.0.0.0", "word", True, "host.example", "/api/graph", {"cookie": "flafka-token=word"}, 200),
        ("0.0.0.0", "word", None, "host.example", "/?token=word", {}, 403),
        ("0.0.0.0", "word", True, "host.example", "/?token=word", {}, 307),
        ("0.0.0.0", "word", True, "host.example", "/?token=other", {}, 403),
    ],
)
def test_the_page_is_only_for_authorised_users(
    host: str,
    token: str,
    ssl: bool | None,
    requested_host: str,
    path: str,
    headers: dict[str, str],
    status: int,
) -> None:
    assert asking(host, token, requested_host, ssl=ssl)(path, headers).status == status


def test_a_page_without_tls_says_what_to_set_on_another_address() -> None:
    answer = asking("0.0.0.0", "word", "host.example")("/?token=word")
    assert b"monitoring.ssl = true and monitoring.keystore" in answer.body
    assert "set_cookie" not in answer.headers


@pytest.mark.parametrize(
    ("host", "ssl", "attributes"),
    [
        ("0.0.0.0", True, "; Secure"),
        ("0.0.0.0", False, "; Secure"),  # the proxy in front of it encrypts
        ("127.0.0.1", False, ""),
        ("127.0.0.1", None, ""),
    ],
)
def test_a_token_moves_from_the_address_into_a_cookie(host: str, ssl: bool | None, attributes: str) -> None:
    answer = asking(host, "word", ssl=ssl)("/?token=word")
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("flafka-token=word; HttpOnly")
    assert cookie.endswith(f"SameSite=lax{attributes}")


def test_files_of_the_page_are_served_and_nothing_else_of_the_package() -> None:
    ask = asking()
    assert "<title>agent</title>" in ask("/").body.decode()
    assert ask("/page/page.js").headers["content-type"].startswith("text/javascript")
    assert ask("/page/page.css").status == 200
    assert ask("/page/__init__.py").status == 404


def test_the_state_has_the_figures_of_the_metrics_and_the_log_lines() -> None:
    registry, metrics = Registry("a1"), Metrics()
    registry.add("SINK", "k1", metrics)
    metrics.add("EventDrainSuccessCount", 7)
    metrics.set_error("it is away")
    view = view_of(registry)
    view.recent.handle(logging.LogRecord("a1.sinks.k1", logging.WARNING, "", 0, "%s!", ("away",), None))
    view.recent.handle(logging.LogRecord("a1.sinks.k1", logging.WARNING, "", 0, "again", (), None))
    ask = asking(view=view)
    state = ask("/api/state").json()
    assert state["figures"] == registry.flume()
    assert state["state"] == "failing"
    assert [(p["component"], p["metrics"], p["error"]) for p in state["problems"]] == [
        ("a1.sinks.k1", "SINK.k1", "it is away")
    ]
    assert [(line["component"], line["text"]) for line in state["said"]] == [
        ("a1.sinks.k1", "again"),
        ("a1.sinks.k1", "away!"),
    ]


def test_files_with_most_unread_bytes_come_first(tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 30), ("c", 20)):
        (tmp_path / name).write_bytes(b"x" * size)
    gone = TailedFile(str(tmp_path / "gone"), 5)
    files = [TailedFile(str(tmp_path / name), 10) for name in "abc"]
    answer = asking(view=view_of(Registry("a1"), [*files, gone]))("/api/files").json()
    assert [file["path"].rpartition("/")[2] for file in answer["files"]] == ["b", "c", "a", "gone"]
    assert asking(view=view_of(Registry("a1"), files))("/api/files?match=/b").json()["all"] == 1


def test_rates_and_series_agree_with_the_counters() -> None:
    registry, metrics = Registry("a1"), Metrics()
    registry.add("SINK", "k1", metrics)
    clock = [1000.0]
    history = History(registry, lambda: clock[0], lambda: clock[0])
    assert history.rates() == {}
    for _ in range(3):
        history.sample()
        clock[0] += SAMPLE_SECONDS
        metrics.add("EventDrainSuccessCount", 10)
        metrics.set("Lag", clock[0])
    late = Metrics()
    registry.add("SOURCE", "s1", late)
    late.add("EventAcceptedCount", 1)
    history.sample()
    assert history.rates()["SINK.k1"]["EventDrainSuccessCount"] == 10 / SAMPLE_SECONDS
    assert history.rates()["SOURCE.s1"]["EventAcceptedCount"] == 0  # it was unknown before
    series = json.loads(json.dumps(history.series(600, 0, ["SINK.k1", "SOURCE.s1"])))
    assert (series["every"], series["now"]) == (SAMPLE_SECONDS, clock[0])
    assert series["times"] == [1000.0 + n * SAMPLE_SECONDS for n in range(4)]
    assert series["series"]["SINK.k1"]["EventDrainSuccessCount"] == [None, 5, 5, 5]
    assert series["series"]["SINK.k1"]["Lag"] == [None, 1002, 1004, 1006]
    assert "SOURCE.s1" not in series["series"], "a rate is known from the second sample on"
    assert json.loads(json.dumps(history.series(600, 1002.0)))["times"] == [1004.0, 1006.0]
    assert history.growth("SINK.k1", "Lag") is None, "of less than ten seconds"


def test_readiness_names_components_that_were_never_open() -> None:
    registry = Registry("a1")
    ask = asking(view=view_of(registry))
    assert ask("/readyz").json() == {"agent": "a1", "ready": True, "waiting": {}}
    registry.waiting = lambda: {"a1.channels.c1": "no broker answers"}
    answer = ask("/readyz")
    assert (answer.status, answer.json()["waiting"]) == (503, {"a1.channels.c1": "no broker answers"})


def test_names_that_are_no_text_are_shown_as_far_as_they_can_be() -> None:
    registry, metrics = Registry("a1"), Metrics()
    registry.add("SOURCE", "s1", metrics)
    metrics.set_error("/in/a\udcff cannot be read")
    view = view_of(registry, [TailedFile("/in/a\udcff", 5)])
    ask = asking(view=view)
    for path in ("/api/state", "/api/files", "/healthz", "/metrics"):
        answer = ask(path)
        assert answer.status in (200, 503), path
        assert b"/in/a\\udcff" in answer.body, path
        assert answer.json()


def test_not_a_number_is_shown_as_unknown() -> None:
    """Browsers refuse JSON with NaN or Infinity as a whole."""
    registry, metrics = Registry("a1"), Metrics()
    registry.add("SINK", "k1", metrics)
    metrics.set("Lag", float("nan"))
    metrics.add("FlushTimer", float("inf"))
    metrics.set_function("DiskFreeBytes", lambda: float("-inf"))
    text: Any = "full"
    metrics.set_function("Fill", lambda: text)
    metrics.set("Rows", 10**400)
    view = view_of(registry)
    view.history.sample()
    ask = asking(view=view)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for path in ("/api/state", "/api/history", "/metrics"):
        answer = ask(path)
        assert answer.status == 200, path
        json.loads(answer.body, parse_constant=refuse)
    assert (
        not {"Lag", "FlushTimer", "DiskFreeBytes", "Fill", "Rows"}
        & ask("/api/state").json()["figures"]["SINK.k1"].keys()
    )
    rendered = LenientJsonResponse({"a": [float("nan"), 1.5], "b": (float("inf"), "NaN")}).body
    assert json.loads(bytes(rendered), parse_constant=refuse) == {"a": [None, 1.5], "b": [None, "NaN"]}


def test_the_application_on_a_cluster_is_shown_as_long_as_there_is_one() -> None:
    registry = Registry("a1")
    ask = asking(view=view_of(registry))
    assert "spark" not in ask("/healthz").json()
    assert ask("/api/state").json()["spark"] == {}
    shown = {"application": "application_1_0001", "tracking": "http://rm:8088/proxy/application_1_0001/"}
    registry.application = lambda: shown
    assert ask("/healthz").json()["spark"] == ask("/api/state").json()["spark"] == shown

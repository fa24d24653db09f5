"""Requests and messages of an agent on YARN, with a fake ResourceManager."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flafka.agent.options import AgentOptions
from flafka.agent.runner.spark.session import _driver_address
from flafka.agent.services.cluster import site_xml
from flafka.agent.services.running import until
from flafka.agent.yarn import application, resourcemanager
from flafka.agent.yarn.application import Application, YarnApplication, application_tag, lock_tag, shorten_diagnostics
from flafka.agent.yarn.hadoop import hadoop_configuration
from flafka.agent.yarn.resourcemanager import describe_yarn, megabytes, yarn_problems
from flafka.plugins import ConnectivityWarning, Retry
from tests.fixtures.ports import free_port

APPLICATION = Application(
    "application_1_0001", "ACCEPTED", "UNDEFINED", "http://rm/1", "the queue is full", "night", 0
)


class FakeYarn:
    """Replacement of `Yarn` in memory."""

    def __init__(self, *applications: Application) -> None:
        self.known, self.killed, self.running = list(applications), list[str](), 2
        self.asked = 0

    def applications(self) -> list[Application]:
        self.asked += 1
        return self.known

    def kill(self, id: str) -> None:
        self.killed.append(id)
        self.known = [replace(app, state="KILLED") if app.id == id else app for app in self.known]

    def nodes(self) -> int:
        return self.running

    def queue_usage(self, queue: str) -> str:
        return "100 %"


def of(*applications: Application) -> tuple[YarnApplication, FakeYarn, list[str], list[dict[str, str]]]:
    messages, shown = list[str](), list[dict[str, str]]()
    yarn_app, fake = (
        YarnApplication("tag", messages.append, lambda status: shown.append({**status})),
        FakeYarn(*applications),
    )
    yarn_app.yarn = fake  # type: ignore[assignment]  # it has what is asked of it here
    return yarn_app, fake, messages, shown


def test_the_reason_of_a_waiting_application_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "APPLICATION_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(application, "CONTAINER_WAIT_SECONDS", 0.05)
    yarn_app, fake, messages, shown = of()
    with yarn_app.submitting():
        fake.known = [APPLICATION]
        until(lambda: messages)
        fake.running = 0
        until(lambda: len(messages) > 1)
        fake.known = [replace(APPLICATION, state="RUNNING")]
    assert messages[:2] == [
        "the YARN application application_1_0001 waits (ACCEPTED): the queue is full; http://rm/1",
        "the YARN application application_1_0001 waits (ACCEPTED): no NodeManager runs; the queue is full; http://rm/1",
    ]
    assert shown == [{"application": APPLICATION.id, "tracking": "http://rm/1"}]


def test_a_starting_container_is_not_reported_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "APPLICATION_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(application, "CONTAINER_WAIT_SECONDS", 0.0)
    yarn_app, fake, messages, _ = of(replace(APPLICATION, containers=1))
    with yarn_app.submitting():
        until(lambda: fake.asked > 5, "questions", 60)
        assert not messages
        monkeypatch.setattr(application, "LAUNCH_SECONDS", 0.0)
        until(lambda: messages, "a word", 60)


def test_missing_executors() -> None:
    yarn_app, fake, _, _ = of(replace(APPLICATION, state="RUNNING", containers=1))
    assert yarn_app.executor_shortage("a container with 2g") == (
        "YARN gives application_1_0001 no executor: queue night is full to 100 %, and a container with 2g is needed; "
        "http://rm/1"
    )
    fake.known = [replace(APPLICATION, state="RUNNING", containers=2)]
    assert yarn_app.executor_shortage("a container with 2g") is None, "it is being started"
    fake.known = [replace(APPLICATION, state="ACCEPTED", containers=1)]
    assert yarn_app.executor_shortage("a container with 2g") is None, "another ApplicationMaster is"


def test_an_end_is_reported_with_the_message_of_the_resource_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    yarn_app, fake, _, _ = of(replace(APPLICATION, state="RUNNING"))
    with monkeypatch.context() as hasty:
        hasty.setattr(application, "LAST_RESPONSE_SECONDS", 0.1)
        assert yarn_app.end_reason() is None
    fake.known = [
        replace(APPLICATION, state="KILLED", final_status="KILLED", diagnostics="Application was killed by user ann")
    ]
    assert yarn_app.end_reason() == (
        "the YARN application application_1_0001 has ended as KILLED: Application was killed by user ann; http://rm/1"
    )


def test_an_application_that_runs_is_ended_where_the_agent_is() -> None:
    yarn_app, fake, _, _ = of(APPLICATION)
    yarn_app.end()
    yarn_app.end()
    assert fake.killed == [APPLICATION.id]


def test_settings_of_the_user_are_kept() -> None:
    yarn_app = of()[0]
    own = {"spark.yarn.tags": "logs", "spark.yarn.maxAppAttempts": "2"}
    assert yarn_app.settings(own) == {"spark.yarn.tags": "tag,logs", "spark.yarn.maxAppAttempts": "2"}
    assert yarn_app.settings({})["spark.yarn.maxAppAttempts"] == "1"


def test_a_tag_is_one_agent_s_and_held_by_one_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tags = {
        application_tag("a1", "/etc/a.conf"),
        application_tag("a2", "/etc/a.conf"),
        application_tag("a1", "/etc/b.conf"),
    }
    assert len(tags) == 3
    assert application_tag("A,1", "/etc/a.conf").startswith("flafka-a-1-")
    assert all(tag == tag.lower() and len(tag) <= 100 for tag in tags)
    monkeypatch.setattr(application, "_locks", [])
    tag = tags.pop()
    lock_tag(tag)
    with pytest.raises(Retry, match="another driver of this agent runs on this host"):
        lock_tag(tag)
    application._locks.pop().close()
    lock_tag(tag)
    application._locks.pop().close()


def test_diagnostics_in_one_line() -> None:
    assert shorten_diagnostics("[Mon Nov 23 11:00:00 +0000 2026] Application is added\n  to the scheduler. ") == (
        "Application is added to the scheduler."
    )
    assert len(shorten_diagnostics("x" * 10_000)) == application.MAX_DIAGNOSTICS_CHARACTERS + 1


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512), ("2g", 2048), ("1024", 1024), ("1 GB", 1024), ("2048k", 2), ("?", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert megabytes(text) == size


class Pages(http.server.BaseHTTPRequestHandler):
    """Web pages of a ResourceManager, as far as they are read."""

    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/ws/v1/cluster/")
        answer = self.answers.get(path)
        self.send_response(200 if answer is not None else 401)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        new = "new-application" in self.path
        self.send_response(200 if new else 202)
        self.end_headers()
        self.wfile.write(b'{"application-id": "application_1_0009"}' if new else b"")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Pages]]:
    class Own(Pages):
        answers: ClassVar[dict[str, Any]] = {
            "info": {"clusterInfo": {"resourceManagerVersion": "3.4.3", "state": "STARTED"}},
            "metrics": {"clusterMetrics": {"activeNodes": 2, "totalMB": 8192}},
            "nodes": {"nodes": {"node": [node(2048), node(6144), node(0, "LOST")]}},
            "scheduler": {"scheduler": {"schedulerInfo": {"queues": {"queue": [queue("day"), queue("default")]}}}},
            "apps/application_1_0009": {"app": {"state": "FAILED", "diagnostics": "AM\n exited with  exitCode: 0"}},
        }

    with serving(Own) as address:
        properties = {"yarn.resourcemanager.address": address, "yarn.resourcemanager.webapp.address": address}
        (tmp_path / "yarn-site.xml").write_text(site_xml(properties))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        monkeypatch.delenv("YARN_CONF_DIR", raising=False)
        monkeypatch.setattr(resourcemanager, "TRIAL_SECONDS", 1.0)
        monkeypatch.setattr(resourcemanager, "TRIAL_CHECK_SECONDS", 0.01)
        yield Own


@contextlib.contextmanager
def serving(pages: type[Pages]) -> Iterator[str]:
    """Have them answer at this address."""
    with http.server.HTTPServer(("127.0.0.1", 0), pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def node(free: int, state: str = "RUNNING") -> dict[str, Any]:
    used = {"usedMemoryMB": 1024, "usedVirtualCores": 1, "availableVirtualCores": 3}
    return {"state": state, "availMemoryMB": free, **used}


def queue(name: str, state: str = "RUNNING", used: float = 10.0) -> dict[str, Any]:
    return {"queueName": name, "queuePath": f"root.{name}", "state": state, "usedCapacity": used}


def problems(**conf: str) -> list[str]:
    named = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
    return list(yarn_problems(AgentOptions(spark_master="yarn", spark_conf=named)))


def test_all_is_well(pages: type[Pages]) -> None:
    assert problems() == []
    assert describe_yarn() == "YARN 3.4.3 with 2 NodeManagers and 8,192 MB"


def test_queues(pages: type[Pages]) -> None:
    assert problems(yarn_queue="root.day") == []
    assert problems(yarn_queue="night") == [
        "YARN has no queue night (spark.conf.spark.yarn.queue): there are day, default"
    ]
    queues = pages.answers["scheduler"]["scheduler"]["schedulerInfo"]["queues"]
    queues["queue"] = [queue("default", "STOPPED")]
    assert problems() == ["YARN's queue default is STOPPED: it takes no applications"]
    queues["queue"] = [queue("default", used=100.0)]
    (full,) = problems()
    assert full == "YARN's queue default is full to 100 %: the application may wait"
    assert isinstance(full, ConnectivityWarning)


def test_sizes_that_do_not_fit(pages: type[Pages]) -> None:
    assert problems(executor_memory="8g", executor_cores="9") == [
        "no node of YARN has room for a container of 9,011 MB, which the executor needs (spark.executor.memory and "
        "its overhead): the largest has 7,168 MB",
        "no node of YARN has 9 cores (spark.executor.cores): the largest has 4",
        "YARN has 8,192 MB free now, and an ApplicationMaster with one executor needs 9,907 MB: the application "
        "waits until others end",
    ]


@pytest.mark.parametrize(
    ("diagnostics", "expected"),
    [
        ("exitCode: 127 failing", "a node of YARN has no python"),
        ("exitCode: 42 failing", " on a node of YARN is not Python "),
        ("exitCode: -1000", "is unknown: application_1_0009 is FAILED: exitCode: -1000"),
    ],
)
def test_the_python_of_the_executors(pages: type[Pages], diagnostics: str, expected: str) -> None:
    pages.answers["apps/application_1_0009"]["app"]["diagnostics"] = diagnostics
    (problem,) = problems()
    assert expected in problem


def test_a_resource_manager_without_nodes_too_old_or_with_kerberos(pages: type[Pages]) -> None:
    pages.answers["nodes"] = {"nodes": None}
    pages.answers["info"]["clusterInfo"].update(resourceManagerVersion="2.10.1", state="STOPPED")
    assert problems() == [
        "YARN is 2.10.1, and Spark needs 3.0 or newer",
        "the ResourceManager is STOPPED",
        "YARN has no running NodeManager, so it gives no container",
    ]
    del pages.answers["info"]
    (problem,) = problems()
    assert isinstance(problem, ConnectivityWarning)
    assert problem.startswith("no active ResourceManager answers at its web pages (http://127.0.0.1:")
    assert "requires Kerberos" in problem


def test_of_two_resource_managers_the_active_one_is_asked(
    pages: type[Pages], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    redirected = b"This is standby RM. Redirecting to the current active RM: http://rm2:8088/ws/v1/cluster/nodes\n"

    class StandingBy(Pages):
        answers: ClassVar[dict[str, Any]] = {
            "info": {"clusterInfo": {**pages.answers["info"]["clusterInfo"], "haState": "STANDBY"}},
            **dict.fromkeys(["metrics", "nodes", "scheduler"], redirected),
        }

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(redirected)

    pages.answers["info"]["clusterInfo"]["haState"] = "ACTIVE"
    (active,) = hadoop_configuration().pages()
    with serving(StandingBy) as other:
        properties = {"yarn.resourcemanager.ha.enabled": "true", "yarn.resourcemanager.ha.rm-ids": "rm1,rm2"}
        for id, address in ("rm1", other), ("rm2", active.removeprefix("http://")):
            properties |= {f"yarn.resourcemanager.{name}.{id}": address for name in ("address", "webapp.address")}
        (tmp_path / "yarn-site.xml").write_text(site_xml(properties))
        assert problems() == []
        assert describe_yarn() == "YARN 3.4.3 with 2 NodeManagers and 8,192 MB"
        StandingBy.answers["info"] = {"another": "program"}
        assert problems() == []
        StandingBy.answers["info"] = {"clusterInfo": {"haState": "STANDBY"}}
        pages.answers["info"]["clusterInfo"]["haState"] = "STANDBY"
        (problem,) = problems()
        assert isinstance(problem, ConnectivityWarning)
        assert f"(http://{other} is STANDBY; {active} is STANDBY): nothing else is checked" in problem


OTHERWISE = b"""
{"clusterInfo": 1, "clusterMetrics": {}, "nodes": {"node": [1]}, "scheduler": [], "app": {}}
"""


@pytest.mark.parametrize("page", ["info", "metrics", "nodes", "scheduler", "apps/application_1_0009"])
@pytest.mark.parametrize(
    "answer",
    [
        b"<html>It works!</html>",
        b"",
        b"null",
        b"[1]",
        b'{"clusterInfo": {"sta',
        b'{"a": 1}',
        b"[" * 100_000,
        OTHERWISE,
    ],
    ids=["html", "empty", "null", "list", "truncated", "other", "deep", "otherwise"],
)
def test_answers_of_another_program_are_reported(
    pages: type[Pages], page: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resourcemanager, "TRIAL_SECONDS", 0.05)
    pages.answers[page] = answer
    reported = problems()
    assert all(isinstance(problem, ConnectivityWarning) for problem in reported), (
        "no more is known of YARN than before"
    )
    assert describe_yarn() == "" or page not in ("info", "metrics")


def test_an_answer_that_does_not_end(pages: type[Pages], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resourcemanager, "MAX_RESPONSE_BYTES", 100)
    pages.answers["nodes"] = b" " * 1000
    (first, *_) = problems()
    assert isinstance(first, ConnectivityWarning)
    assert first.startswith("the nodes of YARN are unknown: http://127.0.0.1:")
    assert first.endswith(": its answer does not end")


def test_no_resource_manager(pages: type[Pages], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text(site_xml({"yarn.resourcemanager.address": "127.0.0.1:1"}))
    assert problems() == ["no ResourceManager of YARN answers (127.0.0.1:1: Connection refused)"]


def test_the_driver_is_at_the_address_that_reaches_the_first_live_resource_manager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent, port = free_port(), server.getsockname()[1]
        several = {
            "yarn.resourcemanager.ha.enabled": "true",
            "yarn.resourcemanager.ha.rm-ids": "a,b",
            "yarn.resourcemanager.address.a": f"127.0.0.1:{silent}",
            "yarn.resourcemanager.address.b": f"127.0.0.1:{port}",
        }
        (tmp_path / "yarn-site.xml").write_text(site_xml(several))
        assert _driver_address("yarn") == {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    refused = f"127.0.0.1:{silent}: Connection refused; 127.0.0.1:{port}: Connection refused"
    with pytest.raises(Retry, match=f"no ResourceManager of YARN answers \\({re.escape(refused)}\\)"):
        _driver_address("yarn")

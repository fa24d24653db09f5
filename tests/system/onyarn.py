"""Configurations of agents on YARN, and the ResourceManager as other users see it."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from flafka.agent.jvm.spark import spark_home
from flafka.agent.services.yarn import YarnCluster

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for JVMs that live for seconds."""


def small_containers(*lines: str) -> str:
    """Return lines for containers that fit on a small machine, and for a cluster that has Spark."""
    return "\n".join(
        [
            "a1.runner = spark",
            "a1.spark.master = yarn",
            "a1.spark.triggerInterval = 1",
            f"a1.spark.conf.spark.yarn.jars = local:{spark_home()}/jars/*",
            "a1.spark.conf.spark.executor.instances = 1",
            "a1.spark.conf.spark.executor.memory = 512m",
            "a1.spark.conf.spark.executor.cores = 2",
            f"a1.spark.conf.spark.executor.extraJavaOptions = {QUICK}",
            "a1.spark.conf.spark.yarn.am.memory = 256m",
            f"a1.spark.conf.spark.yarn.am.extraJavaOptions = {QUICK}",
            "a1.spark.conf.spark.yarn.scheduler.heartbeat.interval-ms = 500",
            *lines,
        ]
    )


def applications(cluster: YarnCluster) -> list[dict[str, Any]]:
    """Return the applications of YARN in the order of their starts."""
    answer = cluster.fetch("apps")
    return sorted(((answer or {}).get("apps") or {}).get("app", []), key=lambda application: application["id"])


def live(cluster: YarnCluster) -> list[str]:
    """Return the ids of applications that have not ended."""
    return [
        application["id"]
        for application in applications(cluster)
        if application["state"] not in ("FINISHED", "FAILED", "KILLED")
    ]


def state(cluster: YarnCluster, id: str) -> str:
    """Return the state of one application."""
    return str(_report(cluster, id)["state"])


def running(cluster: YarnCluster, id: str) -> bool:
    """Return True if an application has a container."""
    return int(_report(cluster, id)["runningContainers"]) > 0


def _report(cluster: YarnCluster, id: str) -> dict[str, Any]:
    return next(application for application in applications(cluster) if application["id"] == id)


def submit(cluster: YarnCluster, command: str, *, memory: int = 128) -> str:
    """Submit an application of another user that only runs that command; return its id."""
    id = str(_send(cluster, "apps/new-application", {})["application-id"])
    application = {
        "application-id": id,
        "application-name": "other",
        "max-app-attempts": 1,
        "resource": {"memory": memory, "vCores": 1},
        "am-container-spec": {"commands": {"command": command}},
    }
    _send(cluster, "apps", application)
    return id


def kill(cluster: YarnCluster, id: str) -> None:
    """Kill an application as `yarn application -kill` does."""
    _send(cluster, f"apps/{id}/state", {"state": "KILLED"}, "PUT")


def _send(cluster: YarnCluster, path: str, body: object, method: str = "POST") -> dict[str, Any]:
    """Send a request to the ResourceManager as the user who runs the tests."""
    request = urllib.request.Request(
        f"{cluster.address}/ws/v1/cluster/{path}?user.name={os.environ.get('USER', 'root')}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Accept": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        parsed: dict[str, Any] = json.loads(answer.read() or b"{}")
        return parsed

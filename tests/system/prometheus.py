"""Debian's Prometheus and Alertmanager with the files of conf/monitoring, unpacked and never installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from flafka.agent.services.running import until
from flafka.agent.web import fetch_page
from tests.fixtures.ports import free_port
from tests.interop.debian import program

RULES = Path(__file__).parents[2] / "conf" / "monitoring" / "alerts.yml"
SCRAPES, EVALUATIONS = "1s", "200ms"


def promtool(*arguments: str | Path) -> str:
    """Return the output of promtool if it reports a mistake or a failed test; empty if all is well."""
    tool, environment = program("promtool", "prometheus")
    command = [tool, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


class Prometheus:
    """Prometheus that scrapes agents once a second, and evaluates the shipped rules more often.

    The rules are shortened: an alert fires at once, without the time for which its expression has to hold.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the present series of an expression."""
        result: list[dict[str, Any]] = self._get(f"query?query={quote(expression)}")["result"]
        return result

    def alerts(self) -> dict[str, set[str]]:
        """Return the names of components by firing alert; of an agent that is away, its address."""
        firing: dict[str, set[str]] = {}
        for alert in self._get("alerts")["alerts"]:
            labels = alert["labels"]
            firing.setdefault(labels["alertname"], set()).add(labels.get("name", labels["instance"]))
        return firing

    def _get(self, path: str) -> Any:
        status, body = fetch_page(*self._address, f"/api/v1/{path}", seconds=60)
        assert status == 200, body
        return json.loads(body)["data"]


@contextlib.contextmanager
def prometheus(directory: Path, *agents: str, alertmanager: str | None = None) -> Iterator[Prometheus]:
    """Run a Prometheus in that directory, which scrapes these addresses; skip the test if it cannot be fetched."""
    binary, environment = program("prometheus", "prometheus")
    directory.mkdir()
    (directory / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 0s", RULES.read_text()))
    managers = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
    scraped = {"job_name": "flafka", "metrics_path": "/metrics/prometheus"}
    settings = {
        "global": {"scrape_interval": SCRAPES, "scrape_timeout": SCRAPES, "evaluation_interval": EVALUATIONS},
        "rule_files": ["alerts.yml"],
        "alerting": {"alertmanagers": managers},
        "scrape_configs": [{**scraped, "static_configs": [{"targets": [*agents]}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = "127.0.0.1", free_port()
    files = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    command = [str(binary), *files, "--web.listen-address={}:{}".format(*address)]
    with _running(command, environment, address, directory / "log"):
        yield Prometheus(address)


@contextlib.contextmanager
def alertmanager(directory: Path) -> Iterator[tuple[str, int]]:
    """Run an Alertmanager in that directory and yield its address; skip the test if that cannot be done here."""
    binary, environment = program("prometheus-alertmanager", "prometheus-alertmanager")
    directory.mkdir()
    settings = {"route": {"receiver": "nobody", "group_wait": "1s"}, "receivers": [{"name": "nobody"}]}
    (directory / "alertmanager.yml").write_text(yaml.safe_dump(settings))
    address = "127.0.0.1", free_port()
    files = [f"--config.file={directory}/alertmanager.yml", f"--storage.path={directory}/data"]
    command = [str(binary), *files, "--web.listen-address={}:{}".format(*address), "--cluster.listen-address="]
    if not binary.is_relative_to("/usr"):
        # Debian's program reads its templates below /usr/share: this process alone sees the unpacked ones there.
        namespace = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
        mounted = [
            *namespace,
            "sh",
            "-c",
            'mount --bind "$0" /usr/share && exec "$@"',
            str(binary.parents[1] / "share"),
        ]
        if problem := _failure([*mounted, "true"]):
            pytest.skip(f"Alertmanager cannot be run unpacked here: {problem}")
        command = [*mounted, *command]
    with _running(command, environment, address, directory / "log"):
        yield address


def received_alerts(address: tuple[str, int]) -> dict[str, set[str]]:
    """Return the summaries of the alerts that an Alertmanager has, by name."""
    received: dict[str, set[str]] = {}
    for alert in json.loads(fetch_page(*address, "/api/v2/alerts", seconds=60)[1]):
        received.setdefault(alert["labels"]["alertname"], set()).add(alert["annotations"]["summary"])
    return received


@contextlib.contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], address: tuple[str, int], log: Path
) -> Iterator[None]:
    """Run a server from the moment it is ready, and end it."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or fetch_page(*address, "/-/ready")[0] == 200, command[0])
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


def _failure(command: Sequence[str]) -> str:
    """Return the reason why a command fails; empty if it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError as e:
        return f"{command[0]}: {e.strerror}"
    return done.stderr.strip() if done.returncode else ""

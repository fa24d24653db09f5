"""Application of an agent on YARN, managed with Hadoop's clients in Spark's JVM."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flafka.agent.state import state_directory
from flafka.agent.yarn.uploads import UploadedFiles, jars_archive_name
from flafka.plugins import Retry

log = logging.getLogger("spark")

FINAL_STATES = ("FINISHED", "FAILED", "KILLED")
"""States of an ended application."""
CONTAINER_WAIT_SECONDS = 3.0
"""Wait for a container after which the reason is reported."""
LAUNCH_SECONDS = 60.0
"""Launch time of the first container, with its downloads, after which the reason is reported."""
APPLICATION_CHECK_SECONDS = 1.0
APPLICATION_END_SECONDS = 60.0
"""Timeout of the end of a killed application."""
LAST_RESPONSE_SECONDS = 10.0
"""Timeout of requests at shutdown. Hadoop's client retries an unreachable ResourceManager for many minutes."""
MAX_DIAGNOSTICS_CHARACTERS = 400
_TIMESTAMP = re.compile(r"^\[[^\]]*\d{4}\] ")
"""Timestamp at the start of the ResourceManager's diagnostics."""

_locks: list[BinaryIO] = []
"""Locked files, held until the end of this process."""


@dataclass(frozen=True)
class Application:
    """Report of the ResourceManager on one application of the agent."""

    id: str
    state: str
    final_status: str
    """Final status; UNDEFINED before the end."""
    tracking: str
    """URL of the application's page at the ResourceManager."""
    diagnostics: str
    queue: str
    containers: int
    """Number of containers in use; -1 if unknown."""

    def end_reason(self) -> str:
        """Return a sentence on the end of the application: its final state, its diagnostics and its page."""
        state = self.final_status if self.final_status != "UNDEFINED" else self.state
        diagnostics = f": {self.diagnostics}" if self.diagnostics else ""
        return f"the YARN application {self.id} has ended as {state}{diagnostics}; {self.tracking}"


class YarnClient:
    """Client of the ResourceManager, in Spark's JVM, for applications with an agent's tag."""

    def __init__(self, jvm: Any, tag: str) -> None:
        """Start a client in a JVM with Hadoop's configuration on its class path."""
        self._jvm, self.tag = jvm, tag
        self._client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        self._client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration())
        self._client.start()

    def applications(self) -> list[Application]:
        """Return the applications with the tag, running or ended, in the order of their IDs: the latest last."""
        request = self._jvm.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
        tags = self._jvm.java.util.HashSet()
        tags.add(self.tag)
        request.setApplicationTags(tags)
        applications = [_application(report) for report in self._client.getApplications(request)]
        return sorted(
            applications, key=lambda application: [int(part) for part in re.findall(r"\d+", application.id)]
        )

    def kill(self, id: str) -> None:
        """Ask the ResourceManager to kill the application with this ID. Returns before it has ended."""
        self._client.killApplication(self._jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(id))

    def nodes(self) -> int:
        """Return the number of running NodeManagers."""
        return int(self._client.getYarnClusterMetrics().getNumNodeManagers())

    def queue_usage(self, queue: str) -> str:
        """Return the used capacity of a queue, such as `100 %`; empty if it is not known."""
        with suppress(Exception):  # py4j raises many types, and the value is optional
            if (info := self._client.getQueueInfo(queue)) is not None:
                return f"{100 * info.getCurrentCapacity():.0f} %"
        return ""


def _application(report: Any) -> Application:
    usage = report.getApplicationResourceUsageReport()
    return Application(
        report.getApplicationId().toString(),
        report.getYarnApplicationState().name(),
        report.getFinalApplicationStatus().name(),
        report.getTrackingUrl() or "",
        shorten_diagnostics(report.getDiagnostics() or ""),
        report.getQueue() or "",
        usage.getNumUsedContainers() if usage is not None else -1,
    )


def shorten_diagnostics(diagnostics: str) -> str:
    """Return the ResourceManager's diagnostics in one line, without timestamp, of at most 400 characters and `…`."""
    text = " ".join(_TIMESTAMP.sub("", diagnostics.strip()).split())
    return text if len(text) <= MAX_DIAGNOSTICS_CHARACTERS else f"{text[:MAX_DIAGNOSTICS_CHARACTERS]}…"


def application_tag(agent: str, configuration: str) -> str:
    """Return the tag of an agent's applications: equal for one agent, configuration, state directory and host."""
    host = socket.gethostname()
    identity = "\0".join((agent, configuration, host, str(state_directory().absolute())))
    name = re.sub(r"[^a-z0-9.-]", "-", f"{agent}-{host}".lower())[:60]  # YARN converts tags to lower case
    return f"flafka-{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def lock_tag(tag: str) -> None:
    """Lock the tag on this host until the end of this process.

    Another driver of the agent then cannot end this application as an orphan. Raises Retry if another process holds
    the lock. Does not wait.
    """
    file = state_directory() / f"{tag}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Retry(f"another driver of this agent runs on this host: it has locked {file}") from None
    _locks.append(lock)


class YarnApplication:
    """Application on YARN of one Spark session, from before its submission until after its end."""

    def __init__(
        self, tag: str, report: Callable[[str], None], show: Callable[[Mapping[str, str]], None] = lambda _: None
    ) -> None:
        """`report` is called with the reason of a wait, `show` with the application's ID and the URL of its page."""
        self.tag, self._report, self._show = tag, report, show
        self.yarn: YarnClient | None = None
        self._earlier_ids: set[str] = set()
        self.application: Application | None = None
        """Latest report of the application; None before its submission."""

    def settings(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's properties of the application: the user's properties `own`, with the agent's tag added."""
        tags = ",".join(filter(None, (self.tag, own.get("spark.yarn.tags"))))
        # A lost ApplicationMaster ends the application, and a new driver submits another one.
        return {"spark.yarn.maxAppAttempts": "1", **own, "spark.yarn.tags": tags}

    def prepare(
        self, jvm: Any, conf: Mapping[str, str], archives: Iterable[tuple[Path, str]], jars: Iterable[Path]
    ) -> dict[str, str]:
        """End earlier applications of this agent, upload missing files, and return the properties that name them.

        `archives` are files and the names of their unpacked directories on executors. Blocks until earlier
        applications have ended. Raises Retry, also if another driver of this agent runs on this host.
        """
        lock_tag(self.tag)
        self.yarn = YarnClient(jvm, self.tag)
        self._end_orphans(self.yarn)
        self._earlier_ids = {application.id for application in self.yarn.applications()}
        files = UploadedFiles(jvm, conf)
        archive_uris = [f"{files.upload(archive)}#{name}" for archive, name in archives]
        properties = {
            "spark.yarn.dist.archives": ",".join(filter(None, (*archive_uris, conf.get("spark.yarn.dist.archives")))),
            "spark.yarn.dist.jars": ",".join(
                filter(None, (*(files.upload(jar) for jar in jars), conf.get("spark.yarn.dist.jars")))
            ),
        }
        if not any(conf.get(name) for name in ("spark.yarn.jars", "spark.yarn.archive")):
            if uri := files.find(jars_archive_name()):
                properties["spark.yarn.archive"] = uri
            else:
                log.warning("Spark's own jars are uploaded at each start: `agent spark upload` keeps them on HDFS")
        return {name: value for name, value in properties.items() if value}

    def _end_orphans(self, yarn: YarnClient) -> None:
        """Kill applications that earlier drivers left, and block until they have ended. Raises Retry after 60 s."""
        deadline = time.monotonic() + APPLICATION_END_SECONDS
        killed: set[str] = set()
        while orphans := [orphan for orphan in yarn.applications() if orphan.state not in FINAL_STATES]:
            for orphan in orphans:
                if orphan.id not in killed:
                    log.warning("%s was left by an earlier driver of this agent, and is ended", orphan.id)
                    killed.add(orphan.id)
                    yarn.kill(orphan.id)
            if time.monotonic() > deadline:
                first = orphans[0]
                raise Retry(f"{first.id}, which an earlier driver of this agent left, does not end; {first.tracking}")
            time.sleep(0.2)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Report the reasons for which the application waits, during the block in which Spark submits it."""
        done = threading.Event()
        threading.Thread(target=self._watch, args=(done,), name="yarn", daemon=True).start()
        try:
            yield
        finally:
            done.set()
        self.refresh()

    def refresh(self) -> Application | None:
        """Ask for the report of this driver's application, and return it; None before its submission.

        A new page is passed to `show`.
        """
        assert self.yarn is not None
        previous = self.application
        for application in self.yarn.applications():
            if application.id not in self._earlier_ids:
                self.application = application
        if self.application is not None and (previous is None or previous.tracking != self.application.tracking):
            self._show({"application": self.application.id, "tracking": self.application.tracking})
        return self.application

    def _watch(self, done: threading.Event) -> None:
        """Report reasons of waits until `done` is set, each text once."""
        since, reported = time.monotonic(), ""
        while not done.wait(APPLICATION_CHECK_SECONDS):
            with suppress(Exception):  # py4j raises many types; the start of the session reports errors
                current = self.refresh()
                if current is None or current.state in ("RUNNING", *FINAL_STATES):
                    since = time.monotonic()
                    continue
                timeout = LAUNCH_SECONDS if current.containers > 0 else CONTAINER_WAIT_SECONDS
                if time.monotonic() - since > timeout:
                    reason = f"{self._node_shortage()}{current.diagnostics}"
                    text = f"the YARN application {current.id} waits ({current.state}): {reason}"
                    if text != reported and not done.is_set():
                        reported = text
                        self._report(f"{text}; {current.tracking}")

    def _node_shortage(self) -> str:
        """Return `no NodeManager runs; `, or an empty text if one runs."""
        assert self.yarn is not None
        return "" if self.yarn.nodes() else "no NodeManager runs; "

    def executor_shortage(self, needed: str) -> str | None:
        """Return a sentence on the lack of executors of a running application; None while one starts or runs.

        `needed` describes the container that is needed.
        """
        current = self.refresh()
        if current is None or self.yarn is None or current.state != "RUNNING":
            return None
        if current.containers > 1:  # the first one is the ApplicationMaster's
            return None
        usage = self.yarn.queue_usage(current.queue)
        queue = f"queue {current.queue} is full to {usage}" if usage else f"queue {current.queue}"
        return (
            f"YARN gives {current.id} no executor: {self._node_shortage()}{queue}, and {needed} is needed; "
            f"{current.tracking}"
        )

    def end_reason(self) -> str | None:
        """Return a sentence on the end of the application. Waits up to 10 s for that end.

        None if it runs, was not submitted, or YARN does not answer in time.
        """
        reasons: list[str] = []

        def wait_for_end() -> None:
            deadline = time.monotonic() + LAST_RESPONSE_SECONDS
            while time.monotonic() < deadline:
                if (current := self.refresh()) is None:
                    return
                if current.state in FINAL_STATES:
                    reasons.append(current.end_reason())
                    return
                time.sleep(0.2)

        _call_with_timeout(wait_for_end)
        return reasons[0] if reasons else None

    def end(self) -> None:
        """Kill the application, if there is one. Best-effort, for at most 10 s."""

        def kill() -> None:  # optional: without its driver, the application ends later
            current = self.refresh()
            if current is not None and current.state not in FINAL_STATES and self.yarn is not None:
                self.yarn.kill(current.id)

        _call_with_timeout(kill)


def _call_with_timeout(function: Callable[[], None]) -> None:
    """Call a function on a thread, ignore its errors, and abandon the thread after `LAST_RESPONSE_SECONDS`."""

    def run() -> None:
        with suppress(Exception):  # py4j raises many types, also if the JVM has ended
            function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LAST_RESPONSE_SECONDS)

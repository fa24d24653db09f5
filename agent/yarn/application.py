"""An agent's application on YARN, by way of the clients of Hadoop that Spark's JVM has."""

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
from flafka.agent.yarn.kept import KeptFiles, jars_archive
from flafka.plugins import Retry

log = logging.getLogger("spark")

OVER = ("FINISHED", "FAILED", "KILLED")
"""An application's states in which nothing of it runs any more."""
CONTAINER_WAIT_SECONDS = 3.0
"""So long an application may wait for a container before it is told why."""
LAUNCH_SECONDS = 60.0
"""So long its first container may take to fetch what it needs, and to start."""
APPLICATION_CHECK_SECONDS = 1.0
APPLICATION_END_SECONDS = 60.0
"""So long the end of an application that was killed is waited for."""
LAST_RESPONSE_SECONDS = 10.0
"""So long who is about to end waits for an answer: a ResourceManager that is away is asked for many minutes."""
LONGEST_TEXT = 400
_MOMENT = re.compile(r"^\[[^\]]*\d{4}\] ")
"""What the ResourceManager begins its diagnostics with: the time at which it made them."""

_held: list[BinaryIO] = []
"""Locked as long as this process lives."""


@dataclass(frozen=True)
class Application:
    """One application of ours, as the ResourceManager knows it."""

    id: str
    state: str
    end: str
    """UNDEFINED until it is over."""
    tracking: str
    """The address of its page at the ResourceManager."""
    diagnostics: str
    queue: str
    containers: int
    """That it has; -1 where the ResourceManager does not tell."""

    def why_over(self) -> str:
        """What has ended it, in a sentence."""
        state = self.end if self.end != "UNDEFINED" else self.state
        said = f": {self.diagnostics}" if self.diagnostics else ""
        return f"the YARN application {self.id} has ended as {state}{said}; {self.tracking}"


class Yarn:
    """The ResourceManager, asked by the JVM of Spark, for what bears an agent's tag."""

    def __init__(self, jvm: Any, tag: str) -> None:
        """`jvm` has Hadoop's configuration on its class path."""
        self._jvm, self.tag = jvm, tag
        self._client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        self._client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration())
        self._client.start()

    def applications(self) -> list[Application]:
        """Those that bear the tag, over or not, the latest one last."""
        request = self._jvm.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
        tags = self._jvm.java.util.HashSet()
        tags.add(self.tag)
        request.setApplicationTags(tags)
        found = [_application(report) for report in self._client.getApplications(request)]
        return sorted(found, key=lambda one: [int(part) for part in re.findall(r"\d+", one.id)])

    def kill(self, id: str) -> None:
        """Have the ResourceManager end it."""
        self._client.killApplication(self._jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(id))

    def nodes(self) -> int:
        """How many NodeManagers run."""
        return int(self._client.getYarnClusterMetrics().getNumNodeManagers())

    def used(self, queue: str) -> str:
        """How full a queue is: `100 %`; empty where that is not told."""
        with suppress(Exception):  # py4j's, many: it is not worth more
            if (found := self._client.getQueueInfo(queue)) is not None:
                return f"{100 * found.getCurrentCapacity():.0f} %"
        return ""


def _application(report: Any) -> Application:
    usage = report.getApplicationResourceUsageReport()
    return Application(
        report.getApplicationId().toString(),
        report.getYarnApplicationState().name(),
        report.getFinalApplicationStatus().name(),
        report.getTrackingUrl() or "",
        plain(report.getDiagnostics() or ""),
        report.getQueue() or "",
        usage.getNumUsedContainers() if usage is not None else -1,
    )


def plain(diagnostics: str) -> str:
    """The ResourceManager's words in one line, without the time before them, cut where they are long."""
    text = " ".join(_MOMENT.sub("", diagnostics.strip()).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def tag_of(agent: str, configuration: str) -> str:
    """What the applications of this agent, with this configuration, of this user and host bear, and no others."""
    host = socket.gethostname()
    own = "\0".join((agent, configuration, host, str(state_directory().absolute())))
    name = re.sub(r"[^a-z0-9.-]", "-", f"{agent}-{host}".lower())[:60]  # YARN knows tags in lower case
    return f"flafka-{name}-{hashlib.sha256(own.encode()).hexdigest()[:12]}"


def be_alone(tag: str) -> None:
    """Hold the tag as long as this process lives, so that nobody takes its application for an orphan.

    Raises `Retry` where another process of this host holds it.
    """
    file = state_directory() / f"{tag}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Retry(f"another driver of this agent runs on this host: it holds {file}") from None
    _held.append(lock)


class YarnApplication:
    """What a driver's session has to do with YARN: before it, while it waits, and when it is over."""

    def __init__(
        self, tag: str, say: Callable[[str], None], show: Callable[[Mapping[str, str]], None] = lambda _: None
    ) -> None:
        """`say` is told what keeps the application waiting, `show` its id and the address of its page."""
        self.tag, self._say, self._show = tag, say, show
        self.yarn: Yarn | None = None
        self._before: set[str] = set()
        self.application: Application | None = None
        """As it was seen last."""

    def settings(self, own: Mapping[str, str]) -> dict[str, str]:
        """Spark's properties of the application; `own` are the user's."""
        tags = ",".join(filter(None, (self.tag, own.get("spark.yarn.tags"))))
        # A lost ApplicationMaster ends the application, and a new driver begins another one.
        return {"spark.yarn.maxAppAttempts": "1", **own, "spark.yarn.tags": tags}

    def prepare(
        self, jvm: Any, conf: Mapping[str, str], archives: Iterable[tuple[Path, str]], jars: Iterable[Path]
    ) -> dict[str, str]:
        """Leave no other application of this agent, and put on HDFS what is not there; properties that name it.

        `archives` are files and the names under which executors find them unpacked. Raises `Retry`.
        """
        be_alone(self.tag)
        self.yarn = Yarn(jvm, self.tag)
        self._end_orphans(self.yarn)
        self._before = {one.id for one in self.yarn.applications()}
        files = KeptFiles(jvm, conf)
        sent = [f"{files.put(archive)}#{name}" for archive, name in archives]
        named = {
            "spark.yarn.dist.archives": ",".join(filter(None, (*sent, conf.get("spark.yarn.dist.archives")))),
            "spark.yarn.dist.jars": ",".join(
                filter(None, (*(files.put(jar) for jar in jars), conf.get("spark.yarn.dist.jars")))
            ),
        }
        if not any(conf.get(name) for name in ("spark.yarn.jars", "spark.yarn.archive")):
            if there := files.find(jars_archive()):
                named["spark.yarn.archive"] = there
            else:
                log.warning("Spark's own jars are uploaded at each start: `agent spark upload` keeps them on HDFS")
        return {name: value for name, value in named.items() if value}

    def _end_orphans(self, yarn: Yarn) -> None:
        deadline = time.monotonic() + APPLICATION_END_SECONDS
        asked: set[str] = set()
        while left := [one for one in yarn.applications() if one.state not in OVER]:
            for one in left:
                if one.id not in asked:
                    log.warning("%s was left by an earlier driver of this agent, and is ended", one.id)
                    asked.add(one.id)
                    yarn.kill(one.id)
            if time.monotonic() > deadline:
                first = left[0]
                raise Retry(f"{first.id}, which an earlier driver of this agent left, does not end; {first.tracking}")
            time.sleep(0.2)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """While Spark waits for its application to run, say what it waits for."""
        done = threading.Event()
        threading.Thread(target=self._watch, args=(done,), name="yarn", daemon=True).start()
        try:
            yield
        finally:
            done.set()
        self.look()

    def look(self) -> Application | None:
        """The application of this driver as it is now, once it was submitted."""
        assert self.yarn is not None
        known = self.application
        for one in self.yarn.applications():
            if one.id not in self._before:
                self.application = one
        if self.application is not None and (known is None or known.tracking != self.application.tracking):
            self._show({"application": self.application.id, "tracking": self.application.tracking})
        return self.application

    def _watch(self, done: threading.Event) -> None:
        since, said = time.monotonic(), ""
        while not done.wait(APPLICATION_CHECK_SECONDS):
            with suppress(Exception):  # py4j's, many: who waits for the session says what has failed
                one = self.look()
                if one is None or one.state in ("RUNNING", *OVER):
                    since = time.monotonic()
                elif time.monotonic() - since > (LAUNCH_SECONDS if one.containers > 0 else CONTAINER_WAIT_SECONDS):
                    text = (
                        f"the YARN application {one.id} waits ({one.state}): {self._without_nodes()}{one.diagnostics}"
                    )
                    if text != said and not done.is_set():
                        said = text
                        self._say(f"{text}; {one.tracking}")

    def _without_nodes(self) -> str:
        assert self.yarn is not None
        return "" if self.yarn.nodes() else "no NodeManager runs; "

    def lacking(self, needed: str) -> str | None:
        """Why a running application has no executor, in a sentence; None while one is being started."""
        one = self.look()
        if one is None or self.yarn is None or one.state != "RUNNING":
            return None
        if one.containers > 1:  # the first one is the ApplicationMaster's
            return None
        used = f"queue {one.queue} is full to {used}" if (used := self.yarn.used(one.queue)) else f"queue {one.queue}"
        return (
            f"YARN gives {one.id} no executor: {self._without_nodes()}{used}, and {needed} is needed; {one.tracking}"
        )

    def why_over(self) -> str | None:
        """What has ended the application, in a sentence; None where it is not over, or nobody answers in time."""
        said: list[str] = []

        def ask() -> None:
            deadline = time.monotonic() + LAST_RESPONSE_SECONDS
            while time.monotonic() < deadline:
                if (one := self.look()) is None:
                    return
                if one.state in OVER:
                    said.append(one.why_over())
                    return
                time.sleep(0.2)

        _in_time(ask)
        return said[0] if said else None

    def end(self) -> None:
        """End the application, if there is one."""

        def ask() -> None:  # without its driver it ends by itself, only later
            if (one := self.look()) is not None and one.state not in OVER and self.yarn is not None:
                self.yarn.kill(one.id)

        _in_time(ask)


def _in_time(ask: Callable[[], None]) -> None:
    """Call it, and leave it alone where no answer comes."""

    def run() -> None:
        with suppress(Exception):  # py4j's, many: the JVM may be gone
            ask()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LAST_RESPONSE_SECONDS)

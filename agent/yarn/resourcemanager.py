"""Connectivity checks of YARN by the REST interface of its ResourceManager, without Java."""

from __future__ import annotations

import getpass
import http.client
import json
import re
import shlex
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from flafka.agent.jvm.spark import executor_python, own_address, ships_environment
from flafka.agent.options import AgentOptions
from flafka.agent.yarn.hadoop import YarnConfiguration, hadoop_configuration
from flafka.plugins import ConnectivityWarning, FlafkaError

MIN_VERSION = (3, 0)
"""Oldest ResourceManager that Spark's clients, of Hadoop 3, support."""
MIN_OVERHEAD_MB, OVERHEAD_FACTOR = 384, 0.10
"""Memory overhead that Spark requests: the larger of the minimum and this share of the memory."""
_UNITS = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
RESPONSE_PAUSE_SECONDS = 5
"""Timeout of connecting to a page, and between two pieces of its response."""
RESPONSE_SECONDS = 15.0
"""Timeout of a response."""
MAX_RESPONSE_BYTES = 256 << 20
"""Limit of a response, above that of the largest clusters."""
TRIAL_SECONDS = 20.0
"""Timeout of the container that tests Python, with the wait for it."""
TRIAL_CHECK_SECONDS = 0.2
"""Interval between two requests for the state of that container."""
OTHER_PYTHON_EXIT_CODE = 42
"""Exit code for a Python of another version."""
_FORMAT_ERRORS = KeyError, TypeError, AttributeError, ValueError
"""Errors caused by responses of another program than a ResourceManager."""


def yarn_problems(options: AgentOptions) -> Iterator[str]:
    """Ask the ResourceManager, and yield problems that would prevent the agent's application from running.

    A ConnectivityWarning is yielded for a state that may pass, and for pages that are not YARN's. Python is tried in
    a container.
    """
    try:
        yield from _yarn_problems(options)
    except _FORMAT_ERRORS as e:
        yield ConnectivityWarning(f"the ResourceManager's pages are not those of YARN ({type(e).__name__}: {e})")


def _yarn_problems(options: AgentOptions) -> Iterator[str]:
    """Yield the problems. Raises `_FORMAT_ERRORS` for pages that are not YARN's."""
    try:
        hadoop = hadoop_configuration()
        own_address("ResourceManager of YARN answers", hadoop.resource_managers())
    except FlafkaError as e:
        yield str(e)
        return
    info, page_or_reasons = _active(hadoop)
    if info is None:
        yield ConnectivityWarning(
            f"no active ResourceManager answers at its web pages ({page_or_reasons}): nothing else is checked"
        )
        return
    page = page_or_reasons
    version = str(info["resourceManagerVersion"])
    if _version(version) < MIN_VERSION:
        yield f"YARN is {version}, and Spark needs 3.0 or newer"
    if info["state"] != "STARTED":
        yield f"the ResourceManager is {info['state']}"
    response, reason = _fetch(f"{page}/ws/v1/cluster/nodes")
    nodes = [node for node in _list(response or {}, "nodes", "node") if node["state"] == "RUNNING"]
    if response is None or "nodes" not in response:
        yield ConnectivityWarning(f"the nodes of YARN are unknown: {reason or 'its response has none'}")
    elif not nodes:
        yield "YARN has no running NodeManager, so it gives no container"
    queue = options.spark_conf.get("spark.yarn.queue", "default")
    queue_problems = list(_queue_problems(page, queue))
    yield from queue_problems
    if nodes:
        yield from _size_problems(options.spark_conf, nodes)
        has_queue = all(isinstance(problem, ConnectivityWarning) for problem in queue_problems)
        if has_queue and not ships_environment(options.spark_conf):
            yield from _python_problems(page, queue, executor_python(options))


def describe_yarn() -> str:
    """Return version and size, such as `YARN 3.4.3 with 2 NodeManagers and 8,192 MB`; empty without an answer."""
    try:
        info, page = _active(hadoop_configuration())
        response = _fetch(f"{page}/ws/v1/cluster/metrics")[0] if info is not None else None
        if info is None or response is None:
            return ""
        metrics = response["clusterMetrics"]
        version, active = info["resourceManagerVersion"], metrics["activeNodes"]
        return f"YARN {version} with {active} NodeManager{'s' if active != 1 else ''} and {metrics['totalMB']:,} MB"
    except (FlafkaError, *_FORMAT_ERRORS):
        return ""


def _queue_problems(page: str, name: str) -> Iterator[str]:
    """Yield a problem if the queue does not exist, is stopped, or is full."""
    scheduler = _fetch(f"{page}/ws/v1/cluster/scheduler")[0]
    if scheduler is None:
        return
    queues = list(_queues(scheduler["scheduler"]["schedulerInfo"]))
    matches = [queue for queue in queues if name in (queue.get("queueName"), queue.get("queuePath"))]
    if queues and not matches:
        leaves = sorted(str(queue.get("queueName")) for queue in queues if not _list(queue, "queues", "queue"))
        yield f"YARN has no queue {name} (spark.conf.spark.yarn.queue): there are {', '.join(leaves)}"
    for queue in matches:
        if queue.get("state", "RUNNING") != "RUNNING":
            yield f"YARN's queue {name} is {queue['state']}: it takes no applications"
        elif queue.get("usedCapacity", 0) >= 100:
            yield ConnectivityWarning(
                f"YARN's queue {name} is full to {queue['usedCapacity']:.0f} %: the application may wait"
            )


def _queues(info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all descendants of a queue of the capacity scheduler, each before its own descendants."""
    for queue in _list(info, "queues", "queue"):
        yield queue
        yield from _queues(queue)


def _python_problems(page: str, queue: str, python: str) -> Iterator[str]:
    """Run the command `python` in one small container of the queue, and yield a problem if its version differs."""
    version = "{}, {}".format(*sys.version_info)
    test = f"import sys; sys.exit(0 if sys.version_info[:2] == ({version}) else {OTHER_PYTHON_EXIT_CODE})"
    code, diagnostics = _run(page, queue, f"{shlex.quote(python)} -c {shlex.quote(test)}")
    remedy = "executors need the agent's version of Python: set spark.conf.spark.pyspark.python"
    if code in (126, 127):
        yield f"a node of YARN has no {python} on the PATH of its containers: {remedy}"
    elif code == OTHER_PYTHON_EXIT_CODE:
        yield f"{python} on a node of YARN is not Python {version.replace(', ', '.')}: {remedy}"
    elif code != 0:
        yield ConnectivityWarning(f"the Python of the nodes of YARN, {python}, is unknown: {diagnostics}")


def _run(page: str, queue: str, command: str) -> tuple[int | None, str]:
    """Run a command in a container of its own, for up to 20 s. Return its exit code and diagnostics.

    The exit code is None after a timeout or without an answer.
    """
    user = f"user.name={urllib.parse.quote(getpass.getuser())}"
    new, reason = _fetch(f"{page}/ws/v1/cluster/apps/new-application?{user}", {})
    if new is None:
        return None, reason
    id = new["application-id"]
    application = {
        "application-id": id,
        "application-name": "flafka-check",
        "application-type": "FLAFKA",
        "queue": queue,
        "max-app-attempts": 1,
        "resource": {"memory": 128, "vCores": 1},
        "am-container-spec": {"commands": {"command": command}},
    }
    submitted, reason = _fetch(f"{page}/ws/v1/cluster/apps?{user}", application)
    if submitted is None:
        return None, reason
    deadline = time.monotonic() + TRIAL_SECONDS
    while time.monotonic() < deadline:
        time.sleep(TRIAL_CHECK_SECONDS)
        response, reason = _fetch(f"{page}/ws/v1/cluster/apps/{id}")
        if response is None:
            continue
        app = response["app"]
        reason = f"{id} is {app['state']}: {' '.join(str(app['diagnostics']).split())[:300]}"
        if app["state"] in ("FINISHED", "FAILED", "KILLED"):
            code = re.search(r"exitCode: (-?\d+)", reason)
            return (int(code[1]) if code else None), reason
    _fetch(f"{page}/ws/v1/cluster/apps/{id}/state?{user}", {"state": "KILLED"}, method="PUT")
    return None, reason


def _size_problems(conf: Mapping[str, str], nodes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a problem if no node has room for an executor or an ApplicationMaster of the configured size."""
    largest = max(node["usedMemoryMB"] + node["availMemoryMB"] for node in nodes)
    cores = max(node["usedVirtualCores"] + node["availableVirtualCores"] for node in nodes)
    sizes = {
        "spark.executor": (conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", "1")),
        "spark.yarn.am": (conf.get("spark.yarn.am.memory", "512m"), conf.get("spark.yarn.am.cores", "1")),
    }
    needed = 0
    for name, (memory, requested_cores) in sizes.items():
        own = megabytes(memory)
        overhead = conf.get(f"{name}.memoryOverhead")
        size = own + (megabytes(overhead) if overhead else max(MIN_OVERHEAD_MB, int(own * OVERHEAD_FACTOR)))
        needed += size
        role = "executor" if name == "spark.executor" else "ApplicationMaster"
        if size > largest:
            yield (
                f"no node of YARN has room for a container of {size:,} MB, which the {role} needs ({name}.memory "
                f"and its overhead): the largest has {largest:,} MB"
            )
        if requested_cores.isdecimal() and int(requested_cores) > cores:
            yield f"no node of YARN has {requested_cores} cores ({name}.cores): the largest has {cores}"
    free = sum(node["availMemoryMB"] for node in nodes)
    if needed > free:
        yield ConnectivityWarning(
            f"YARN has {free:,} MB free now, and an ApplicationMaster with one executor needs {needed:,} MB: the "
            "application waits until others end"
        )


def megabytes(text: str) -> int:
    """Return a size of Spark, such as `2g` or `512m`, in MB, the default unit; 0 if it is malformed."""
    match = re.fullmatch(r"(\d+)\s*([kmgt])?b?", text.strip().lower())
    return int(int(match[1]) * _UNITS[match[2] or "m"]) if match else 0


def _active(hadoop: YarnConfiguration) -> tuple[dict[str, Any] | None, str]:
    """Return the info of the active ResourceManager and the URL of its pages; None and the reason without one.

    A standby ResourceManager answers only this request.
    """
    reasons = []
    for page in hadoop.pages():
        response, reason = _fetch(f"{page}/ws/v1/cluster/info")
        info = (response or {}).get("clusterInfo")
        if not isinstance(info, dict):
            reasons.append(reason or f"{page} has no clusterInfo")
        elif (state := info.get("haState", "ACTIVE")) == "ACTIVE":
            return info, page
        else:
            reasons.append(f"{page} is {state}")
    return None, "; ".join(reasons)


def _fetch(address: str, body: object = None, method: str | None = None) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON object at an address and an empty text; None and the reason if none comes.

    `body` is sent as JSON if it is given, by default with POST. No proxy is used.
    """
    page = "/".join(address.split("/")[:3])
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, headers, method=method)  # noqa: S310  # from the operator's configuration
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=RESPONSE_PAUSE_SECONDS) as response:
            document = json.loads(_read(response) or b"{}")
            return (document, "") if isinstance(document, dict) else (None, f"{page} answers no JSON object")
    except urllib.error.HTTPError as e:
        return None, f"{page} requires Kerberos" if e.code == HTTPStatus.UNAUTHORIZED else f"{page} answers {e.code}"
    except (ValueError, RecursionError):
        return None, f"{page} answers no JSON"
    except (OSError, http.client.HTTPException) as e:
        return None, f"{page}: {getattr(e, 'reason', None) or e}"


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the body of a response. Raises OSError after `RESPONSE_SECONDS`, or above `MAX_RESPONSE_BYTES`."""
    deadline, read = time.monotonic() + RESPONSE_SECONDS, bytearray()
    while piece := response.read1(1 << 16):
        read += piece
        if time.monotonic() > deadline or len(read) > MAX_RESPONSE_BYTES:
            raise TimeoutError("its answer does not end")
    return bytes(read)


def _list(document: Mapping[str, Any], outer: str, inner: str) -> list[dict[str, Any]]:
    """Return the list `inner` of the object `outer`; empty if YARN leaves out one of them."""
    return list((document.get(outer) or {}).get(inner) or [])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

"""What the ResourceManager of YARN tells at its web pages, as `agent check --connect` asks it: without Java."""

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

from flafka.agent.jvm.spark import brings_environment, own_address, workers_python
from flafka.agent.options import AgentOptions
from flafka.agent.yarn.hadoop import HadoopConfiguration, hadoop_configuration
from flafka.plugins import ConnectivityWarning, FlafkaError

OLDEST = (3, 0)
"""The ResourceManager that Spark's clients, those of Hadoop 3, still speak with."""
OVERHEAD_MB, OVERHEAD = 384, 0.10
"""What Spark asks for besides an executor's memory: at least so much, or that share of it."""
_UNITS = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
RESPONSE_PAUSE_SECONDS = 5
"""So long a page may take to connect, and between two pieces of its answer."""
RESPONSE_SECONDS = 15.0
"""So long an answer may take as a whole."""
ANSWER_BYTES = 256 << 20
"""More than the nodes of any cluster take."""
TRIAL_SECONDS = 20.0
"""So long a container that tries something may take, with the wait for it."""
TRIAL_CHECK_SECONDS = 0.2
"""Interval between two requests for the state of the container that tries something."""
OTHER_PYTHON = 42
"""The exit code of a Python of another version."""
_OTHERWISE = KeyError, TypeError, AttributeError, ValueError
"""What comes of answers that are not a ResourceManager's, such as those of another program on its port."""


def wrong_with_yarn(options: AgentOptions) -> Iterator[str]:
    """What would keep the agent's application from running, asked of the ResourceManager now."""
    try:
        yield from _wrong_with_yarn(options)
    except _OTHERWISE as e:
        yield ConnectivityWarning(
            f"the ResourceManager's pages answer otherwise than YARN's ({type(e).__name__}: {e})"
        )


def _wrong_with_yarn(options: AgentOptions) -> Iterator[str]:
    try:
        hadoop = hadoop_configuration()
        own_address("ResourceManager of YARN answers", hadoop.resource_managers())
    except FlafkaError as e:
        yield str(e)
        return
    info, where = _active(hadoop)
    if info is None:
        yield ConnectivityWarning(
            f"the ResourceManager's pages do not tell of YARN ({where}): nothing else is checked"
        )
        return
    version = str(info["resourceManagerVersion"])
    if _version(version) < OLDEST:
        yield f"YARN is {version}, and Spark speaks with 3.0 or newer"
    if info["state"] != "STARTED":
        yield f"the ResourceManager is {info['state']}"
    listed, why = _opened(f"{where}/ws/v1/cluster/nodes")
    nodes = [node for node in _list(listed or {}, "nodes", "node") if node["state"] == "RUNNING"]
    if listed is None or "nodes" not in listed:
        yield ConnectivityWarning(f"which nodes YARN has is not known: {why or 'it does not tell'}")
    elif not nodes:
        yield "YARN has no NodeManager that runs: no container is given"
    queue = options.spark_conf.get("spark.yarn.queue", "default")
    of_queue = list(_wrong_with_queue(where, queue))
    yield from of_queue
    if nodes:
        yield from _wrong_with_sizes(options.spark_conf, nodes)
        if all(isinstance(one, ConnectivityWarning) for one in of_queue) and not brings_environment(
            options.spark_conf
        ):
            yield from _wrong_with_python(where, queue, workers_python(options))


def told_of_yarn() -> str:
    """`YARN 3.4.3 with 2 NodeManagers and 8,192 MB`; empty where it does not tell."""
    try:
        info, where = _active(hadoop_configuration())
        nodes = _opened(f"{where}/ws/v1/cluster/metrics")[0] if info is not None else None
        if info is None or nodes is None:
            return ""
        metrics = nodes["clusterMetrics"]
        version, active = info["resourceManagerVersion"], metrics["activeNodes"]
        return f"YARN {version} with {active} NodeManager{'s' if active != 1 else ''} and {metrics['totalMB']:,} MB"
    except (FlafkaError, *_OTHERWISE):
        return ""


def _wrong_with_queue(page: str, queue: str) -> Iterator[str]:
    scheduler = _opened(f"{page}/ws/v1/cluster/scheduler")[0]
    if scheduler is None:
        return
    found = list(_queues(scheduler["scheduler"]["schedulerInfo"]))
    mine = [one for one in found if queue in (one.get("queueName"), one.get("queuePath"))]
    if found and not mine:
        leaves = sorted(str(one.get("queueName")) for one in found if not _list(one, "queues", "queue"))
        yield f"YARN has no queue {queue} (spark.conf.spark.yarn.queue): there are {', '.join(leaves)}"
    for one in mine:
        if one.get("state", "RUNNING") != "RUNNING":
            yield f"YARN's queue {queue} is {one['state']}: it takes no applications"
        elif one.get("usedCapacity", 0) >= 100:
            yield ConnectivityWarning(
                f"YARN's queue {queue} is full to {one['usedCapacity']:.0f} %: the application may wait"
            )


def _queues(info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those below a queue of the capacity scheduler, and those below them."""
    for queue in _list(info, "queues", "queue"):
        yield queue
        yield from _queues(queue)


def _wrong_with_python(page: str, queue: str, python: str) -> Iterator[str]:
    """Runs that Python in one container, of the smallest size there is, as nobody else knows whether it is there."""
    version = "{}, {}".format(*sys.version_info)
    test = f"import sys; sys.exit(0 if sys.version_info[:2] == ({version}) else {OTHER_PYTHON})"
    code, said = _run(page, queue, f"{shlex.quote(python)} -c {shlex.quote(test)}")
    text = "the executors' Python has to be that of the agent: spark.conf.spark.pyspark.python names another one"
    if code in (126, 127):
        yield f"a node of YARN has no {python} on the PATH of its containers: {text}"
    elif code == OTHER_PYTHON:
        yield f"{python} on a node of YARN is not Python {version.replace(', ', '.')}: {text}"
    elif code != 0:
        yield ConnectivityWarning(f"whether the nodes of YARN have {python} is not known: {said}")


def _run(page: str, queue: str, command: str) -> tuple[int | None, str]:
    """The exit code of a command in a container of its own; None where it did not end in time, and why."""
    own = f"user.name={urllib.parse.quote(getpass.getuser())}"
    new, said = _opened(f"{page}/ws/v1/cluster/apps/new-application?{own}", {})
    if new is None:
        return None, said
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
    told, said = _opened(f"{page}/ws/v1/cluster/apps?{own}", application)
    if told is None:
        return None, said
    deadline = time.monotonic() + TRIAL_SECONDS
    while time.monotonic() < deadline:
        time.sleep(TRIAL_CHECK_SECONDS)
        found, said = _opened(f"{page}/ws/v1/cluster/apps/{id}")
        if found is None:
            continue
        said = f"{id} is {found['app']['state']}: {' '.join(str(found['app']['diagnostics']).split())[:300]}"
        if found["app"]["state"] in ("FINISHED", "FAILED", "KILLED"):
            code = re.search(r"exitCode: (-?\d+)", said)
            return (int(code[1]) if code else None), said
    _opened(f"{page}/ws/v1/cluster/apps/{id}/state?{own}", {"state": "KILLED"}, method="PUT")
    return None, said


def _wrong_with_sizes(conf: Mapping[str, str], nodes: list[dict[str, Any]]) -> Iterator[str]:
    largest = max(node["usedMemoryMB"] + node["availMemoryMB"] for node in nodes)
    cores = max(node["usedVirtualCores"] + node["availableVirtualCores"] for node in nodes)
    sizes = {
        "spark.executor": (conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", "1")),
        "spark.yarn.am": (conf.get("spark.yarn.am.memory", "512m"), conf.get("spark.yarn.am.cores", "1")),
    }
    needed = 0
    for name, (memory, wanted) in sizes.items():
        own = megabytes(memory)
        over = conf.get(f"{name}.memoryOverhead")
        size = own + (megabytes(over) if over else max(OVERHEAD_MB, int(own * OVERHEAD)))
        needed += size
        what = "executor" if name == "spark.executor" else "ApplicationMaster"
        if size > largest:
            yield (
                f"no node of YARN has room for a container of {size:,} MB, which the {what} needs ({name}.memory "
                f"and its overhead): the largest has {largest:,} MB"
            )
        if wanted.isdecimal() and int(wanted) > cores:
            yield f"no node of YARN has {wanted} cores ({name}.cores): the largest has {cores}"
    free = sum(node["availMemoryMB"] for node in nodes)
    if needed > free:
        yield ConnectivityWarning(
            f"YARN has {free:,} MB free now, and an ApplicationMaster with one executor needs {needed:,} MB: the "
            "application waits until others end"
        )


def megabytes(text: str) -> int:
    """Spark's sizes, `2g` or `512m` or `1024`, which are megabytes where they name no unit."""
    found = re.fullmatch(r"(\d+)\s*([kmgt])?b?", text.strip().lower())
    return int(int(found[1]) * _UNITS[found[2] or "m"]) if found else 0


def _active(hadoop: HadoopConfiguration) -> tuple[dict[str, Any] | None, str]:
    """What the ResourceManager that is active tells of itself, and its page; else why none does.

    One that stands by tells of itself, too, and of nothing else.
    """
    reasons = []
    for page in hadoop.pages():
        told, why = _opened(f"{page}/ws/v1/cluster/info")
        own = (told or {}).get("clusterInfo")
        if not isinstance(own, dict):
            reasons.append(why or f"{page} does not tell of itself")
        elif (state := own.get("haState", "ACTIVE")) == "ACTIVE":
            return own, page
        else:
            reasons.append(f"{page} is {state}")
    return None, "; ".join(reasons)


def _opened(address: str, sent: object = None, method: str | None = None) -> tuple[dict[str, Any] | None, str]:
    """The JSON at an address, which `sent` is sent to where it is given; else why there is none."""
    page = "/".join(address.split("/")[:3])
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    data = None if sent is None else json.dumps(sent).encode()
    asked = urllib.request.Request(address, data, headers, method=method)  # noqa: S310  # of the operator's own files
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=RESPONSE_PAUSE_SECONDS) as answer:
            found = json.loads(_read(answer) or b"{}")
            return (found, "") if isinstance(found, dict) else (None, f"{page} answers no JSON of YARN's")
    except urllib.error.HTTPError as e:
        return None, f"{page} asks for Kerberos" if e.code == HTTPStatus.UNAUTHORIZED else f"{page} answers {e.code}"
    except (ValueError, RecursionError):
        return None, f"{page} answers no JSON"
    except (OSError, http.client.HTTPException) as e:
        return None, f"{page}: {getattr(e, 'reason', None) or e}"


def _read(answer: http.client.HTTPResponse) -> bytes:
    """All of it. Raises OSError where it does not end."""
    deadline, read = time.monotonic() + RESPONSE_SECONDS, bytearray()
    while piece := answer.read1(1 << 16):
        read += piece
        if time.monotonic() > deadline or len(read) > ANSWER_BYTES:
            raise TimeoutError("its answer does not end")
    return bytes(read)


def _list(told: Mapping[str, Any], outer: str, inner: str) -> list[dict[str, Any]]:
    """The list in an object, either of which is missing, or null, where nothing is in it."""
    return list((told.get(outer) or {}).get(inner) or [])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

"""Configuration of all tests: real servers, one seed a run, and the long campaigns, which run only on request."""

import gc
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from flafka.agent.services.running import RunningAgent
from tests.fixtures import examples

pytest_plugins = [
    "tests.fixtures.brokers",
    "tests.fixtures.browser",
    "tests.fixtures.figures",
    "tests.fixtures.kerberos",
    "tests.fixtures.memory",
    "tests.fixtures.processes",
    "tests.fixtures.secured",
    "tests.fixtures.servers",
    "tests.fixtures.waits",
    "tests.fixtures.parallel",
]

HERE = Path(__file__).parent
SEED = pytest.StashKey[int]()

SCARCE = {
    "hbase_cluster": "stores",
    "solr_cluster": "stores",
    "spark_session": "spark session",
    "yarn_cluster": "yarn",
    "forking": "forked processes",
    "browser": "browser",  # installed if missing, which two workers cannot do at once
}
"""Group of each costly fixture: every worker that runs a test with one starts it. Tests with the same group go to the
same worker; tests that request such a fixture only when they run have its `xdist_group`."""
LONG = [
    "test_every_component",
    "test_samples",
    "test_hdfs_localdisk",
    "test_kafka",
    "test_taildir_power",
    "test_taildir_positions",
    "test_taildir_files",
    "test_pages",
    "test_connections",
    "test_file_power",
    "test_taildir_names",
    "test_taildir_busy",
    "test_conformance",
]
"""Modules without servers that take longest; they come first of these, so that none is begun last."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Option for JVMs of tests, which live for seconds: without optimisation they start in half the processor time."""
REAL = "real"
"""Parameter of a test that runs on a model as well: with this one it requests servers when it runs."""
ALL_NEED_SERVERS = re.compile(r'^pytestmark = pytest\.mark\.usefixtures\("(servers|spark_session)"\)$', re.MULTILINE)
"""Line of a module without any quick test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long campaigns, and nothing else")
    parser.addoption("--quick", action="store_true", help="run what needs no Java and no server, on fewer examples")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_JAVA)
    given = getattr(config, "workerinput", {}).get("seed") or os.environ.get("FLAFKA_SEED")
    seed = int(given or random.randrange(2**32))
    config.stash[SEED] = seed
    settings.load_profile(examples.QUICK if config.getoption("--quick") else examples.FULL)
    if config.getoption("--quick"):
        RunningAgent.__enter__ = _undeclared
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(seed)


def _undeclared(agent: RunningAgent) -> RunningAgent:
    raise AssertionError("an agent as a process takes seconds: its test asks for the fixture `servers`")


@pytest.hookimpl(optionalhook=True)  # a hook of a run in several processes, as the following ones
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.stash[SEED]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        """Scheduler of whole files for tests without a group, so that module fixtures are made once."""

        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return ByFile(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED]} (FLAFKA_SEED={config.stash[SEED]} makes the same choices again)"


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Session):
        gc.disable()  # until everything is imported, which creates hardly any garbage


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore modules whose tests all need servers or are long in a quick run, so that they are not even imported."""
    if not config.getoption("--quick"):
        return None
    if collection_path in (HERE / "system", HERE / "interop", HERE / "soak"):
        return True
    is_module = collection_path.match("test_*.py")
    return True if is_module and ALL_NEED_SERVERS.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = config.getoption("--soak")
    left = set() if soak else _not_drawn(config, items)
    chosen = [item for item in items if item not in left and soak in _runs(item)]
    if config.getoption("--quick"):
        chosen = [item for item in chosen if not _needs_servers(item) and "lengthy" not in _fixtures(item)]
    kept = {*chosen}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen
    if hasattr(config, "workerinput") or config.getoption("--processes") > 1:
        items.sort(key=_sort_key)


def _runs(item: pytest.Item) -> set[bool]:
    """Return the kinds of run to which a test belongs; True is the soak."""
    return {True, False} if item.get_closest_marker("drawn") else {bool(item.get_closest_marker("soak"))}


def _not_drawn(config: pytest.Config, items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that this run omits: of those marked alike in a module, all but some drawn by the seed.

    A test that is named in full (`module.py::test`) runs.
    """
    if any("::" in argument for argument in config.args):
        return set()
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("drawn"):
            name = marker.kwargs.get("of", item.name.partition("[")[0])
            alike.setdefault(f"{item.nodeid.partition('::')[0]} {name}", []).append(item)
    left: set[pytest.Item] = set()
    for name, some in alike.items():
        marker = some[0].get_closest_marker("drawn")
        assert marker is not None
        drawn = random.Random(f"{config.stash[SEED]} {name}").sample(some, min(marker.args[0], len(some)))
        left |= {*some} - {*drawn}
    return left


def pytest_itemcollected(item: pytest.Item) -> None:  # xdist reads groups right after the collection
    if not item.get_closest_marker("xdist_group") and (group := _group(item)):
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()
    gc.freeze()  # imported modules stay: each garbage collection would traverse all of them
    if hasattr(session.config, "workerinput"):
        grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in item.nodeid for item in grouped), "this pytest-xdist sees no groups in this pytest"


def _fixtures(item: pytest.Item) -> set[str]:
    return {*getattr(item, "fixturenames", ())}


def _needs_servers(item: pytest.Item) -> bool:
    """Return True if its fixtures, direct or indirect, request servers; each server's fixture requests `servers`."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "servers" in _fixtures(item) or REAL in parameters.values()


def _group(item: pytest.Item) -> str | None:
    """Return the group of tests that one worker of a parallel run executes in turn."""
    fixtures = _fixtures(item)
    for fixture, group in SCARCE.items():
        if fixture in fixtures:
            return group
    return item.path.stem if _needs_servers(item) else None


def _sort_key(item: pytest.Item) -> tuple[int, int]:
    """Return the sort key: the largest group first, and last the tests that fill a worker's remaining time."""
    marker = item.get_closest_marker("xdist_group")
    group = 0 if marker and marker.args == ("stores",) else 1 if marker or _needs_servers(item) else 2
    return group, LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Seed of a test's random choices; printed at the head of the run, set by FLAFKA_SEED."""
    return pytestconfig.stash[SEED]


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """Fail if a thread outlives its test: it takes time from all later tests, and no code waits for it."""
    before = {*threading.enumerate()}
    yield
    deadline, pause = time.monotonic() + 60, 0.01
    while left := [thread for thread in threading.enumerate() if thread not in before and not _of_a_library(thread)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        gc.collect()  # ends the threads of unreferenced pools
        time.sleep(pause)
        pause = min(2 * pause, 0.2)  # each garbage collection takes a processor for a tenth of a second


def _of_a_library(thread: threading.Thread) -> bool:
    if thread.name.startswith("kafka-io-"):  # remains when kafka-python's client is not created for lack of a broker
        return True
    target = getattr(thread, "_target", None)
    modules = {type(thread).__module__, type(getattr(target, "__self__", None)).__module__}
    return any(module.startswith(("py4j", "pyspark")) for module in modules)

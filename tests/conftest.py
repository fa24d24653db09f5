"""What all tests share: real servers, one seed a run, and the long campaigns, which run only when asked for."""

import gc
import os
import random
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures.brokers", "tests.fixtures.servers"]

# How fast a machine is says nothing about what is right.
settings.register_profile("flafka", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flafka")

SEED = pytest.StashKey[int]()
FIGURES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long campaigns, and nothing else")


@pytest.hookimpl(tryfirst=True)  # before hypothesis looks for its seed
def pytest_configure(config: pytest.Config) -> None:
    seed = int(os.environ.get("FLAFKA_SEED") or random.randrange(2**32))
    config.stash[SEED], config.stash[FIGURES] = seed, []
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(seed)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED]} (FLAFKA_SEED={config.stash[SEED]} makes the same choices again)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if bool(item.get_closest_marker("soak")) == config.getoption("--soak")]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if figures := config.stash[FIGURES]:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """What a test's random choices come from; printed at the head of the run, set by FLAFKA_SEED."""
    return pytestconfig.stash[SEED]


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines to show at the end of the run, also when all went well."""
    return pytestconfig.stash[FIGURES]


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """A thread that outlives its test takes time from all that follow, and is one that nothing waits for."""
    before = {*threading.enumerate()}
    yield
    deadline = time.monotonic() + 60
    while left := [thread for thread in threading.enumerate() if thread not in before and not _of_a_library(thread)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        gc.collect()  # ends the threads of pools that nobody has any more
        time.sleep(0.01)


def _of_a_library(thread: threading.Thread) -> bool:
    if thread.name.startswith("kafka-io-"):  # stays when kafka-python's client is not made for want of a broker
        return True
    target = getattr(thread, "_target", None)
    modules = {type(thread).__module__, type(getattr(target, "__self__", None)).__module__}
    return any(module.startswith(("py4j", "pyspark")) for module in modules)

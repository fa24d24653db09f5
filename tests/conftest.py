"""What all tests share: real servers, one seed a run, and the long campaigns, which run only when asked for."""

import os
import random

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures.servers"]

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

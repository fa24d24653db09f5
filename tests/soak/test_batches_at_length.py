"""Views of batches, and parsers of syslog, compared for a million random inputs."""

import random

import pytest

from tests.plugins import batchviews
from tests.sources import syslog_batches

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
MESSAGES, OPERATIONS = 1_000_000, 100_000


def test_syslog_is_read_row_by_row_as_by_columns(seed: int, figures: list[str]) -> None:
    share = syslog_batches.check_views(random.Random(seed), MESSAGES)
    figures.append(f"{MESSAGES:,} messages, {share:.0%} of the batches read row by row")
    assert share > 0.2


def test_batches_of_rows_are_those_of_columns(seed: int, figures: list[str]) -> None:
    rows = batchviews.check_views(random.Random(seed), OPERATIONS)
    figures.append(f"{OPERATIONS:,} operations, {rows:,} with rows as result")
    assert rows > OPERATIONS / 10

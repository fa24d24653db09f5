"""Configurations of the examples, which are valid without any variable set."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main


@pytest.mark.parametrize(
    ("name", "agent"), [("counts", "a1"), ("game", "a1"), ("json", "a1"), ("audit", "edge"), ("audit", "store")]
)
def test_check_has_no_messages(name: str, agent: str) -> None:
    result = CliRunner().invoke(main, ["check", "--strict", "-n", agent, "-c", f"conf/examples/{name}/{name}.conf"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


def test_of_json_fields_and_paths_are_as_its_test_says() -> None:
    result = CliRunner().invoke(main, ["test", "conf/examples/json/json.test.toml"])
    assert result.exit_code == 0, result.output

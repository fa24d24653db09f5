"""The wheel on each Python with each extra alone, and its demo with all servers: `./dev soak`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from flafka.agent.jvm.jars import cache_directory
from tests.release.building import TRIED_PYTHONS, interpreters, user_environment, uv_environment
from tests.system.test_release import NEEDED, OTHERS, agent, built, wheel

__all__ = ["built", "wheel"]

MORPHLINE = "morphlines : [{ id : m, commands : [{ addValues { a : b } }] }]"
EXTRAS = "hdfs,hbase,solr,spark,sandbox"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_demo_outside_a_checkout(wheel: Path, tmp_path: Path, figures: list[str]) -> None:
    version, python = list(interpreters().items())[-1]
    environment = uv_environment(tmp_path / "venv", f"flafka[{EXTRAS}] @ {wheel.as_uri()}", python=python)
    home = {name: str(tmp_path / name) for name in ("home", "tmp", "x")}
    for directory in home.values():
        Path(directory).mkdir()
    result = subprocess.run(
        [str(environment / "bin" / "agent"), "demo", "--exit", "--runner", "local", "--json"],
        cwd=home["x"],
        env={**user_environment(tmp_path), **fetched(), "TMPDIR": home["tmp"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["balanced"], report["wrong"]
    assert {report["channel"], *(report["stores"][name] for name in ("HDFS", "HBase", "Solr"))} == {report["channel"]}
    assert not list(Path(home["tmp"]).iterdir())
    figures.append(f"Python {version}: {report['channel']:,} events in each store, after {report['seconds']} s")


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", TRIED_PYTHONS)
def test_each_extra_alone_on_each_python(wheel: Path, tmp_path: Path, version: str) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    for extra in (*NEEDED, *OTHERS):
        requirement = f"flafka[{extra}] @ {wheel.as_uri()}"
        environment = uv_environment(tmp_path / extra / "venv", requirement, python=python)
        (tmp_path / extra / "agent.conf").write_text(NEEDED.get(extra, ""))
        (tmp_path / extra / "morphline.conf").write_text(MORPHLINE)
        if extra in NEEDED:
            assert "pip install" not in agent(environment, tmp_path / extra, "check", "-c", "agent.conf")
        else:
            command = [str(environment / "bin" / "python"), "-c", OTHERS[extra]]
            subprocess.run(command, cwd=tmp_path, env=user_environment(tmp_path), check=True)


def fetched() -> dict[str, str]:
    """Return the environment variables for the servers' jars and their sources, as far as they are set."""
    given = {name: os.environ[name] for name in ("FLAFKA_MAVEN_REPO",) if name in os.environ}
    return {"XDG_CACHE_HOME": str(cache_directory().parent), **given}

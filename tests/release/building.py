"""Wheel and source distribution, and the environments in which users install them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.release.report import run

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "release"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
TRIED_PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "Python :: 3." in name]
"""Supported versions of Python."""
UV = (sys.executable, "-m", "uv", "--quiet")
_CLASHING = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "channels"
version = "4.0"
"""


class Distributions(NamedTuple):
    """Built distributions of one source tree."""

    wheel: Path
    sdist: Path
    wheel_from_sdist: Path


def allowed_pythons() -> list[str]:
    """Return the versions of Python that `requires-python` allows, tried or not."""
    match = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"])
    assert match is not None
    return [f"3.{minor}" for minor in range(int(match[1]), int(match[2]))]


@cache
def interpreters() -> dict[str, Path]:
    """Return the interpreter of each allowed version of Python that this machine has."""
    managed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = {}
    for version in allowed_pythons():
        name = f"python{version}"
        for candidate in (*managed.glob(f"{version}.*/bin/{name}"), *filter(None, [shutil.which(name)])):
            # A version manager also has shims for versions that are not installed.
            if subprocess.run([str(candidate), "--version"], capture_output=True, check=False).returncode == 0:
                found[version] = Path(candidate)
                break
    return found


def copy_tracked_files(target: Path) -> None:
    """Copy the files that git tracks, so that nothing else can get into a distribution."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in files.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def build(source: Path, directory: Path) -> Distributions:
    """Build a wheel and a source distribution of a source tree, and another wheel of the latter."""
    run(*UV, "build", "--python", sys.executable, "--wheel", "--out-dir", directory, source)
    run(*UV, "build", "--python", sys.executable, "--sdist", "--out-dir", directory, source)
    sdist = next(directory.glob("*.tar.gz"))
    again = directory / "from-sdist"
    run(*UV, "build", "--python", sys.executable, "--wheel", "--out-dir", again, sdist)
    return Distributions(next(directory.glob("*.whl")), sdist, next(again.glob("*.whl")))


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sdist_names(sdist: Path) -> set[str]:
    """Return the names of the files in a source distribution, without its directory."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def uv_environment(directory: Path, *requirements: str, python: Path | str = sys.executable) -> Path:
    """Return a new virtual environment with these packages, installed by uv."""
    run(*UV, "venv", "--python", python, directory)
    if requirements:
        run(*UV, "pip", "install", "--python", directory / "bin" / "python", *requirements)
    return directory


def pip_environment(directory: Path, *requirements: str, python: Path | str = sys.executable) -> Path:
    """Return a new virtual environment with these packages, installed by pip."""
    run(python, "-m", "venv", directory)
    pip = (directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, *requirements)
    return directory


def user_environment(directory: Path) -> dict[str, str]:
    """Return the environment variables of a user who has no checkout and has never run the agent."""
    return {"HOME": str(directory / "home"), "PATH": os.defpath}


def clashing_distribution(directory: Path) -> Path:
    """Write the source of a distribution with a top-level package `channels`, as that of Django's has."""
    (directory / "channels").mkdir(parents=True)
    (directory / "channels" / "__init__.py").write_text("OTHERS = True\n")
    (directory / "pyproject.toml").write_text(_CLASHING)
    return directory

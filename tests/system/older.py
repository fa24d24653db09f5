"""Version 0.1 from the repository's history, to be run beside this one."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.system.running import ROOT

COMMIT = "fdcd801"
"""The last one of version 0.1."""


def older(directory: Path) -> Path:
    """Its tree, in a directory below that one. Skips the test where the history does not reach back to it."""
    try:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed, which has version 0.1")
    if archive.returncode:
        pytest.skip(f"this is no clone with its whole history, which has version 0.1 as commit {COMMIT}")
    tree = directory / "version-0.1"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tree, filter="data")
    return tree

"""Programs of Debian's packages for tests, unpacked into the cache if the machine lacks them, never installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from flafka.agent.jvm.jars import cache_directory


class Missing(Exception):
    """A program is neither installed nor fetchable; the message has the reason and the package to install."""


def program(name: str, *packages: str) -> tuple[Path, dict[str, str]]:
    """Return a program and its environment; skip the calling test if it cannot be fetched.

    `packages` are unpacked: the program's package, and libraries that no base system has. They are fetched once into
    the cache, after `apt-get update` where apt has no lists and this user may run it.
    """
    path, libraries = unpacked(name, *packages)
    return path, {**os.environ, **libraries}


def unpacked(name: str, *packages: str) -> tuple[Path, dict[str, str]]:
    """Return a program and only the environment variables that it needs; skip like `program`."""
    try:
        return fetched(name, *packages)
    except Missing as reason:
        pytest.skip(str(reason))


def fetched(name: str, *packages: str) -> tuple[Path, dict[str, str]]:
    """Return like `unpacked`, outside of tests. Raises `Missing`."""
    if installed := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin:/lib/systemd"):
        return Path(installed), {}
    root = cache_directory() / "debian" / "-".join(packages)
    if not root.exists() and (reason := _fetch(root, packages)):
        raise Missing(f"{name} is not here and cannot be fetched ({reason}): apt-get install {packages[0]}")
    libraries = {str(path.parent) for path in root.rglob("*.so*")}
    candidates = (path for folder in ("bin", "sbin", "lib/systemd") for path in root.rglob(f"{folder}/{name}"))
    return next(candidates), {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


def _fetch(root: Path, packages: tuple[str, ...]) -> str:
    """Fetch and unpack; return the reason of a failure."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "no apt-get here"
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of this run fetches the same, and apt-get has locks itself
        return "" if root.exists() else _fetch_alone(root, packages)


def _fetch_alone(root: Path, packages: tuple[str, ...]) -> str:
    downloads = root.with_name(f"{root.name}.{os.getpid()}")
    downloads.mkdir()
    try:
        download = ["apt-get", "download", "-qq", *packages]
        if _run(download, downloads) and (os.geteuid() or _run(["apt-get", "update", "-qq"], downloads)):
            return "apt-get does not find it"
        if not list(downloads.glob("*.deb")) and (problem := _run(download, downloads)):
            return problem
        for archive in list(downloads.glob("*.deb")):
            if problem := _run(["dpkg", "-x", str(archive), str(downloads / "root")], downloads):
                return problem
        (downloads / "root").rename(root)
    finally:
        shutil.rmtree(downloads)
    return ""


def _run(command: list[str], directory: Path) -> str:
    """Run it; return the end of its output after a failure."""
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    return (result.stderr.strip().splitlines() or ["no reason given"])[-1] if result.returncode else ""

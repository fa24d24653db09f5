"""Directories of a user for the state, the caches and the servers of agents."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from flafka.plugins.errors import FlafkaError


def state_directory() -> Path:
    """Return `flafka` in `$XDG_STATE_HOME`, by default ~/.local/state; the directory may not exist yet.

    Raises FlafkaError for a user without a home directory.
    """
    return base_directory("XDG_STATE_HOME", ".local/state") / "flafka"


def base_directory(variable: str, default: str) -> Path:
    """Return the directory in an environment variable of the XDG Base Directory Specification.

    By default it is `default` in the home directory. Raises FlafkaError for a user without one.
    """
    if directory := os.environ.get(variable):
        return Path(directory)
    try:
        return Path.home() / default
    except RuntimeError:  # as of a container whose user is a number that no file knows
        text = f"this user has no home directory: set {variable} to a directory that it may write"
        raise FlafkaError(text) from None


def state_file(agent: str, file: str, kind: str, suffix: str) -> Path:
    """Return a path below the state directory for the agent with this name and configuration file.

    `kind` is the directory of such files. Neither needs to exist.
    """
    digest = hashlib.sha256(str(Path(file).resolve()).encode()).hexdigest()[:16]
    return state_directory() / kind / f"{agent}-{digest}.{suffix}"

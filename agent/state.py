"""State directory of a user's agents."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def state_directory() -> Path:
    """Return `flafka` in `$XDG_STATE_HOME`, by default ~/.local/state; the directory may not exist yet.

    Raises RuntimeError for a user without a home directory.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "flafka"


def state_file(agent: str, file: str, kind: str, suffix: str) -> Path:
    """Return a path below the state directory for the agent with this name and configuration file.

    `kind` is the directory of such files. Neither needs to exist.
    """
    digest = hashlib.sha256(str(Path(file).resolve()).encode()).hexdigest()[:16]
    return state_directory() / kind / f"{agent}-{digest}.{suffix}"

"""State directory of a user's agents."""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """Return `flafka` in `$XDG_STATE_HOME`, by default ~/.local/state; the directory may not exist yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "flafka"

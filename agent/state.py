"""Where this user's agents keep what outlives them."""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """`flafka` in `$XDG_STATE_HOME`; not created yet, perhaps."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "flafka"

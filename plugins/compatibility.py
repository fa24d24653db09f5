"""What a component does otherwise than Flume's of the same type."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompatibilityNote:
    """One thing that a component does otherwise than Flume's component of the same type.

    `agent check -v`, `agent migrate` and the documentation show it.
    """

    flume: str
    """What Flume does: a clause without a full stop."""
    here: str
    """What happens here: a clause without a full stop."""
    option: str = ""
    """Only a configuration that sets this option is told."""
    seen: bool = False
    """Whether users meet it while all goes well, and not only when something fails or is malformed."""

    def __str__(self) -> str:
        return f"Flume: {self.flume}. Here: {self.here}"

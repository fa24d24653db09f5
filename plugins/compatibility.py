"""Notes on differences between a component and Flume's component of the same type."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompatibilityNote:
    """One difference between a component and Flume's component of the same type.

    Shown by `agent check -v`, by `agent migrate` and in the documentation.
    """

    flume: str
    """Flume's behaviour: a clause without a full stop."""
    here: str
    """Behaviour of this component: a clause without a full stop."""
    option: str = ""
    """Option to which the note applies: shown only if the configuration sets it. Empty: shown always."""
    is_common: bool = False
    """True if the difference shows in normal operation, not only after a failure or for malformed input."""

    def __str__(self) -> str:
        return f"Flume: {self.flume}. Here: {self.here}"

"""Faults of a simulation, and their frequency."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Kind(enum.Enum):
    """Fates of a call to a server."""

    WELL = "well"
    LOST = "lost"
    """The request never arrives; the caller sees its timeout."""
    UNANSWERED = "unanswered"
    """The server does it, and the answer is lost; the caller sees its timeout."""
    LATE = "late"
    """The caller sees its timeout, and the server does it some time afterwards."""
    DOUBLED = "doubled"
    """The server does it twice, as when the network layer sent it again."""
    REFUSED = "refused"
    """The server answers that it cannot now."""
    STUCK = "stuck"
    """Kafka's client says that it will see to it, and never does that, nor anything after it."""
    PAUSED = "paused"
    """The process of the caller sleeps for a while before the request goes out, as under SIGSTOP."""
    PAUSED_AFTER = "paused after"
    """The process of the caller sleeps between the answer and its next step."""
    KILLED = "killed"
    """The process of the caller is gone before the request goes out, as under SIGKILL."""
    KILLED_AFTER = "killed after"
    """The process of the caller is killed after the server has executed the request."""


OF_THE_PROCESS = (Kind.PAUSED, Kind.PAUSED_AFTER, Kind.KILLED, Kind.KILLED_AFTER)
"""Kinds that `World.call` itself carries out; the request of a model then succeeds."""


class Fault(NamedTuple):
    """Failure of the `number`-th call of that name by a process."""

    process: str
    what: str
    """Name of the call."""
    number: int
    kind: Kind
    seconds: float
    """Length of a pause, or delay of a late request."""
    life: int = 1
    """Ordinal among the processes of that name."""
    on: str = ""
    """Part of the path, of the topic, or of offsets such as `t-0@2.`: other calls do not count."""

    def __repr__(self) -> str:
        life = f", life={self.life}" if self.life > 1 else ""
        on = f', on="{self.on}"' if self.on else ""
        call = f'"{self.process}", "{self.what}", {self.number}, Kind.{self.kind.name}, {self.seconds:g}'
        return f"Fault({call}{life}{on})"

    def __str__(self) -> str:
        lasting = f" ({self.seconds:.0f} s)" if self.kind in (Kind.PAUSED, Kind.PAUSED_AFTER, Kind.LATE) else ""
        life = f" (life {self.life})" if self.life > 1 else ""
        on = f" on {self.on}" if self.on else ""
        return f"{self.process}{life}: {self.what}{on} no. {self.number} is {self.kind.value}{lasting}"


@dataclass
class Chances:
    """Frequencies of random faults."""

    share: float = 0.0
    """Share of all calls that fail."""
    often: Mapping[str, float] = field(default_factory=dict)
    """By name of the call, so many times more often."""
    kinds: Collection[Kind] = frozenset(Kind)
    processes: Collection[str] | None = None
    most: int = 4
    """Largest number of faults in a run."""

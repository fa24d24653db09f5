"""What may go wrong in a simulation, and how often."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Kind(enum.Enum):
    """What may become of a call to a server."""

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
    """The same between the answer and the caller's next step."""
    KILLED = "killed"
    """The process of the caller is gone before the request goes out, as under SIGKILL."""
    KILLED_AFTER = "killed after"
    """The same once the server has done it."""


OF_THE_PROCESS = (Kind.PAUSED, Kind.PAUSED_AFTER, Kind.KILLED, Kind.KILLED_AFTER)
"""What `World.call` itself sees to; a model gets WELL for them."""


class Fault(NamedTuple):
    """One thing that goes wrong: the `number`-th call of that name by that process."""

    process: str
    what: str
    number: int
    kind: Kind
    seconds: float
    """How long a pause lasts, or how late the late come."""
    life: int = 1
    """Of the processes of that name, one after the other: which one."""

    def __str__(self) -> str:
        lasting = f" ({self.seconds:.0f} s)" if self.kind in (Kind.PAUSED, Kind.PAUSED_AFTER, Kind.LATE) else ""
        life = f" (life {self.life})" if self.life > 1 else ""
        return f"{self.process}{life}: {self.what} no. {self.number} is {self.kind.value}{lasting}"


@dataclass
class Chances:
    """How often what goes wrong, where nothing is given."""

    share: float = 0.0
    """Of all calls."""
    often: Mapping[str, float] = field(default_factory=dict)
    """By name of the call, so many times more often."""
    kinds: Collection[Kind] = frozenset(Kind)
    processes: Collection[str] | None = None
    most: int = 4
    """So many in one run."""

"""What an interceptor is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import ClassVar

from plugins.batch import Batch
from plugins.component import C, Component


class Interceptor(Component[C]):
    """Changes or drops events on their way."""

    pure: ClassVar[bool] = True
    """Whether the same event always gives the same result. Impure ones are allowed before the channel only, where a
    redelivery does not pass."""

    hides: ClassVar[bool] = False
    """Whether it takes something out of events that not everybody is to see, as a mask does: the agent's page shows
    events behind the last of these only."""

    @abstractmethod
    def intercept(self, batch: Batch) -> Batch:
        """Return the batch changed; use `where` to drop events. Must not raise for any content."""

    def sets_headers(self) -> Collection[str] | None:
        """Names of the headers that it may set; None: any. `check` warns of a sink that needs others."""
        return None

"""Morphlines: chains of commands that take events apart, as Kite's library for Java runs them in Flume.

A `Morphline` is read from its file, HOCON, and does with each record what Kite 1.1 does. What is wrong with it, and
each command that is not built, is told with its line before the first event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from plugins.shared.morphline import (  # noqa: F401  # they register their commands
    extraction,
    fields,
    flow,
    readers,
    solr,
    values,
)
from plugins.shared.morphline.compiler import Compiler, Process
from plugins.shared.morphline.hocon import MorphlineFile
from plugins.shared.morphline.record import BODY, Failed, JsonNode, MorphlineRecord, text

__all__ = ["BODY", "Failed", "JsonNode", "Morphline", "MorphlineRecord", "text"]


class Morphline:
    """One morphline of a file, ready to run; not to be run by two threads at once.

    `last` gets what comes out at its end. Raises ValueError, in words for the user, for all that is wrong with it at
    once, OSError where the file cannot be read, and MissingExtra.
    """

    def __init__(
        self,
        path: str,
        name: str | None,
        variables: Mapping[str, str],
        last: Process,
        log: logging.Logger,
    ) -> None:
        file = MorphlineFile(path, variables)
        written = file.morphline(name)
        self.shared = Compiler(file, log)
        """What its commands share while they run."""
        self._process = self.shared.build({"pipe": written}, last)
        if self.shared.errors:
            raise ValueError("; ".join(reversed(self.shared.errors)))

    @property
    def locators(self) -> list[tuple[str, dict[str, Any]]]:
        """Where its commands reach Solr: the place of each in the file, and its `solrLocator`."""
        return self.shared.locators[::-1]  # chains are built from their ends

    def process(self, record: MorphlineRecord) -> bool:
        """Run it; False where a command did not succeed. Raises Failed where one could not do its work."""
        for begin in self.shared.on_event:
            begin()
        try:
            return self._process(record)
        except RecursionError:
            raise Failed("the body is nested too deeply") from None

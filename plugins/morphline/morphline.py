"""Executable morphline, read from its file in HOCON.

A `Morphline` does with each record what Kite 1.1 does. Mistakes in it, and commands that are not built, are reported
with their lines before the first event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flafka.plugins.morphline import (  # noqa: F401  # they register their commands
    extraction,
    fields,
    flow,
    readers,
    solr,
    values,
)
from flafka.plugins.morphline.compiler import Compiler, Process
from flafka.plugins.morphline.hocon import MorphlineFile
from flafka.plugins.morphline.record import Failed, MorphlineRecord


class Morphline:
    """One morphline of a file, ready to run, by one thread at a time.

    `last` gets the records that come out at its end. Raises ValueError, in words for the user, with every mistake in
    it; OSError if the file cannot be read; and MissingExtra.
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
        """State that its commands share while they run."""
        self._process = self.shared.build({"pipe": written}, last)
        if self.shared.errors:
            raise ValueError("; ".join(reversed(self.shared.errors)))

    @property
    def locators(self) -> list[tuple[str, dict[str, Any]]]:
        """Commands that reach Solr: the place of each in the file, and its `solrLocator`."""
        return self.shared.locators[::-1]  # chains are built from their ends

    def process(self, record: MorphlineRecord) -> bool:
        """Run it on a record; return False if a command does not succeed. Raises Failed if one cannot do its work."""
        for begin in self.shared.on_event:
            begin()
        try:
            return self._process(record)
        except RecursionError:
            raise Failed("the body is nested too deeply") from None

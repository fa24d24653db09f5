"""Executable morphline, read from its file in HOCON.

A `Morphline` behaves as in Kite 1.1. Errors in the file and unsupported commands are reported with their lines before
the first event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flafka.plugins.morphline import (  # noqa: F401  # each registers its commands
    extraction,
    fields,
    flow,
    readers,
    solr,
    values,
)
from flafka.plugins.morphline.compiler import Compiler, Process
from flafka.plugins.morphline.hocon import MorphlineFile
from flafka.plugins.morphline.record import MorphlineRecord, MorphlineRuntimeError


class Morphline:
    """One morphline of a file, for one thread at a time.

    `last` receives its output records. Raises ValueError with all errors of the morphline, OSError if the file cannot
    be read, and MissingExtra.
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
        definition = file.morphline(name)
        self.compiler = Compiler(file, log)
        """Compiler, and state shared by the commands while they run."""
        self._process = self.compiler.compile_command({"pipe": definition}, last)
        if self.compiler.errors:
            raise ValueError("; ".join(reversed(self.compiler.errors)))

    @property
    def solr_locators(self) -> list[tuple[str, dict[str, Any]]]:
        """Location in the file and `solrLocator` of each command that connects to Solr."""
        return self.compiler.solr_locators[::-1]  # chains are compiled from their ends

    def process(self, record: MorphlineRecord) -> bool:
        """Run the morphline on the record of an event. Return False if a command fails.

        Raises MorphlineRuntimeError if a command raises an error.
        """
        for start_event in self.compiler.event_hooks:
            start_event()
        try:
            return self._process(record)
        except RecursionError:
            raise MorphlineRuntimeError("the body is nested too deeply") from None

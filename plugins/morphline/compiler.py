"""Compiler of a morphline into a chain of functions, one per command."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.hocon import MorphlineFile
from flafka.plugins.morphline.record import MorphlineRecord

Process = Callable[[MorphlineRecord], bool]
"""A command and its successors. False: one fails. May change the record, and raise MorphlineRuntimeError."""
Builder = Callable[[Arguments, Process, "Compiler"], Process]
"""Builder of one command from its arguments, the chain of later commands, and the compiler.

Raises ValueError, with a message for the user, for wrong arguments.
"""

_ALTERNATIVE = "write an interceptor in Python that does it: `agent template interceptor` prints one to start from"
_JAVA = f"is code in Java, which cannot run here: {_ALTERNATIVE}"
COMMANDS: dict[str, Builder] = {}


def command(*names: str) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a function as builder of the commands of these names."""

    def register(builder: Builder) -> Builder:
        COMMANDS.update(dict.fromkeys(names, builder))
        return builder

    return register


class Compiler:
    """Compiler of one morphline, which collects its errors; also the state shared by the commands while they run."""

    def __init__(self, file: MorphlineFile, log: logging.Logger) -> None:
        self.log = log
        self.errors: list[str] = []
        self.solr_locators: list[tuple[str, dict[str, Any]]] = []
        """Location and `solrLocator` of each command that connects to Solr, from the last to the first."""
        self.load_document: Callable[[MorphlineRecord], None] | None = None
        """Consumer of the records of `loadSolr`. Set by the sink `solr`; None elsewhere."""
        self.is_known_field: Callable[[str], bool] = lambda name: True
        """True if Solr's schema has the field; set by the sink."""
        self.unique_key = "id"
        """Unique key of Solr's schema; set by the sink."""
        self.random: Callable[[], bytes] = lambda: os.urandom(16)
        """Source of 16 bytes for a UUID."""
        self.event_hooks: list[Callable[[], None]] = []
        """Functions to call before each event."""
        self._file = file

    def uuid(self) -> str:
        """Return a new UUID of version 4."""
        return str(uuid.UUID(bytes=self.random(), version=4))

    def compile_chain(self, commands: Sequence[dict[str, Any]], last: Process) -> Process:
        """Return the commands as a chain that calls each in turn, and then `last`.

        Errors are appended to `errors`.
        """
        process = last
        for definition in reversed(commands):
            process = self.compile_command(definition, process)
        return process

    def compile_command(self, definition: dict[str, Any], child: Process) -> Process:
        """Return one command, compiled, which calls `child` for each output record.

        If the command has errors, append them to `errors` and return `child`.
        """
        location = self._file.location(definition)
        if len(definition) != 1:
            count = len(definition)
            self.errors.append(f"{location}: a command must be one name and its arguments, not {count} names")
            return child
        ((name, argument_values),) = definition.items()
        builder = COMMANDS.get(name)
        if builder is None:
            self.errors.append(f"{location}: the command `{name}` {_JAVA if name == 'java' else _UNSUPPORTED}")
            return child
        arguments = Arguments(argument_values if isinstance(argument_values, dict) else {})
        try:
            process = builder(arguments, child, self)
            if unknown := arguments.unknown_names():
                raise ValueError(f"does not know {', '.join(unknown)}")
        except ValueError as e:
            self.errors.append(f"{location}: the command `{name}` {e}")
            return child
        self.solr_locators = [(known or location, locator) for known, locator in self.solr_locators]
        return process


_UNSUPPORTED = f"is not supported here: {_ALTERNATIVE}"

"""What makes a chain of functions of a morphline, one for each command."""

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
"""A command with all that come after it: False where one of them fails. May change the record, and raise Failed."""
Builder = Callable[[Arguments, Process, "Compiler"], Process]

_INSTEAD = "write an interceptor in Python that does it: `agent template interceptor` prints one to start from"
_JAVA = f"is code in Java, which cannot run here: {_INSTEAD}"
COMMANDS: dict[str, Builder] = {}


def command(*names: str) -> Callable[[Builder], Builder]:
    """Decorate what builds the command of these names."""

    def register(builder: Builder) -> Builder:
        COMMANDS.update(dict.fromkeys(names, builder))
        return builder

    return register


class Compiler:
    """Builds one morphline, and notes all that is wrong with it.

    It is also what the commands share while they run.
    """

    def __init__(self, file: MorphlineFile, log: logging.Logger) -> None:
        self.log = log
        self.errors: list[str] = []
        self.locators: list[tuple[str, dict[str, Any]]] = []
        """Where a command reaches Solr: its place, and the `solrLocator`."""
        self.load: Callable[[MorphlineRecord], None] | None = None
        """Takes what `loadSolr` gets. Set by the sink; a morphline that names Solr needs it."""
        self.known_fields: Callable[[str], bool] = lambda name: True
        """Whether Solr's schema has a field; set by the sink."""
        self.unique_key = "id"
        """Of Solr's schema; set by the sink."""
        self.random: Callable[[], bytes] = lambda: os.urandom(16)
        """16 bytes for an identifier."""
        self.on_event: list[Callable[[], None]] = []
        """Called before each event."""
        self._file = file

    def uuid(self) -> str:
        """A new identifier, of version 4."""
        return str(uuid.UUID(bytes=self.random(), version=4))

    def chain(self, commands: Sequence[dict[str, Any]], last: Process) -> Process:
        """Commands one after the other, and then `last`."""
        process = last
        for one in reversed(commands):
            process = self.build(one, process)
        return process

    def build(self, written: dict[str, Any], child: Process) -> Process:
        """One command. What is wrong with it is noted, and `child` answered."""
        place = self._file.place(written)
        if len(written) != 1:
            self.errors.append(f"{place}: a command is one name and its arguments, not {len(written)}")
            return child
        ((name, given),) = written.items()
        builder = COMMANDS.get(name)
        if builder is None:
            self.errors.append(f"{place}: the command `{name}` {_JAVA if name == 'java' else _NOT_BUILT}")
            return child
        arguments = Arguments(given if isinstance(given, dict) else {})
        try:
            process = builder(arguments, child, self)
            if unread := arguments.unread():
                raise ValueError(f"does not know {', '.join(unread)}")
        except ValueError as e:
            self.errors.append(f"{place}: the command `{name}` {e}")
            return child
        self.locators = [(there or place, one) for there, one in self.locators]
        return process


_NOT_BUILT = f"is not built here: {_INSTEAD}"

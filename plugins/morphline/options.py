"""The options that the components have which run a morphline."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flafka.plugins.compatibility import CompatibilityNote
from flafka.plugins.component import Component
from flafka.plugins.errors import MissingExtra, Retry
from flafka.plugins.options import Config, option
from flafka.plugins.problems import Problem, missing_library

if TYPE_CHECKING:
    from flafka.plugins.morphline.compiler import Process
    from flafka.plugins.morphline.morphline import Morphline

_ALWAYS = "a server that is away is always tried again; any other failure concerns the event alone"

DIFFERENCES = (
    CompatibilityNote(
        flume="names of months, days and zones in many languages; look-behind of any length",
        here="English names (`inputLocale`, `outputLocale`), look-behind of a fixed length: others are errors with "
        "their line",
        option="morphlineFile",
    ),
)
"""What a morphline does otherwise than Kite's library for Java."""


class MorphlineConfig(Config):
    """Options of a component that runs a morphline."""

    section = "Morphline"
    options_without_effect = MappingProxyType(
        {"isIgnoringRecoverableExceptions": _ALWAYS, "recoverableExceptionClasses": _ALWAYS}
    )
    morphline_file: str | None = option(
        None,
        name="morphlineFile",
        file=True,
        path="flume",
        description="File with morphlines, in HOCON, as Kite's library reads it.",
    )
    morphline_id: str | None = option(
        None, name="morphlineId", description="The `id` of the morphline to run. If unset, the first of the file."
    )
    variables: dict[str, str] = option(
        {},
        name="morphlineVariable.",
        description="`morphlineVariable.<path>` replaces the value at that path of the file.",
    )

    def warnings(self) -> Iterator[Problem]:
        """A file, or the library that reads it, that is not there yet."""
        yield from super().warnings()
        if self.morphline_file:
            yield from missing_library("morphlineFile", "hocon", "morphlines")
        if self.morphline_file and not Path(self.morphline_file).exists():
            yield Problem("morphlineFile", f"{self.morphline_file} does not exist: nothing runs until it does")

    def checked(self) -> Morphline | None:
        """The morphline, for a check; None where there is no file yet, or nothing that reads it. ValueError says what
        is wrong with it."""
        assert self.morphline_file is not None
        try:
            return self._read(lambda record: True, logging.getLogger(__name__))
        except (FileNotFoundError, MissingExtra):
            return None
        except (OSError, UnicodeDecodeError) as e:
            raise ValueError(f"{self.morphline_file} cannot be read: {e}") from None

    def opened(self, last: Process, component: Component[Any]) -> Morphline:
        """The morphline, to be run by this component. Raises Retry where it cannot be."""
        try:
            return self._read(last, component.log)
        except (OSError, ValueError) as e:
            raise Retry(f"the morphline cannot run: {e}") from e

    def _read(self, last: Process, log: logging.Logger) -> Morphline:
        from flafka.plugins.morphline.morphline import Morphline  # all commands, which other agents do not need

        assert self.morphline_file is not None
        return Morphline(self.morphline_file, (self.morphline_id or "").strip(), self.variables, last, log)

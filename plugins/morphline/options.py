"""Options of the components that run a morphline."""

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

_NO_EFFECT = "an unreachable server is always retried; any other failure concerns the event alone"

MORPHLINE_COMPATIBILITY = (
    CompatibilityNote(
        flume="names of months, days and zones in many languages; look-behind of any length",
        here="English names (`inputLocale`, `outputLocale`), look-behind of a fixed length: others are errors with "
        "their line",
        option="morphlineFile",
    ),
)
"""Compatibility notes of components that run a morphline."""


class MorphlineConfig(Config):
    """Options of a component that runs a morphline."""

    section = "Morphline"
    options_without_effect = MappingProxyType(
        {"isIgnoringRecoverableExceptions": _NO_EFFECT, "recoverableExceptionClasses": _NO_EFFECT}
    )
    morphline_file: str | None = option(
        None,
        name="morphlineFile",
        must_exist=True,
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
        """Yield a problem if the morphline's file, or the library that reads it, is missing."""
        yield from super().warnings()
        if self.morphline_file:
            yield from missing_library("morphlineFile", "hocon", "morphlines")
        if self.morphline_file and not Path(self.morphline_file).exists():
            yield Problem("morphlineFile", f"{self.morphline_file} does not exist: the component starts once it does")

    def check_morphline(self) -> Morphline | None:
        """Return the morphline for a check; None if the file, or the library that reads it, is missing.

        Raises ValueError with the errors of the morphline.
        """
        assert self.morphline_file is not None
        try:
            return self._read(lambda record: True, logging.getLogger(__name__))
        except (FileNotFoundError, MissingExtra):
            return None
        except (OSError, UnicodeDecodeError) as e:
            raise ValueError(f"{self.morphline_file} cannot be read: {e}") from None

    def open_morphline(self, last: Process, component: Component[Any]) -> Morphline:
        """Return the morphline for a component, with its log; `last` receives the output records.

        Raises Retry if the file cannot be read or has errors, and MissingExtra.
        """
        try:
            return self._read(last, component.log)
        except (OSError, ValueError) as e:
            raise Retry(f"the morphline cannot run: {e}") from e

    def _read(self, last: Process, log: logging.Logger) -> Morphline:
        """Return the configured morphline. Raises OSError, ValueError and MissingExtra."""
        from flafka.plugins.morphline.morphline import Morphline  # slow to import: all commands

        assert self.morphline_file is not None
        return Morphline(self.morphline_file, (self.morphline_id or "").strip(), self.variables, last, log)

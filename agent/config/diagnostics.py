"""Errors, warnings and notes about a configuration, each with its file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flafka.agent.topology import ConfigLocation

Severity = Literal["error", "warning", "note"]
"""An error prevents the start. A warning points at a probable mistake or loss. A note is information only."""
Mode = Literal["normal", "strict"]
_JAAS_FLAGS = {"required", "requisite", "sufficient", "optional"}
"""Words behind the class in `sasl.jaas.config`, which errors contain too."""


@dataclass(frozen=True)
class Diagnostic:
    """One error, warning or note. Text form: `agent.conf:12: a1.sinks.k1: unknown option 'bathcSize', …`."""

    severity: Severity
    place: ConfigLocation
    component: str
    """Path such as `a1.sinks.k1`; empty if the diagnostic concerns the whole file."""
    message: str
    differs: bool = False
    """True if Flume behaves differently with the same configuration."""
    replacement: tuple[tuple[str, str], ...] | None = None
    """Properties, by full name, that state the effect of that line here. None if the line may stay."""
    is_library_missing: bool = False
    """True if a library is missing on this host. Such an error is not a mistake of the file."""

    def __str__(self) -> str:
        level = "" if self.severity == "error" else f"{self.severity}: "
        component = f"{self.component}: " if self.component else ""
        return f"{self.place}: {level}{component}{self.message}"


class DiagnosticCollector:
    """Collector of diagnostics. Redacts secrets; in mode `strict`, warnings are errors."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._diagnostics: list[Diagnostic] = []
        self._secrets: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        """Absolute form of each relative path, by full option name (`a1.sinks.k1.sink.directory`)."""

    def hide_secret(self, value: str, substitute: str) -> None:
        """Show `substitute` in place of `value`, and of its words of more than 3 characters, in all diagnostics.

        Words of JAAS that are no secret are shown.
        """
        words = {word for word in value.split() if len(word) > 3} - _JAAS_FLAGS
        for text in {value, repr(value)[1:-1], *words} - {""}:
            self._secrets[text] = substitute

    def error(self, place: ConfigLocation, component: str, message: str) -> None:
        """Add an error, which prevents the start of the whole agent.

        `component` is its path, or empty for the file.
        """
        self._diagnostics.append(Diagnostic("error", place, component, message))

    def warn(
        self,
        place: ConfigLocation,
        component: str,
        message: str,
        *,
        differs: bool = False,
        replacement: Mapping[str, str] | None = None,
    ) -> None:
        """Add a warning: a probable mistake or loss.

        In mode `strict` it is an error, which prevents the start of the agent. `differs` means that Flume behaves
        differently with the same configuration. `replacement` has the properties, by full name, that state the effect
        of the line here: empty without any effect, None if the line may stay.
        """
        severity: Severity = "error" if self.mode == "strict" else "warning"
        lines = None if replacement is None else tuple(replacement.items())
        self._diagnostics.append(Diagnostic(severity, place, component, message, differs, lines))

    def note(self, place: ConfigLocation, component: str, message: str, *, differs: bool = False) -> None:
        """Add information, which `diagnostics` returns only with `notes`.

        `differs` means that Flume behaves differently with the same configuration.
        """
        self._diagnostics.append(Diagnostic("note", place, component, message, differs))

    def missing_library(self, place: ConfigLocation, component: str, message: str) -> None:
        """Add an error for a library that is not installed on this host. It does not count in `has_errors`."""
        self._diagnostics.append(Diagnostic("error", place, component, message, is_library_missing=True))

    @property
    def has_errors(self) -> bool:
        """True if the file itself has an error. A library that is not installed does not count."""
        return any(
            diagnostic.severity == "error" and not diagnostic.is_library_missing for diagnostic in self._diagnostics
        )

    def diagnostics(self, *, notes: bool = False) -> list[Diagnostic]:
        """Return distinct diagnostics by file and line, with secrets redacted; notes only with `notes`."""
        redact = self.redactor()
        redacted = [
            replace(d, component=redact(d.component), message=redact(d.message))
            for d in self._diagnostics
            if notes or d.severity != "note"
        ]
        return sorted(dict.fromkeys(redacted), key=lambda d: (d.place.file, d.place.line))

    def redactor(self) -> Callable[[str], str]:
        """Return a function that redacts the secrets known now, and escapes unprintable characters, in a text."""
        # A short secret is redacted as a word only: cut out of other words, too, it could be guessed from the gaps.
        patterns = [
            re.escape(text) if len(text) > 3 else rf"(?<!\w){re.escape(text)}(?!\w)"
            for text in sorted(self._secrets, key=len, reverse=True)
        ]
        hidden = re.compile("|".join(patterns), re.IGNORECASE) if patterns else None

        def redact(text: str) -> str:
            text = hidden.sub(lambda match: self._secrets.get(match[0], "****"), text) if hidden else text
            # A name or value may hold line ends, and control sequences that a terminal would execute.
            return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)

        return redact

"""Errors, warnings and notes on a configuration, each with its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flafka.agent.topology import Place

Severity = Literal["error", "warning", "note"]
"""An error keeps the agent from running; a warning may be a mistake or a loss; a note is for information."""
Mode = Literal["normal", "strict"]


@dataclass(frozen=True)
class Diagnostic:
    """One thing found; its text reads `agent.conf:12: a1.sinks.k1: unknown option 'bathcSize', …`."""

    severity: Severity
    place: Place
    component: str
    """`a1.sinks.k1`; empty where it is about the file as a whole."""
    message: str
    differs: bool = False
    """True if Flume does otherwise with the same file, so that something else happens here."""
    instead: tuple[tuple[str, str], ...] | None = None
    """Properties, by their whole names, that say in place of that line what happens here; None: the line may stay."""
    uninstalled: bool = False
    """True if a library is missing on this machine: an error that is no mistake of the file."""

    def __str__(self) -> str:
        level = "" if self.severity == "error" else f"{self.severity}: "
        component = f"{self.component}: " if self.component else ""
        return f"{self.place}: {level}{component}{self.message}"


class DiagnosticCollector:
    """Collector of diagnostics, which keeps secrets out of them. In mode `strict` warnings are errors."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._found: list[Diagnostic] = []
        self._secrets: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        """By option, with the path of its component: the absolute form of each relative path."""

    def secret(self, value: str, shown: str) -> None:
        """Never show `value`; show `shown` in its place."""
        for text in {value, repr(value)[1:-1], *(word for word in value.split() if len(word) > 3)} - {""}:
            self._secrets[text] = shown

    def error(self, place: Place, component: str, message: str) -> None:
        """Report an error: no part of the agent starts."""
        self._found.append(Diagnostic("error", place, component, message))

    def warn(
        self,
        place: Place,
        component: str,
        message: str,
        *,
        differs: bool = False,
        instead: Mapping[str, str] | None = None,
    ) -> None:
        """Something that runs, though perhaps not as meant, or that `differs` from what Flume does."""
        severity: Severity = "error" if self.mode == "strict" else "warning"
        written = None if instead is None else tuple(instead.items())
        self._found.append(Diagnostic(severity, place, component, message, differs, written))

    def note(self, place: Place, component: str, message: str, *, differs: bool = False) -> None:
        """Something that loses nothing: it is shown to those who ask for all."""
        self._found.append(Diagnostic("note", place, component, message, differs))

    def uninstalled(self, place: Place, component: str, message: str) -> None:
        """Report a library that is not installed here: an error for who starts the agent."""
        self._found.append(Diagnostic("error", place, component, message, uninstalled=True))

    @property
    def failed(self) -> bool:
        """True if the file has an error; a library that is not installed here is none of the file."""
        return any(found.severity == "error" and not found.uninstalled for found in self._found)

    def diagnostics(self, *, notes: bool = False) -> list[Diagnostic]:
        """Return what was found, in the order of the file, without secrets; notes only with `notes`."""
        clean = self.cleaner()
        found = [
            replace(d, component=clean(d.component), message=clean(d.message))
            for d in self._found
            if notes or d.severity != "note"
        ]
        return sorted(dict.fromkeys(found), key=lambda d: (d.place.file, d.place.line))

    def cleaner(self) -> Callable[[str], str]:
        """Takes out of a text the secrets that are known now, and makes one printable line of it."""
        # A short secret is hidden as a word only: cutting its letters out of every word would tell it.
        patterns = [
            re.escape(text) if len(text) > 3 else rf"(?<!\w){re.escape(text)}(?!\w)"
            for text in sorted(self._secrets, key=len, reverse=True)
        ]
        hidden = re.compile("|".join(patterns), re.IGNORECASE) if patterns else None

        def clean(text: str) -> str:
            text = hidden.sub(lambda match: self._secrets.get(match[0], "****"), text) if hidden else text
            # One line each, whatever a name or value holds, and no control sequences for the terminal.
            return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)

        return clean

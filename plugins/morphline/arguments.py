"""Typed access to the arguments of a command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flafka.plugins.java.charsets import text_codec
from flafka.plugins.morphline.grok import Dictionary
from flafka.plugins.morphline.hocon import Scalar, flatten

T = TypeVar("T")
_INTEGER = re.compile(r"[+-]?[0-9]+")


class Arguments:
    """Arguments of a command. Each method returns one by name, and raises ValueError with a message for the user.

    `unknown_names` then returns the arguments that no method has read.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._read: set[str] = set()

    def unknown_names(self) -> list[str]:
        """Return the names of arguments that no method has read."""
        return [name for name in self.values if name not in self._read]

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text, or `default` if it is missing. An argument without default is required."""
        value = self._get(name)
        if value is None:
            if default is None:
                raise ValueError(f"needs {name}")
            return default
        if not isinstance(value, Scalar):
            raise ValueError(f"{name} must be a text")
        return value.source

    def choice(self, name: str, *choices: str) -> str:
        """Return one of `choices`; the first is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def character(self, name: str, default: str) -> str:
        """Return one character, or `default`. An empty text is allowed only if the default is empty."""
        value = self.text(name, default)
        if len(value) > 1 or (default and not value):
            raise ValueError(f"{name} must be one character, not {value!r}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """Return True for `true`, `yes` or `on`, False for `false`, `no` or `off`, and `default` if it is missing."""
        value = self.text(name, str(default).lower())
        if value not in ("true", "yes", "on", "false", "no", "off"):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value in ("true", "yes", "on")

    def integer(self, name: str, default: int) -> int:
        """Return an integer, or `default` if it is missing."""
        value = self.text(name, str(default))
        if not _INTEGER.fullmatch(value):
            raise ValueError(f"{name} must be a whole number, not {value!r}")
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Return a float, or `default` if it is missing."""
        try:
            return float(self.text(name, str(default)))
        except ValueError:
            raise ValueError(f"{name} must be a number") from None

    def text_list(self, name: str, default: list[str] | None = None) -> list[str]:
        """Return a list of texts, or `default` if it is missing. An argument without default is required."""
        value = self._get(name)
        if value is None:
            if default is None:
                raise ValueError(f"needs {name}")
            return default
        if not isinstance(value, list) or not all(isinstance(item, Scalar) for item in value):
            raise ValueError(f"{name} must be a list of texts")
        return [item.source for item in value]

    def object_list(self, name: str) -> list[dict[str, Any]]:
        """Return a list of objects; empty if missing."""
        value = self._get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ValueError(f"{name} must be a list of objects")
        return value

    def flat_object(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """Return the values of an object by path, as `flatten`; empty if it is missing and not required."""
        return flatten(self.object(name, required=required))

    def object(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """Return an object; empty if missing and not required."""
        value = self._get(name)
        if value is None and not required:
            return {}
        if not isinstance(value, dict):
            raise ValueError(f"needs {name}" if value is None else f"{name} must be an object")
        return value

    def charset(self, default: str | None = None) -> str | None:
        """Return Python's name of the argument `charset`, or of `default` if it is missing.

        Return None, for the charset of the record, if both are.
        """
        value = self.text("charset", default or "")
        return text_codec(value) if value else None

    def dictionary(self) -> Dictionary:
        """Return the grok dictionary of `dictionaryFiles` and `dictionaryString`, which wins for equal names."""
        dictionary = Dictionary()
        if self.text_list("dictionaryResources", []):
            raise ValueError("takes a dictionary out of a jar: extract it, and name the file in dictionaryFiles")
        for name in self.text_list("dictionaryFiles", []):
            try:
                dictionary.load(Path(name))
            except OSError as e:
                raise ValueError(f"cannot read its dictionary {name}: {e.strerror}") from None
        dictionary.add(self.text("dictionaryString", ""))
        return dictionary

    def parsed(self, name: str, parse: Callable[[str], T], default: str | None = None) -> T:
        """Return the result of `parse` for a text, or for `default` if it is missing.

        `parse` may raise ValueError.
        """
        return parse(self.text(name, default))

    def ignore(self, *names: str) -> None:
        """Accept arguments that have no effect here."""
        self._read.update(names)

    def flat_values(self) -> dict[str, Any]:
        """Return all arguments by path, as `flatten`, and count all of them as read."""
        self._read.update(self.values)
        return flatten(self.values)

    def _get(self, name: str) -> Any:
        self._read.add(name)
        return self.values.get(name)

"""The arguments of a command, read by what they are meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flafka.plugins.morphline.grok import Dictionary
from flafka.plugins.morphline.hocon import Scalar, flat
from flafka.plugins.shared.charsets import text_codec

T = TypeVar("T")
_WHOLE = re.compile(r"[+-]?[0-9]+")


class Arguments:
    """Each method reads one argument, by name. Raises ValueError, in words for the user.

    `unread` then names what no method asked for.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self._asked: set[str] = set()

    def unread(self) -> list[str]:
        """Names that the command does not know."""
        return [name for name in self.given if name not in self._asked]

    def text(self, name: str, default: str | None = None) -> str:
        """A text; required where there is no default."""
        value = self._get(name)
        if value is None:
            if default is None:
                raise ValueError(f"needs {name}")
            return default
        if not isinstance(value, Scalar):
            raise ValueError(f"{name} must be a text")
        return value.written

    def one_of(self, name: str, *choices: str) -> str:
        """One of these; the first where it is not given."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def character(self, name: str, default: str) -> str:
        """One character or, where the default is, none."""
        value = self.text(name, default)
        if len(value) > 1 or (default and not value):
            raise ValueError(f"{name} must be one character, not {value!r}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        """Whether."""
        value = self.text(name, str(default).lower())
        if value not in ("true", "yes", "on", "false", "no", "off"):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value in ("true", "yes", "on")

    def whole(self, name: str, default: int) -> int:
        """A whole number."""
        value = self.text(name, str(default))
        if not _WHOLE.fullmatch(value):
            raise ValueError(f"{name} must be a whole number, not {value!r}")
        return int(value)

    def fraction(self, name: str, default: float) -> float:
        """A number."""
        try:
            return float(self.text(name, str(default)))
        except ValueError:
            raise ValueError(f"{name} must be a number") from None

    def texts(self, name: str, default: list[str] | None = None) -> list[str]:
        """A list of texts; required where there is no default."""
        value = self._get(name)
        if value is None:
            if default is None:
                raise ValueError(f"needs {name}")
            return default
        if not isinstance(value, list) or not all(isinstance(one, Scalar) for one in value):
            raise ValueError(f"{name} must be a list of texts")
        return [one.written for one in value]

    def objects(self, name: str) -> list[dict[str, Any]]:
        """A list of objects; empty where it is not given."""
        value = self._get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise ValueError(f"{name} must be a list of objects")
        return value

    def mapping(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """Values by their paths, in the order in which Java goes through them."""
        return flat(self.object(name, required=required))

    def object(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """An object as it is; empty where it is not given."""
        value = self._get(name)
        if value is None and not required:
            return {}
        if not isinstance(value, dict):
            raise ValueError(f"needs {name}" if value is None else f"{name} must be an object")
        return value

    def charset(self, default: str | None = None) -> str | None:
        """Python's name of `charset`; None: what the record says."""
        value = self.text("charset", default or "")
        return text_codec(value) if value else None

    def dictionary(self) -> Dictionary:
        """What the arguments `dictionary…` say."""
        dictionary = Dictionary()
        if self.texts("dictionaryResources", []):
            raise ValueError("takes a dictionary out of a jar: extract it, and name the file in dictionaryFiles")
        for name in self.texts("dictionaryFiles", []):
            try:
                dictionary.load(Path(name))
            except OSError as e:
                raise ValueError(f"cannot read its dictionary {name}: {e.strerror}") from None
        dictionary.add(self.text("dictionaryString", ""))
        return dictionary

    def read(self, name: str, read: Callable[[str], T], default: str | None = None) -> T:
        """A text made something of."""
        return read(self.text(name, default))

    def ignored(self, *names: str) -> None:
        """These have no effect here."""
        self._asked.update(names)

    def all(self) -> dict[str, Any]:
        """Everything given, by its path: fields and their values."""
        self._asked.update(self.given)
        return flat(self.given)

    def _get(self, name: str) -> Any:
        self._asked.add(name)
        return self.given.get(name)

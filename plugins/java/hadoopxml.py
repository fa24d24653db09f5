"""Hadoop's configuration files, such as core-site.xml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

_REFERENCE = re.compile(r"\$\{([^${}\s]+)\}")
_REFERENCES = 20
"""Depth to which values may refer to others, as in Hadoop (`org.apache.hadoop.conf.Configuration`)."""


def read_properties(file: Path) -> dict[str, str]:
    """Return the properties of a file by name, references unresolved; the last of equal names counts.

    Raises ValueError if the file cannot be read, or is not XML.
    """
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314  # the operator's own file
    except (ElementTree.ParseError, OSError) as e:
        raise ValueError(f"{file} cannot be read: {e}") from e
    pairs = ((node.findtext("name"), node.findtext("value")) for node in root.iter("property"))
    return {name.strip(): value.strip() for name, value in pairs if name and value is not None}


def resolve_property(properties: Mapping[str, str], name: str, default: str = "") -> str:
    """Return the value of a property with its references resolved; `default`, resolved too, if it is not set.

    `${env.NAME}` is a variable of the environment, any other reference a property. An unknown reference stays as
    text, as in Hadoop.
    """

    def resolved(reference: re.Match[str]) -> str:
        key = reference[1]
        value = os.environ.get(key.removeprefix("env.")) if key.startswith("env.") else properties.get(key)
        return reference[0] if value is None else value

    value = properties.get(name, default)
    for _ in range(_REFERENCES):
        changed = _REFERENCE.sub(resolved, value)
        if changed == value:
            break
        value = changed
    return value.strip()

"""Fields of RFC 5424 between host name and message, as headers: application, process, message id, structured data."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import OVERFLOW_TYPE
from flafka.plugins.shared.octets import slices
from flafka.sources.syslog.columns import Array, Bytes, Ints, Mask, windows

NAMES = ("appName", "procId", "msgId")
"""Headers of the first three; none for a `-`."""
PREFIX = "sd."
"""Prefix of the headers `sd.<SD-ID>.<name>`, a parameter's value, and `sd.<SD-ID>`, empty, of an element without
parameters. Senders choose these names, and shall not choose another header's."""

_MOST_COLUMNS = 40
"""Parameters in one batch that get a column each; the others share one."""
_ID = r'[^\s=\]"]+'
_VALUE = r'(?:[^"\\]|\\.)*'
_ELEMENT = rf'\[{_ID}(?: +{_ID}="{_VALUE}")* *\]'
_FIELDS = rf"(?s)^(?P<a>[!-~]+) (?P<p>[!-~]+) (?P<m>[!-~]+) (?P<d>-|(?:{_ELEMENT})+)(?P<e> |$)"
_TOKEN = re.compile(rf'\[({_ID})( *\])?|({_ID})="({_VALUE})"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_BOM = np.frombuffer(b"\xef\xbb\xbf", np.uint8)


def read(data: Bytes, starts: Ints, ends: Ints, wanted: Mask) -> tuple[Ints, Mask, dict[str, Array], Array | None]:
    """Return the starts of the messages, the mask of frames that RFC 5424 allows, their headers, and the map column
    with the headers past `_MOST_COLUMNS`.

    `starts` is where the application's name is. A frame that is not wanted, or not as RFC 5424 has it, gets no header
    and starts where it did. A mark of UTF-8 before the message goes.
    """
    found = pc.extract_regex(slices(data, starts, np.where(wanted, ends, starts)), pattern=_FIELDS)
    formed = pc.is_valid(found).to_numpy(zero_copy_only=False)
    if not formed.any():
        return starts, formed, {}, None
    app, process, message, elements, end = (pc.struct_field(found, n) for n in range(5))
    sizes = sum(pc.binary_length(part).fill_null(0).to_numpy() for part in (app, process, message, elements, end))
    text = starts + (sizes + 3) * formed
    marked = formed & (text + 3 <= ends) & (windows(data, text, 3) == _BOM).all(axis=1)
    headers = {}
    for name, column in zip(NAMES, (app, process, message), strict=True):
        encoded = pc.if_else(pc.equal(column, b"-"), None, column).dictionary_encode()
        headers[name] = pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))
    parameters, overflow = _columns(elements)
    return text + 3 * marked, formed, headers | parameters, overflow


def _columns(elements: Array) -> tuple[dict[str, Array], Array | None]:
    """Each different text is read once."""
    encoded = elements.dictionary_encode()
    read = [_parameters(text) for text in encoded.dictionary.to_pylist()]
    names = list(dict.fromkeys(name for parameters in read for name in parameters))
    columns = {
        name: pa.array([parameters.get(name) for parameters in read], pa.string()).take(encoded.indices)
        for name in names[:_MOST_COLUMNS]
    }
    if len(names) <= _MOST_COLUMNS:
        return columns, None
    rest = [[item for item in parameters.items() if item[0] not in columns] for parameters in read]
    return columns, pa.array(rest, OVERFLOW_TYPE).take(encoded.indices)


def _parameters(text: bytes) -> dict[str, str]:
    """The headers of some structured data; a name that occurs twice has its values joined by commas."""
    headers: dict[str, list[str]] = {}
    element = ""
    for token in _TOKEN.finditer(text.decode("utf-8", "replace")):
        opened, bare, name, value = token.groups()
        if opened is not None:
            element = f"{PREFIX}{opened}"
            if bare:
                headers.setdefault(element, [""])
        else:
            headers.setdefault(f"{element}.{name}", []).append(_ESCAPED.sub(r"\1", value))
    return {name: ",".join(values) for name, values in headers.items()}

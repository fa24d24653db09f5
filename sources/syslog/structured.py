"""Fields of RFC 5424 between host name and message, as headers: application, process, message id, structured data."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import OVERFLOW_TYPE
from flafka.plugins.wire.octets import take_slices
from flafka.sources.syslog.columns import Array, Bytes, Ints, Mask, windows

FIELD_HEADERS = ("appName", "procId", "msgId")
"""Headers of the first three fields; absent for `-`."""
ELEMENT_PREFIX = "sd."
"""Prefix of headers that senders name, so that they cannot overwrite other headers.

`sd.<SD-ID>.<name>` holds the value of a parameter. `sd.<SD-ID>` is empty, for an element without parameters.
"""

_MAX_COLUMNS = 40
"""Maximum number of parameters of a batch with their own columns; the others share the overflow map."""
_ID = r'[^\s=\]"]+'
_VALUE = r'(?:[^"\\]|\\.)*'
_ELEMENT = rf'\[{_ID}(?: +{_ID}="{_VALUE}")* *\]'
_FIELDS = rf"(?s)^(?P<a>[!-~]+) (?P<p>[!-~]+) (?P<m>[!-~]+) (?P<d>-|(?:{_ELEMENT})+)(?P<e> |$)"
_TOKEN = re.compile(rf'\[({_ID})( *\])?|({_ID})="({_VALUE})"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_BOM = np.frombuffer(b"\xef\xbb\xbf", np.uint8)


def extract(data: Bytes, starts: Ints, ends: Ints, wanted: Mask) -> tuple[Ints, Mask, dict[str, Array], Array | None]:
    """Return the starts of the messages, the mask of valid frames, their headers, and the overflow map of headers.

    `starts` holds the positions of the application names. A frame that is not `wanted`, or violates RFC 5424, gets no
    headers and keeps its start. A byte order mark before the message is skipped.
    """
    match = pc.extract_regex(take_slices(data, starts, np.where(wanted, ends, starts)), pattern=_FIELDS)
    formed = pc.is_valid(match).to_numpy(zero_copy_only=False)
    if not formed.any():
        return starts, formed, {}, None
    app, process, message, elements, end = (pc.struct_field(match, n) for n in range(5))
    sizes = sum(pc.binary_length(part).fill_null(0).to_numpy() for part in (app, process, message, elements, end))
    text = starts + (sizes + 3) * formed
    has_bom = formed & (text + 3 <= ends) & (windows(data, text, 3) == _BOM).all(axis=1)
    headers = {}
    for name, column in zip(FIELD_HEADERS, (app, process, message), strict=True):
        encoded = pc.if_else(pc.equal(column, b"-"), None, column).dictionary_encode()
        headers[name] = pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))
    parameters, overflow = _columns(elements)
    return text + 3 * has_bom, formed, headers | parameters, overflow


def _columns(elements: Array) -> tuple[dict[str, Array], Array | None]:
    """Return the header columns of structured data, and the overflow map of headers beyond `_MAX_COLUMNS`, or None.

    Each distinct text is parsed once.
    """
    encoded = elements.dictionary_encode()
    read = [_parameters(text) for text in encoded.dictionary.to_pylist()]
    names = list(dict.fromkeys(name for parameters in read for name in parameters))
    columns = {
        name: pa.array([parameters.get(name) for parameters in read], pa.string()).take(encoded.indices)
        for name in names[:_MAX_COLUMNS]
    }
    if len(names) <= _MAX_COLUMNS:
        return columns, None
    excess = [[item for item in parameters.items() if item[0] not in columns] for parameters in read]
    return columns, pa.array(excess, OVERFLOW_TYPE).take(encoded.indices)


def _parameters(text: bytes) -> dict[str, str]:
    """Return the headers of one structured data text. Values of a repeated name are joined by commas."""
    headers: dict[str, list[str]] = {}
    element = ""
    for token in _TOKEN.finditer(text.decode("utf-8", "replace")):
        opened, bare, name, value = token.groups()
        if opened is not None:
            element = f"{ELEMENT_PREFIX}{opened}"
            if bare:
                headers.setdefault(element, [""])
        else:
            headers.setdefault(f"{element}.{name}", []).append(_ESCAPED.sub(r"\1", value))
    return {name: ",".join(values) for name, values in headers.items()}

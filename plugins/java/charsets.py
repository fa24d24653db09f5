"""Names of character sets in a configuration."""

from __future__ import annotations

import codecs


def text_codec(name: str) -> str:
    """Return Python's name of a character set.

    Raises ValueError for an unknown one, or a codec that is not for text.
    """
    try:
        "".encode(name)  # raises LookupError for codecs from bytes to bytes, such as base64
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"unknown character set {name!r}; UTF-8 and ISO-8859-1 are known") from None

"""Names of character sets, as configurations write them."""

from __future__ import annotations

import codecs


def text_codec(name: str) -> str:
    """Python's name of a character set for text. ValueError where there is none of that name."""
    try:
        "".encode(name)  # codecs that are not for text are refused
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"unknown character set {name!r}; UTF-8 and ISO-8859-1 are known") from None

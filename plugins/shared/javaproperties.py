r"""Classes of characters that Java names in `\p{…}`, as ranges of a character class."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

ASCII = {
    "lower": "a-z",
    "upper": "A-Z",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "word": "a-zA-Z0-9_",
    "xdigit": "0-9a-fA-F",
    "punct": r"!-/:-@\[-`{-~",
    "graph": "!-~",
    "print": " -~",
    "blank": " \t",
    "space": "\t-\r ",
    "cntrl": "\0-\x1f\x7f",
    "ascii": "\0-\x7f",
}
"""POSIX classes, which have ASCII characters only in Java."""
SUPPORTED = r"\p{Alpha} and its like, \p{Lu}, \p{IsLatin}, \p{IsAlphabetic}, \p{InGreek}, \p{javaUpperCase}"
_FAMILIES = {"gc": "category", "general_category": "category", "sc": "script", "script": "script", "blk": "block"}
_FAMILIES |= {"block": "block", "In": "block", "java": "java", "Is": "binary"}
_NAME = re.compile(r"(?:(\w+)=|(In(?=[A-Z])|java(?=[A-Z])|Is(?=[A-Z]))?)([\w -]+)")
_CATEGORY = re.compile(r"L[CDlmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|C[cfnos]?")
_SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_JAVA_SPACES = "\t-\r\x1c- \u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000"
_OF_CATEGORY = {
    "letter": "L", "digit": "Nd", "letterordigit": "L Nd", "punctuation": "P", "control": "Cc", "isocontrol": "Cc",
    "titlecase": "Lt", "spacechar": "Z", "assigned": "L M N P S Z Cc Cf Co", "defined": "L M N P S Z Cc Cf Co",
}  # fmt: skip
_BINARY = {*_OF_CATEGORY, "uppercase", "lowercase", "whitespace", "alphabetic", "ideographic", "hexdigit"}
_LOOKED_AT = (range(0x40000), range(0xE0000, 0xE0200))
"""Code points that are asked about one by one; all others are unassigned or for private use."""


def parsed(name: str) -> tuple[str, str]:
    """Return the family of a property and its name there; both are empty for what is no name.

    Families: category, script, block, binary, java.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return "", ""
    family, value = _FAMILIES.get(found[1] or found[2] or "Is", ""), found[3]
    plain = re.sub("[_ -]", "", value).lower()
    if family in ("binary", "category") and _CATEGORY.fullmatch(value):
        return "category", value
    if family == "java" and plain in ("alphabetic", "ideographic"):
        return "binary", plain
    if family == "binary":
        return ("binary", plain) if plain in _BINARY else ("script", value)
    return family, plain if family == "java" else value


@lru_cache(maxsize=64)
def ranges(family: str, value: str) -> str:
    """Return the characters of a property as the inside of a class; empty where that is not known here.

    Lone surrogates are never among them: they stand for bytes that are not UTF-8.
    """
    if value == "whitespace":
        return _JAVA_SPACES if family == "java" else _SPACES
    if value in ("uppercase", "lowercase") and family in ("binary", "java"):
        return "".join(_runs(str.isupper if value == "uppercase" else str.islower))
    categories = value if family == "category" else _OF_CATEGORY.get(value, "")
    wanted = tuple({"LC": "Lu Lt Ll", "LD": "L Nd"}.get(categories, categories).split())
    if not wanted or family not in ("category", "binary", "java"):
        return ""
    return "".join(_runs(lambda character: unicodedata.category(character).startswith(wanted)))


def _runs(holds: Callable[[str], bool]) -> Iterator[str]:
    points = itertools.chain(*_LOOKED_AT)
    for belongs, run in itertools.groupby(points, lambda point: not 0xD800 <= point <= 0xDFFF and holds(chr(point))):
        if belongs:
            members = list(run)
            yield f"{_written(members[0])}-{_written(members[-1])}"
    if holds("\U00040000"):
        yield "\U00040000-\U000dffff\U000e0200-\U000effff"


def _written(point: int) -> str:
    return f"\\{chr(point)}" if chr(point) in r"\]^-[&~|" else chr(point)

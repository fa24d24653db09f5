r"""Character classes that Java names in `\p{…}`, as ranges of characters."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

POSIX_CLASSES = {
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
"""POSIX classes, which in Java have ASCII characters only."""
SUPPORTED_PROPERTIES = (
    r"\p{Alpha} and its like, \p{Lu}, \p{IsLatin}, \p{IsAlphabetic}, \p{InGreek}, \p{javaUpperCase}"
)
_FAMILIES = {"gc": "category", "general_category": "category", "sc": "script", "script": "script", "blk": "block"}
_FAMILIES |= {"block": "block", "In": "block", "java": "java", "Is": "binary"}
_NAME = re.compile(r"(?:(\w+)=|(In(?=[A-Z])|java(?=[A-Z])|Is(?=[A-Z]))?)([\w -]+)")
_CATEGORY = re.compile(r"L[CDlmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|C[cfnos]?")
_SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_JAVA_SPACES = "\t-\r\x1c- \u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000"
_CATEGORIES = {
    "letter": "L", "digit": "Nd", "letterordigit": "L Nd", "punctuation": "P", "control": "Cc", "isocontrol": "Cc",
    "titlecase": "Lt", "spacechar": "Z", "assigned": "L M N P S Z Cc Cf Co", "defined": "L M N P S Z Cc Cf Co",
}  # fmt: skip
_BINARY = {*_CATEGORIES, "uppercase", "lowercase", "whitespace", "alphabetic", "ideographic", "hexdigit"}
_SEARCHED_CODE_POINTS = (range(0x40000), range(0xE0000, 0xE0200))
"""Code points tested one by one. All others are unassigned or for private use."""


def parse_property(name: str) -> tuple[str, str]:
    """Return the family of a property and its name in the family; both empty if the name is malformed.

    Families: category, script, block, binary, java.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return "", ""
    family, value = _FAMILIES.get(match[1] or match[2] or "Is", ""), match[3]
    plain = re.sub("[_ -]", "", value).lower()
    if family in ("binary", "category") and _CATEGORY.fullmatch(value):
        return "category", value
    if family == "java" and plain in ("alphabetic", "ideographic"):
        return "binary", plain
    if family == "binary":
        return ("binary", plain) if plain in _BINARY else ("script", value)
    return family, plain if family == "java" else value


@lru_cache(maxsize=64)
def property_ranges(family: str, value: str) -> str:
    """Return the characters of a property as the inside of a character class; empty if it is unknown here.

    Lone surrogates are left out, since they stand for bytes that are not UTF-8.
    """
    if value == "whitespace":
        return _JAVA_SPACES if family == "java" else _SPACES
    if value in ("uppercase", "lowercase") and family in ("binary", "java"):
        return "".join(_runs(str.isupper if value == "uppercase" else str.islower))
    categories = value if family == "category" else _CATEGORIES.get(value, "")
    prefixes = tuple({"LC": "Lu Lt Ll", "LD": "L Nd"}.get(categories, categories).split())
    if not prefixes or family not in ("category", "binary", "java"):
        return ""
    return "".join(_runs(lambda character: unicodedata.category(character).startswith(prefixes)))


def _runs(has_property: Callable[[str], bool]) -> Iterator[str]:
    """Yield the ranges of characters with a property, such as `a-z`, as parts of a character class."""
    points = itertools.chain(*_SEARCHED_CODE_POINTS)
    for is_member, run in itertools.groupby(
        points, lambda point: not 0xD800 <= point <= 0xDFFF and has_property(chr(point))
    ):
        if is_member:
            members = list(run)
            yield f"{_class_member(members[0])}-{_class_member(members[-1])}"
    if has_property("\U00040000"):
        yield "\U00040000-\U000dffff\U000e0200-\U000effff"


def _class_member(point: int) -> str:
    """Return the character of a code point, escaped where a class gives it a meaning."""
    return f"\\{chr(point)}" if chr(point) in r"\]^-[&~|" else chr(point)

"""Regular expressions over columns: their meaning, their spelling, and bytes that are not UTF-8."""

import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flafka.plugins.java import regex as module
from flafka.plugins.java.pattern import JavaPattern, NonLinearPattern
from flafka.plugins.java.regex import Regex, RegexTimeout
from flafka.sources.filenames import compile_name_pattern

PATTERNS = [
    "é.",
    "(?i)É|x",
    "[^a]b?",
    r"\w+",
    r"\d{1,3}\.\d",
    "a|^b|c$",
    "x*",
    r"[\x{80}-\x{10ffff}]",
    "(?s)a.b",
]
ROWS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.text("abxé0.\n\ud7ff\U0010ffff", max_size=8).map(str.encode),
        st.lists(st.sampled_from([b"a", b"b", b"\xc3", b"\xa9", b"\xed\xb2\x80", b"7.1", b"x"])).map(b"".join),
    ),
    max_size=8,
)


def bodies(*rows: bytes) -> pa.Array:
    return pa.array(rows, pa.binary())


def headers(*rows: str | None) -> pa.Array:
    return pa.array(rows, pa.string()).dictionary_encode()


def shout(text: str) -> str:
    return f"<{len(text)}>"


@given(ROWS, st.sampled_from(PATTERNS), st.booleans())
@example([b"\xc3\xa9\xff", b"\xc3", "é".encode(), b""], "é.", False)
def test_a_row_has_the_same_result_alone_and_among_others(
    rows: list[bytes], pattern: str, backtracking: bool
) -> None:
    regex = Regex(re.sub(r"\\x\{.*\}", "é", pattern) if backtracking else pattern, backtracking=backtracking)
    column = bodies(*rows)
    operations = [regex.matches, lambda c: regex.replace(c, ("<", 0, "\\0>")), lambda c: regex.transform(c, shout)]
    for operation in operations:
        assert operation(column).to_pylist() == [operation(bodies(row))[0].as_py() for row in rows]


@given(ROWS, st.sampled_from(PATTERNS), st.booleans())
def test_replacing_a_match_by_itself_leaves_every_byte(rows: list[bytes], pattern: str, backtracking: bool) -> None:
    regex = Regex(re.sub(r"\\x\{.*\}", "é", pattern) if backtracking else pattern, backtracking=backtracking)
    column = bodies(*rows)
    assert regex.replace(column, (0,)).equals(column)
    assert regex.transform(column, lambda text: text).equals(column)


@given(ROWS, st.sampled_from([r"\d+", "[ab]+x", "[a-c0-9]"]))
def test_an_ascii_pattern_matches_any_bytes_like_a_search_of_bytes(rows: list[bytes], pattern: str) -> None:
    regex, bytewise = Regex(pattern), re.compile(pattern.encode())
    assert regex.replace(bodies(*rows), ("!",)).to_pylist() == [bytewise.sub(b"!", row) for row in rows]
    assert regex.matches(bodies(*rows)).to_pylist() == [bytewise.search(row) is not None for row in rows]


@given(st.lists(st.text("aéÉx\n0.-", max_size=10)), st.sampled_from(["é.", "[^a]x", "(a)(é?)", r"\w\W", "(?m)^a"]))
def test_both_engines_agree(rows: list[str], pattern: str) -> None:
    linear, backtracking = Regex(pattern), Regex(pattern, backtracking=True)
    for column in (bodies(*(row.encode() for row in rows)), headers(*rows, None)):
        assert linear.matches(column).to_pylist() == backtracking.matches(column).to_pylist()
        parts = ("<", len(linear.groups), ">")
        assert linear.replace(column, parts).to_pylist() == backtracking.replace(column, parts).to_pylist()
        assert linear.transform(column, shout).to_pylist() == backtracking.transform(column, shout).to_pylist()


@pytest.mark.parametrize("backtracking", [False, True])
def test_an_odd_byte_is_a_character_of_its_own(backtracking: bool) -> None:
    row = b"caf\xe9 \xc3\xa9t\xc3\xa9 \xff\xfe."
    regex = Regex("[^ ]t.", backtracking=backtracking)
    assert regex.replace(bodies(row), ("_",)).to_pylist() == [b"caf\xe9 _ \xff\xfe."]
    assert Regex(r"caf. ", backtracking=backtracking).matches(bodies(row)).to_pylist() == [True]
    assert Regex("é", backtracking=backtracking).matches(bodies(b"\xe9", row)).to_pylist() == [False, True]
    texts: list[str] = []
    Regex("f.", backtracking=backtracking).transform(bodies(row), lambda text: texts.append(text) or text)
    assert [text.encode("utf-8", "surrogateescape") for text in texts] == [b"f\xe9"]


@pytest.mark.parametrize("backtracking", [False, True])
def test_nulls_stay_null_and_a_header_is_computed_once_for_each_value(backtracking: bool) -> None:
    column, calls = headers("a1", None, "b", "a1"), []
    regex = Regex(r"\d", backtracking=backtracking)
    assert regex.matches(column).to_pylist() == [True, None, False, True]
    assert regex.replace(column, ("#",)).to_pylist() == ["a#", None, "b", "a#"]
    assert regex.transform(column, lambda text: calls.append(text) or "#").to_pylist() == ["a#", None, "b", "a#"]
    assert calls == ["1"]
    part = column.slice(2, 1)  # fewer rows than different values: only its own values
    assert regex.replace(part, ("#",)).type == column.type
    assert regex.matches(part).to_pylist() == [False]


def test_time_is_linear_where_backtracking_would_never_end() -> None:
    assert Regex("(a+)+$").matches(bodies(b"a" * 100_000 + b"!")).to_pylist() == [False]


@pytest.mark.parametrize("backtracking", [False, True])
@pytest.mark.parametrize(
    ("pattern", "matching", "not_matching"),
    [
        (r"(?<user>\w+)@", "joe@", "@"),
        (r"(?P<user>\w+)@", "joe@", "@"),
        (r"\Qa.b*\E+", "a.b**", "axb"),
        (r"\Qa.b", "a.b", "axb"),
        (r"[\Q^]\E]", "]", "a"),
        (r"^\p{Alpha}\p{Punct}$", "a!", "1!"),
        (r"^\P{Digit}$", "a", "1"),
        (r"^[\p{Upper}_]+$", "A_B", "a"),
        (r"^\p{javaUpperCase}\p{IsLowercase}[\p{javaWhitespace}_]$", "Éé_", "éÉ_"),
        (r"^[\p{L}\p{IsDigit}]\p{javaLetterOrDigit}\p{LC}$", "é٣Ω", "é٣٣"),
        (r"^\h$", "\u00a0", "a"),
        (r"^\H$", "a", "\t"),
        (r"^[\h,]+$", ", \t", "a"),
        (r"^\v$", "\r", "a"),
        (r"^a\Rb$", "a\r\nb", "ab"),
        (r"^\x41\x{42}\u0043\0104\e\cA$", "ABCD\x1b\x01", "ABCE\x1b\x01"),
        (r"^(?u)(?d)a\_\-\/\z", "a_-/", "a"),
        (r"(?iu)É", "É", "x"),
        (r"(?i:a)b", "Ab", "AB"),
        (r"a{2,3}?$", "aa", "a"),
        (r"^[]a]$", "]", "b"),
        (r"^[^]a]$", "b", "]"),
        (r"^[a\]&~|.-]+$", "]&~|.-", "b"),
        (r"^[^a-c^]$", "d", "^"),
        ("a[.]b", "a.b", "axb"),
        ("^(?s).$", "\n", ""),
    ],
)
def test_java_spelling(pattern: str, matching: str, not_matching: str, backtracking: bool) -> None:
    if backtracking and "(?d)" in pattern:
        pattern = pattern.removeprefix("^")
    if backtracking and pattern.startswith("^(?s)"):
        pattern = "(?s)^.$"
    regex = Regex(pattern, backtracking=backtracking)
    assert regex.matches(headers(matching, not_matching)).to_pylist() == [True, False]


@pytest.mark.parametrize("backtracking", [False, True])
def test_properties_of_unicode(backtracking: bool) -> None:
    regex = Regex(r"^\p{Lu}\p{IsGreek}\pL\P{L}$", backtracking=backtracking)
    assert regex.matches(headers("Ãπe1", "aπe1")).to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("pattern", "construct", "matching", "not_matching"),
    [
        ("a(?=b)", "look-ahead (?=…)", "ab", "ac"),
        ("a(?!b)", "look-ahead (?!…)", "ac", "ab"),
        ("(?<=a)b", "look-behind (?<=…)", "ab", "cb"),
        ("(?<!a)b", "look-behind (?<!…)", "cb", "ab"),
        ("(?>a*)b", "an atomic group (?>…)", "aab", "a"),
        (r"(a|b)\1", r"the back-reference \1", "bb", "ab"),
        (r"(?<x>a|b)\k<x>", r"the back-reference \k<x>", "bb", "ab"),
        ("a*+b", "the possessive quantifier *+", "aab", "a"),
        ("a{1,2}+b", "the possessive quantifier {1,2}+", "aab", "a"),
        ("[a-z&&[^bc]]x", "an intersection of classes (&&)", "ax", "bx"),
        ("^[a-c&&b-d]$", "an intersection of classes (&&)", "b", "a"),
        ("^[a[0-9]]$", "a class within a class", "7", "b"),
        (r"^[\Ha]$", r"\H within a character class", "b", "\t"),
        (r"^[\P{Alpha}a]$", r"\P{Alpha} within a character class", "a", "b"),
        (r"a\Z", r"\Z", "a\n", "a\nb"),
        (r"^\p{IsAlphabetic}$", r"\p{IsAlphabetic}", "Ⓐ", "1"),
        (r"^\p{InBasicLatin}\P{InGreek}$", r"\p{InBasicLatin}", "aé", "aω"),
        ("(?=x)x(?i)y", "look-ahead (?=…)", "xY", "XY"),
    ],
)
def test_patterns_outside_of_re2_run_where_backtracking_is_allowed(
    pattern: str, construct: str, matching: str, not_matching: str
) -> None:
    with pytest.raises(NonLinearPattern) as e:
        Regex(pattern)
    assert str(e.value) == f"the regular expression {pattern!r} has {construct}, which cannot be run in linear time"
    for backtracking in (None, True):
        regex = Regex(pattern, backtracking=backtracking)
        assert regex.matches(headers(matching, not_matching)).to_pylist() == [True, False]
    assert [problem.is_note for problem in Regex(pattern, backtracking=None).notes("regex")] == [True]
    assert [*Regex("a+b", backtracking=None).notes("regex")] == []


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"(a)\11", "aa1", True),  # a reference to a missing group is a shorter reference and a digit
        (r"(?=.)x{e}", "x{e}", True),  # a brace is no fuzzy-match limit
        (r"(?=.)x{e}", "y", False),
        (r"a\Z", "a\n", True),
        (r"a\Z", "a\nb", False),
        (r"(?=.)\bé", "é", False),  # outside of ASCII
        (r"(?=.)^\w$", "é", False),
    ],
)
def test_the_engine_that_backtracks_reads_patterns_as_java_does(pattern: str, text: str, matches: bool) -> None:
    assert Regex(pattern, backtracking=None).matches(headers(text)).to_pylist() == [matches]


@pytest.mark.parametrize("pattern", ["[a-c&&b]", "[a[b]]", r"[\Ha]", r"\p{IsGreek}", r"[\P{Lu}]"])
def test_patterns_that_pythons_engine_reads_otherwise_are_refused_for_it(pattern: str) -> None:
    with pytest.raises(ValueError, match="which is not supported"):
        JavaPattern(pattern, "re")


@pytest.mark.parametrize(
    ("pattern", "text", "replaced"),
    [
        ("(?=.)b??", "abc", "-a-b-c"),
        ("(?=.)b?", "abbc", "-a---c"),
        ("(?!x)x*", "axb", "-ax-b-"),
        ("(?<=a)", "aab", "a-a-b"),
        ("(?=(b?))", "ab", "-a-b-"),
        ("(?<!a)b??c?", "bcc", "-b---"),
        ("\\b(?=.)", "a b", "-a- -b"),
    ],
)
def test_empty_matches_are_replaced_as_by_java(pattern: str, text: str, replaced: str) -> None:
    """Expected results come from Java 17's `replaceAll`."""
    regex = Regex(pattern, backtracking=None)
    assert regex.replace(headers(text), ("-",)).to_pylist() == [replaced]


def test_names_of_files_have_the_categories_of_unicode() -> None:
    pattern = compile_name_pattern(r"[\p{L}_]+\p{Nd}\P{L}\.log")
    assert pattern.fullmatch("größe_1-.log")
    assert not pattern.fullmatch("größe_1a.log")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[[:alpha:]]", r"write \\p\{Alpha\}"),
        ("[a-z[:digit:]]", r"write \\p\{Digit\}"),
        (r"\p{javaMirrored}", r"has \\p\{javaMirrored\}, which is not supported; supported are"),
        (r"\p{IsKlingon}", r"supported are"),
        (r"\p{InKlingon}", r"supported are"),
        (r"(?=\p{IsKlingon})", r"supported are"),
        (r"\p{^L}", r"has \\p, which is not supported"),
    ],
)
def test_an_unknown_class_is_refused_with_the_known_ones(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Regex(pattern, backtracking=None)


SLOW = "(a|aa)+(?!a)$"
"""Exponential time on many characters a with another after them."""


def test_a_text_that_takes_too_long_is_reported_with_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._BOUNDED, "timeout", 0.05)
    regex, slow = Regex(SLOW, backtracking=None), b"a" * 60 + b"!"
    for operation in (regex.matches, regex.extract, lambda column: regex.replace(column, ("",))):
        with pytest.raises(RegexTimeout) as e:
            operation(bodies(b"aa", slow, b"b", slow))
        assert e.value.rows == [1, 3]
    column = headers(slow.decode(), None, "aa", slow.decode(), "x")
    with pytest.raises(RegexTimeout) as e:
        regex.matches(column)
    assert e.value.rows == [0, 3]
    assert regex.matches(column.slice(1, 2)).to_pylist() == [None, True]  # not by values outside the slice
    unused = pa.DictionaryArray.from_arrays(pa.array([1, 1]), pa.array([slow.decode(), "aa"]))
    assert regex.matches(unused).to_pylist() == [True, True]


@pytest.mark.parametrize("backtracking", [False, True])
@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "[a", "a**b", "*", "\\", "?&?&&", "(?x)a", "(?U)a", r"\G", r"\X", r"\C"),
        *(r"\x{110000}", r"\ud83d", "(?<n>a", "(?'n'a)", "a{2,1}", r"[\b-", "(?#c)", r"\xg"),
    ],
)
def test_a_pattern_that_means_nothing_or_something_else_is_a_value_error(pattern: str, backtracking: bool) -> None:
    with pytest.raises(ValueError, match=r"^the regular expression ") as e:
        Regex(pattern, backtracking=backtracking)
    assert repr(pattern) in str(e.value)


@given(st.text(st.sampled_from("ab1\\()[]{}?*+|^$.-&<>=!:,QEpPxuhRkdsizZ0é \n"), max_size=12), st.booleans())
def test_any_text_is_a_pattern_or_a_value_error(pattern: str, backtracking: bool) -> None:
    try:
        regex = Regex(pattern, backtracking=backtracking)
    except ValueError:
        return
    regex.transform(bodies(b"ab\xff", "é".encode()), shout)


@pytest.mark.parametrize("backtracking", [False, True])
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$2-$1", "b-a"),
        ("${second}!", "b!"),
        (r"\$1\\", "$1\\"),
        ("$0", "ab"),
        ("$12", "a2"),
        ("", ""),
        (r"\0", "0"),
        ("$3.", "."),
        ("a\nb é", "a\nb é"),
    ],
)
def test_replacements_in_java_spelling(text: str, result: str, backtracking: bool) -> None:
    regex = Regex("(a)(?<second>b)(c)?", backtracking=backtracking)
    assert regex.replace(headers("ab"), regex.parse_replacement(text)).to_pylist() == [result]
    assert regex.replace(bodies(b"\xffab"), regex.parse_replacement(text)).to_pylist() == [b"\xff" + result.encode()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$", "'$' at 0: write \\$"),
        ("a\\", "at 1: write"),
        ("$x", "'$' at 0"),
        ("$4", "uses group 4; the pattern has 3"),
        ("${third}", "names a group 'third'"),
    ],
)
def test_wrong_replacements_are_value_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError) as e:
        Regex("(a)(?<second>b)(c)?").parse_replacement(text)
    assert message in str(e.value)


def test_groups_past_the_ninth_need_backtracking() -> None:
    pattern = "(a)" * 11
    with pytest.raises(ValueError, match="past the ninth"):
        Regex(pattern).parse_replacement("$11")
    regex = Regex(pattern, backtracking=True)
    assert regex.replace(headers("a" * 11), regex.parse_replacement("$11!")).to_pylist() == ["a!"]


@pytest.mark.parametrize("backtracking", [False, True])
@pytest.mark.parametrize(
    ("pattern", "text", "result"),
    [
        (r"user=(\w+)", "user=joe user=ann x", "user=* user=* x"),
        (r"(?i)user=(\w+);?", "USER=joe;x", "USER=*;x"),
        (r"(?<n>a+)(?:b|c)", "aab aad", "*b aad"),
        (r"user=(?:a|b)", "user=a", "*"),
        (r"a(b)\(a\)", "ab(a)", "a*(a)"),
        ("(a)", "a\\0", "*\\0"),
    ],
)
def test_isolated_a_group_stands_for_itself_only(pattern: str, text: str, result: str, backtracking: bool) -> None:
    regex = Regex(pattern, backtracking=backtracking, isolate=True)
    assert regex.replace(headers(text), ("*",)).to_pylist() == [result]
    assert regex.transform(bodies(b"\xff" + text.encode()), lambda _: "*").to_pylist() == [b"\xff" + result.encode()]
    assert regex.replace(bodies(b"\xff" + text.encode()), ("\\0",)).to_pylist() == [
        b"\xff" + result.replace("*", "\\0").encode()
    ]


@pytest.mark.parametrize("pattern", ["(a)(b)", "(?:x(a))?", "(a)|b", "(a)+", "x(?i)(a)", "((a))", "(a){2}"])
@pytest.mark.parametrize("backtracking", [False, True])
def test_a_group_that_cannot_be_isolated_is_refused(pattern: str, backtracking: bool) -> None:
    with pytest.raises(
        ValueError, match=r"the regular expression .*(at most one group|repeats its group|cannot be read)"
    ):
        Regex(pattern, backtracking=backtracking, isolate=True)

"""Interceptor `mask`: hidden and surviving texts, and that nothing else changes."""

import random
import re
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.interceptors import cards, ipv4
from flafka.interceptors.mask import MaskConfig, MaskInterceptor
from flafka.plugins import Batch, Event, Origin
from flafka.plugins.java.regex import Regex

KEY = "a secret of some length"
EMAIL = r"[\w.%+-]+(?:@|%40)[\w.]+\.[a-z]+"


def make(**properties: str) -> MaskInterceptor:
    config, problems = MaskConfig.parse({name.replace("__", "."): value for name, value in properties.items()})
    assert problems == []
    assert config is not None
    return MaskInterceptor(config)


def masked(text: str | bytes, **properties: str) -> str | bytes:
    """Return one masked body, in the type it was given."""
    body = text.encode() if isinstance(text, str) else text
    (event,) = make(**properties).intercept(Batch.of([Event(body, {})]))
    return event.body.decode() if isinstance(text, str) else event.body


def luhn(digits: str) -> str:
    """Return the digits with the check digit of an independent implementation."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        doubled = int(digit) * 2 if position % 2 == 0 else int(digit)
        total += doubled - 9 if doubled > 9 else doubled
    return digits + str(-total % 10)


# --- cards


def test_a_number_is_hidden_exactly_if_it_passes_the_check() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    cards = [luhn("4" + "".join(chance.choices("0123456789", k=chance.randint(11, 17)))) for _ in range(2000)]
    invalid = [card[:-1] + str((int(card[-1]) + chance.randint(1, 9)) % 10) for card in cards]
    interceptor = make(patterns="card")
    assert [e.body for e in interceptor.intercept(Batch.of(Event(card.encode()) for card in cards))] == [
        b"***"
    ] * 2000
    untouched = Batch.of(Event(card.encode()) for card in invalid)
    assert interceptor.intercept(untouched) is untouched


# --- any content


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.lists(
                st.sampled_from(
                    [b"4111", b" ", b"-", b"1111", b"joe@a.de", b"10.1.2.3", b"\xff", b"\xc3", b"\xa9", b"4", b"%20"]
                ),
                max_size=12,
            ).map(b"".join),
        ),
        max_size=6,
    ),
    st.sampled_from(["redact", "partial", "hash"]),
)
def test_any_content_passes_and_bytes_that_are_not_utf8_stay(bodies: list[bytes], action: str) -> None:
    interceptor = make(patterns="card email ipv4", action=action, key=KEY)
    origin = Origin.of_record("t", 0, 1, 0, len(bodies))
    batch = interceptor.intercept(Batch.of([Event(body, {}) for body in bodies], origin))
    assert batch.origin is origin
    for before, after in zip(bodies, batch, strict=True):
        assert list(interceptor.intercept(Batch.of([Event(before, {})]))) == [after]
        assert odd_bytes(before) == odd_bytes(after.body)


def odd_bytes(body: bytes) -> list[str]:
    return re.findall("[\udc80-\udcff]", body.decode("utf-8", "surrogateescape"))


# --- options


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        ({}, "patterns", "is required: patterns = card email ipv4"),
        ({"patterns": "crad"}, "patterns", "there is no built-in pattern 'crad', did you mean 'card'?"),
        ({"patterns": "card", "action": "hash"}, "key", "is required with action = hash"),
        ({"patterns": "card", "action": "drop"}, "action", "must be 'redact', 'partial' or 'hash', not 'drop'"),
        ({"patterns": "card", "keep": "-1"}, "keep", "must be at least 0, not '-1'"),
        (
            {"patterns.x": "a++", "allowBacktracking": "false"},
            "patterns.x",
            "the regular expression 'a++' has the possessive quantifier",
        ),
        ({"patterns.x": "a*"}, "patterns.x", "the regular expression 'a*' matches the empty text"),
        ({"patterns.x": "(a)(b)"}, "patterns.x", "may have at most one group"),
        ({"patterns": "card", "on": ""}, "on", "must have a length of at least 1"),
    ],
)
def test_wrong_options_are_refused(properties: dict[str, str], option: str, message: str) -> None:
    config, problems = MaskConfig.parse(properties)
    assert config is None
    assert [problem.option for problem in problems] == [option]
    assert message in problems[0].message


def test_the_key_is_shown_nowhere() -> None:
    config, problems = MaskConfig.parse({"patterns": "card", "action": "hash", "key": KEY, "keep": "x"})
    assert config is None
    assert KEY not in str(problems)
    interceptor = make(patterns="card", action="hash", key=KEY)
    assert KEY not in repr(interceptor.config) + str(interceptor.config) + repr(interceptor)
    _, problems = MaskConfig.parse({"patterns": "card", "action": "hash", "key": ""})
    assert [problem.option for problem in problems] == ["key"]


@given(
    st.lists(st.text("0129..x \u00e9", max_size=40).map(str.encode) | st.just(b"\xff1.2.3.4\xff"), max_size=6),
    st.integers(0, 2),
    st.sampled_from(["redact", "partial", "hash"]),
)
def test_addresses_found_by_their_dots_are_those_of_the_regular_expression(bodies, skipped, action):
    interceptor = make(patterns="ipv4", action=action, **({"key": KEY} if action == "hash" else {}))
    column = pa.array([b"10.0.0.1"] * skipped + bodies, pa.binary())[skipped:]
    expected = Regex(ipv4.PATTERN).transform(column, interceptor._substitute).to_pylist()
    for few in (ipv4.MAX_ONE_BY_ONE_BYTES, 0):
        with mock.patch.object(ipv4, "MAX_ONE_BY_ONE_BYTES", few):
            batch = interceptor.intercept(Batch.of_columns(column, {}))
        assert batch.bodies.to_pylist() == expected
        batch.records.validate(full=True)


@pytest.mark.parametrize("text", ["a@b.de", "a%40b.de", "a%4", "%", "%40", "@", "", "x a%40b.de, c@d.org"])
def test_rows_without_an_at_sign_are_skipped(text):
    bodies = ["nothing", text, "", "e@f.com", "1%"]
    column = pa.array([body.encode() for body in bodies], pa.binary())
    batch = make(patterns="email").intercept(Batch.of_columns(column, {}))
    assert batch.bodies.to_pylist() == [masked(body, patterns__email=EMAIL).encode() for body in bodies]


GROUPINGS = [
    "1",
    *map(str, range(13, 20)),
    "4-4-4-4",
    "4-4-4-1",
    "4-4-4-4-3",
    "4-4-5",
    "4-3-3-3",
    "4-6-4",
    "4-6-5",
    "6-13",
]


@st.composite
def numbers(draw):
    """Draw a number that mostly passes the check, in groups as on cards, with separators between them."""
    lengths = list(map(int, draw(st.sampled_from(GROUPINGS)).split("-")))
    first = draw(st.sampled_from(["4", "1", "22", "28", "9", "0"]))
    digits = first + draw(st.text("0123456789", min_size=20, max_size=20))
    number = luhn(digits[: sum(lengths) - 1]) if draw(st.integers(0, 4)) else digits[: sum(lengths)]
    ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
    between = draw(st.sampled_from([" ", "-", "%20", " - ", "\u2011", ".", "x", "\xa0\t", "%", ":"]))
    return between.join(number[end - length : end] for length, end in zip(lengths, ends, strict=True))


@given(
    st.lists(
        st.lists(
            st.one_of(numbers(), st.sampled_from(["", " ", "%20", "%", "2", "20", "at=", "7", "é", "\udcff", "%2"]))
        )
        .map("".join)
        .map(lambda text: text.encode("utf-8", "surrogateescape")),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2),
)
def test_cards_found_by_their_digits_are_those_of_the_regular_expression(bodies, skipped):
    column = pa.array([b"4111111111111111"] * skipped + bodies, pa.binary())[skipped:]
    expected = Regex(cards.PATTERN).transform(column, lambda digits: cards.mask_cards(digits, lambda _: "***"))
    for few in (cards.SMALL_COLUMN_BYTES, 0):
        with mock.patch.object(cards, "SMALL_COLUMN_BYTES", few):
            batch = make(patterns="card").intercept(Batch.of_columns(column, {}))
        assert batch.bodies.to_pylist() == expected.to_pylist()

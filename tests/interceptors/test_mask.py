"""The interceptor `mask`: what it hides, what survives, and that nothing else changes."""

import hashlib
import hmac
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
from flafka.plugins.shared.regex import Regex

KEY = "a secret of some length"
EMAIL = r"[\w.%+-]+(?:@|%40)[\w.]+\.[a-z]+"


def make(**properties: str) -> MaskInterceptor:
    config, problems = MaskConfig.parse({name.replace("__", "."): value for name, value in properties.items()})
    assert problems == []
    assert config is not None
    return MaskInterceptor(config)


def masked(text: str | bytes, **properties: str) -> str | bytes:
    """What becomes of one body, in the type it was given."""
    body = text.encode() if isinstance(text, str) else text
    (event,) = make(**properties).intercept(Batch.of([Event(body, {})]))
    return event.body.decode() if isinstance(text, str) else event.body


def luhn(digits: str) -> str:
    """The digits with the check digit that makes them pass: an implementation of its own."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * 2 if place % 2 == 0 else int(digit)
        total += doubled - 9 if doubled > 9 else doubled
    return digits + str(-total % 10)


# --- cards

CARDS = [
    "4111111111111111",  # Visa
    "4222222222222",  # Visa, 13 digits
    "5555555555554444",  # Mastercard
    "2223003122003222",  # Mastercard, new numbers
    "378282246310005",  # American Express
    "30569309025904",  # Diners
    "6011111111111117",  # Discover
    "3530111333300000",  # JCB
    "6304000000000000",  # Maestro
    "6212345678901234569",  # UnionPay, 19 digits
    "135410014004955",  # UATP
]


@pytest.mark.parametrize("card", CARDS)
def test_cards_in_one_piece_are_hidden_wherever_they_stand(card: str) -> None:
    for before, after in (("", ""), ("pan=", ";"), ("id", "x"), ("a 12 ", " 12"), ("1234 ", " 1234"), ("-", ".")):
        assert masked(f"{before}{card}{after}", patterns="card") == f"{before}***{after}"


@pytest.mark.parametrize(
    "card",
    ["4111 1111 1111 1111", "4111-1111-1111-1111", "3782 822463 10005", "3056-930902-5904", "4222 2222 2222 2"]
    + ["4222 222 222 222", "4222 2222 22222", "621234 5678901234569", "6212 3456 7890 1234 569", "3782 8224 6310 005"]
    + [f"4111{s}1111{s}1111{s}1111" for s in (".", "_", "/", "+", "%20", "\t", "  ", " - ", "\u00a0", "\u2011")]
    + [f"4111{s}1111{s}1111{s}1111" for s in ("\u2013", "\u2212", "\u00ad", "\u200b", "\u2009", "\u3000", "\ufeff")]
    + ["4111 1111-1111.1111", "3056%20930902%205904", "3782%20822463%2010005", "4222%20222%20222%20222"],
)
def test_cards_in_printed_groups_are_hidden(card: str) -> None:
    for before, after in (
        ("", ""),
        ("pan ", "."),
        ("x", "y"),
        ("2026-11-21 ", " 123"),
        ("1234 ", ""),
        ("", " 12/27"),
    ):
        assert masked(f"{before}{card}{after}", patterns="card") == f"{before}***{after}"


def test_every_card_of_a_body_is_hidden_and_its_surroundings_kept() -> None:
    text = "4111 1111 1111 1111 5555555555554444,378282246310005 and 4111111111111112"
    assert masked(text, patterns="card") == "*** ***,*** and 4111111111111112"


@pytest.mark.parametrize(
    "text",
    [
        "4111111111111112",  # check digit
        "4111 1111 1111 1112",
        "0000000000000000",
        "1732158331125",  # milliseconds; passes the check
        "1732158331123459",  # microseconds; passes the check
        "20261121031136",  # yyyyMMddHHmmss; passes the check
        "41111111111111110000",  # 20 digits
        "411111111111",  # 12 digits
        "41 11 11 11 11 11 11 11",  # grouped as no card is
        "4111:1111:1111:1111",
        "4111\n1111\n1111\n1111",
        "10132153 290696 3084719 46828483 16683 0 25195 0",
        "550e8400-e29b-41d4-a716-446655440000",
        "٤١١١١١١١١١١١١١١١",  # other digits than 0 to 9
    ],
)
def test_ordinary_numbers_survive(text: str) -> None:
    assert masked(text, patterns="card") == text


def test_a_number_is_hidden_exactly_if_it_passes_the_check() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    cards = [luhn("4" + "".join(chance.choices("0123456789", k=chance.randint(11, 17)))) for _ in range(2000)]
    others = [card[:-1] + str((int(card[-1]) + chance.randint(1, 9)) % 10) for card in cards]
    interceptor = make(patterns="card")
    assert [e.body for e in interceptor.intercept(Batch.of(Event(card.encode()) for card in cards))] == [
        b"***"
    ] * 2000
    untouched = Batch.of(Event(other.encode()) for other in others)
    assert interceptor.intercept(untouched) is untouched


def test_the_same_card_has_the_same_hash_in_every_spelling() -> None:
    hashes = {
        masked(card, patterns="card", action="hash", key=KEY)
        for card in ("4111111111111111", "4111 1111 1111 1111", "4111-1111-1111-1111", "4111%201111%201111%201111")
    }
    assert hashes == {hmac.new(KEY.encode(), b"4111111111111111", hashlib.sha256).hexdigest()[:16]}
    assert masked("4111111111111111", patterns="card", action="hash", key="other") not in hashes


def test_partial_keeps_the_last_digits() -> None:
    assert masked("x 4111 1111 1111 123 4", patterns="card", action="partial") == "x 4111 1111 1111 123 4"
    assert masked("x 4222 2222 2222 2 y", patterns="card", action="partial") == "x ***2222 y"
    assert masked("4111-1111-1111-1111", patterns="card", action="partial", keep="6", replacement="#") == "#111111"
    assert masked("4111111111111111", patterns="card", action="partial", keep="0") == "***"
    assert masked("4111111111111111", patterns="card", action="partial", keep="99") == "***11111111"


# --- addresses


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("from joe@example.com to", "from *** to"),
        ("<JOE.Doe+tag@Mail.Example.COM>,", "<***>,"),
        ("o'brien_1%x-y@a-b.co.uk.", "***."),
        ("q=joe%40example.com&x", "q=***&x"),
        ("jörg@müller.de", "***"),
        ("иван@пример.рф!", "***!"),
        ("x@xn--e1afmkfd.xn--p1ai;", "***;"),
        ("'joe@example.com'", "'***'"),
        ("joe@a.io,ann@b.io", "***,***"),
        ("12joe@1.2.example.org:25", "***:25"),
        ("git@github.com:a/b", "***:a/b"),
        ("root@localhost a@b @x.com joe@ joe@.com", "root@localhost a@b @x.com joe@ joe@.com"),
        ("joe@10.1.2.3", "joe@10.1.2.3"),
    ],
)
def test_email(text: str, result: str) -> None:
    assert masked(text, patterns="email") == result


def test_the_same_address_has_the_same_hash_in_any_case() -> None:
    texts = ("joe@example.com", "Joe@Example.COM")
    assert len({masked(text, patterns="email", action="hash", key=KEY) for text in texts}) == 1


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("from 10.1.2.3 port", "from *** port"),
        ("10.1.2.3:8080", "***:8080"),
        ("http://192.168.100.255/x", "http://***/x"),
        ("ip10.1.2.3x", "ip***x"),
        ("::ffff:010.001.002.003", "::ffff:***"),
        ("[1.2.3.4],5.6.7.8/16", "[***],***/16"),
        ("10.1.2 1.2.3. 10-1-2-3 fe80::1 03:11:31.123", "10.1.2 1.2.3. 10-1-2-3 fe80::1 03:11:31.123"),
    ],
)
def test_ipv4(text: str, result: str) -> None:
    assert masked(text, patterns="ipv4") == result


# --- patterns of one's own


def test_own_patterns_hide_the_match_or_its_group() -> None:
    assert masked("user=joe uid=7", patterns__u=r"user=(\w+)", patterns__i=r"uid=\d+") == "user=*** ***"
    assert masked("user=joe", patterns__u=r"user=(\w+)", action="partial", keep="1") == "user=***e"
    hashed = masked("user=joe user=ann user=joe", patterns__u=r"user=(\w+)", action="hash", key=KEY)
    assert re.fullmatch(r"user=([0-9a-f]{16}) user=(?!\1)[0-9a-f]{16} user=\1", str(hashed))
    assert masked("ab ac", patterns__x="a(?=b)") == "***b ac"
    assert masked("x joe@a.de y1", patterns="email", patterns__x=r"y\d", replacement=r"\1$1") == r"x \1$1 \1$1"


def test_headers_are_masked_where_told() -> None:
    events = [
        Event(b"10.0.0.1", {"client": "10.0.0.1", "via": "10.0.0.2", "body": "10.0.0.3"}),
        Event(b"x", {"client": "unknown"}),
        Event(b"y", {}),
    ]
    interceptor = make(patterns="ipv4", on="client via")
    assert list(interceptor.intercept(Batch.of(events))) == [
        Event(b"10.0.0.1", {"client": "***", "via": "***", "body": "10.0.0.3"}),
        *events[1:],
    ]
    both = make(patterns="ipv4", on="body client")
    assert next(iter(both.intercept(Batch.of(events)))).body == b"***"
    assert (interceptor.metrics.get("EventMaskedCount"), both.metrics.get("EventMaskedCount")) == (1, 1)


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


def test_no_mask_reaches_across_a_byte_that_is_not_utf8() -> None:
    body = b"4111\xff1111 1111 1111 j\xf6rg@a.de 10.1.\xff2.3"
    assert masked(body, patterns="card email ipv4") == b"4111\xff1111 1111 1111 j\xf6*** 10.1.\xff2.3"


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
def test_what_is_wrong_is_said(properties: dict[str, str], option: str, message: str) -> None:
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
    for few in (ipv4.FEW_BYTES, 0):
        with mock.patch.object(ipv4, "FEW_BYTES", few):
            batch = interceptor.intercept(Batch.of_columns(column, {}))
        assert batch.bodies.to_pylist() == expected
        batch.records.validate(full=True)


@pytest.mark.parametrize("text", ["a@b.de", "a%40b.de", "a%4", "%", "%40", "@", "", "x a%40b.de, c@d.org"])
def test_rows_without_a_sign_of_an_email_address_are_passed_over(text):
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
    """A number that mostly passes the check, in groups as on cards, with separators between them."""
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
    batch = make(patterns="card").intercept(Batch.of_columns(column, {}))
    expected = Regex(cards.PATTERN).transform(column, lambda digits: cards.masked(digits, lambda _: "***"))
    assert batch.bodies.to_pylist() == expected.to_pylist()

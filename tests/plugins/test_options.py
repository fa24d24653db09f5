"""Options: read from text, all errors at once, and secrets in none of them."""

from types import MappingProxyType
from typing import Literal, Self

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins import Config, Option, Problem, option


class Everything(Config):
    text: str = option("x", name="someText", description="a text", min_length=1)
    number: int = option(5, name="batchSize", unit="events", ge=1, le=10, description="a number")
    rate: float = option(1.5, name="rate", unit="s", gt=0, lt=100, description="a fraction")
    flag: bool = option(False, name="flag", description="a switch")
    kind: Literal["a", "b"] = option("a", name="kind", description="a choice")
    words: list[str] = option(["one"], name="words", description="some words")
    headers: dict[str, str] = option({}, name="headers.", description="headers")
    maybe: int | None = option(None, name="maybe", description="a number or nothing")
    password: pydantic.SecretStr | None = option(None, name="password", min_length=4, description="a secret")
    needed: str = option(name="needed", pattern="^[a-z]+$", description="must be given")

    @pydantic.model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.flag and self.kind == "b":
            raise ValueError("flag and kind = b exclude each other")
        return self


class Minimal(Config):
    key: pydantic.SecretStr = option(name="key", min_length=100, description="a secret")


def parse(**properties: str) -> Everything:
    config, problems = Everything.parse({"needed": "n"} | properties)
    assert problems == []
    assert config is not None
    return config


def problems(**properties: str) -> list[Problem]:
    config, found = Everything.parse({"needed": "n"} | properties)
    assert config is None
    return found


def test_text_becomes_what_the_field_wants() -> None:
    config, found = Everything.parse(
        {
            "someText": " a b ",
            "batchSize": "+7",
            "rate": "2",
            "flag": "TRUE",
            "kind": "b",
            "words": " x  y\tz ",
            "headers.a": "1",
            "headers.b.c": "2",
            "maybe": "-3",
            "password": "hush!",
            "needed": "abc",
        }
        | {"flag": "False"}
    )
    assert found == []
    assert config is not None
    assert config.model_dump(exclude={"password"}) == {
        "text": " a b ",
        "number": 7,
        "rate": 2.0,
        "flag": False,
        "kind": "b",
        "words": ["x", "y", "z"],
        "headers": {"a": "1", "b.c": "2"},
        "maybe": -3,
        "needed": "abc",
    }
    assert config.password is not None
    assert config.password.get_secret_value() == "hush!"


def test_defaults_are_each_configs_own() -> None:
    first, second = parse(), parse()
    first.words.append("two")
    first.headers["a"] = "b"
    assert (second.words, second.headers, second.number, second.maybe) == (["one"], {}, 5, None)


@pytest.mark.parametrize(
    ("properties", "option_name", "message"),
    [
        ({"batchSize": "0"}, "batchSize", "must be at least 1, not '0'"),
        ({"batchSize": "11"}, "batchSize", "must be at most 10, not '11'"),
        ({"batchSize": "1_0"}, "batchSize", "must be a whole number, not '1_0'"),
        ({"batchSize": "٣"}, "batchSize", "must be a whole number, not '٣'"),
        ({"batchSize": ""}, "batchSize", "must be a whole number, not ''"),
        ({"batchSize": "5.0"}, "batchSize", "must be a whole number, not '5.0'"),
        ({"batchSize": "9" * 5000}, "batchSize", f"must be a smaller number, not '{'9' * 59}…'"),
        ({"maybe": "x"}, "maybe", "must be a whole number, not 'x'"),
        ({"rate": "0"}, "rate", "must be greater than 0.0, not '0'"),
        ({"rate": "100"}, "rate", "must be less than 100.0, not '100'"),
        ({"rate": "fast"}, "rate", "must be a number, not 'fast'"),
        ({"flag": "yes"}, "flag", "must be true or false, not 'yes'"),
        ({"kind": "c"}, "kind", "must be 'a' or 'b', not 'c'"),
        ({"someText": ""}, "someText", "must have at least 1 characters, not ''"),
        ({"needed": "A" * 99}, "needed", f"must match ^[a-z]+$, not '{'A' * 59}…'"),
        ({"flag": "true", "kind": "b"}, "", "flag and kind = b exclude each other"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_file(
    properties: dict[str, str], option_name: str, message: str
) -> None:
    assert problems(**properties) == [Problem(option_name, message)]


def test_everything_wrong_is_said_at_once() -> None:
    config, found = Everything.parse({"batchSize": "x", "flag": "1", "bathcSize": "3", "kind": "z", "zzz": ""})
    assert config is None
    assert {(problem.option, problem.unknown) for problem in found} == {
        ("batchSize", False),
        ("flag", False),
        ("bathcSize", True),
        ("kind", False),
        ("zzz", True),
        ("needed", False),
    }
    assert Problem("bathcSize", "unknown option 'bathcSize', did you mean 'batchSize'?", unknown=True) in found
    assert Problem("zzz", "unknown option 'zzz'", unknown=True) in found
    assert Problem("needed", "is required") in found


@pytest.mark.parametrize("name", ["headers", "headers.", "number", "text", "BATCHSIZE", "needed."])
def test_only_the_declared_spelling_is_known(name: str) -> None:
    config, found = Everything.parse({"needed": "n", name: "5"})
    assert config is not None
    assert [(problem.option, problem.unknown) for problem in found] == [(name, True)]


@given(
    st.dictionaries(st.sampled_from([*(o.name for o in Everything.options()), "headers.x", "?"]), st.text(max_size=6))
)
def test_no_text_raises(properties: dict[str, str]) -> None:
    config, found = Everything.parse(properties)
    assert (config is None) == any(not problem.unknown for problem in found)
    assert {problem.option for problem in found} <= {"", "needed", *properties}


def test_secrets_are_in_no_message_and_no_repr() -> None:
    secret = "tell-nobody"
    for config in (parse(password=secret), parse(password=secret).model_copy()):
        for shown in (repr(config), str(config), config.model_dump_json(), f"{config.model_dump()}"):
            assert secret not in shown
    for found in (
        problems(password=secret, batchSize="x"),
        problems(password=secret, flag="true", kind="b"),
        problems(password=secret[:3]),
        Minimal.parse({"key": secret})[1],
        Minimal.parse({"key": secret, "kye": "x"})[1],
    ):
        assert found
        assert secret[:3] not in str(found)


def test_a_declaration_tells_what_documentation_needs() -> None:
    options = {o.name: o for o in Everything.options()}
    assert list(options)[:2] == ["someText", "batchSize"]
    assert options["batchSize"] == Option(
        name="batchSize",
        field="number",
        kind="integer",
        default=5,
        unit="events",
        bounds="≥ 1, ≤ 10",
        description="a number",
        secret=False,
    )
    assert [(o.kind, o.bounds) for o in options.values()] == [
        ("text", ""),
        ("integer", "≥ 1, ≤ 10"),
        ("number", "> 0, < 100"),
        ("true or false", ""),
        ("a | b", ""),
        ("words", ""),
        ("properties", ""),
        ("integer", ""),
        ("secret", ""),
        ("text", "matches ^[a-z]+$"),
    ]
    assert [o.name for o in options.values() if o.secret] == ["password"]
    assert [o.name for o in options.values() if o.required] == ["needed"]
    assert [o.name for o in options.values() if o.is_prefix] == ["headers."]
    assert options["words"].default == ["one"]


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError):
        parse().number = 6


def test_options_by_their_older_names():
    class Renamed(Config):
        older = MappingProxyType({"kafka.topic": "topic"})
        topic: str = option(name="kafka.topic", description="the topic")
        old_topic: str | None = option(None, name="topic", description="its older name")

    assert [Renamed.parse({"topic": "a"})[0].topic, Renamed.parse({"topic": "a", "kafka.topic": "b"})[0].topic] == [
        "a",
        "b",
    ]

"""Options: read from text, all errors at once, and secrets in none of them."""

import dataclasses
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Literal, Self

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins import Components, Config, Option, Problem, cross_field_validator, option, with_default

OURS = ("flafka",)


def all_config_classes(base: type[Config] = Config) -> Iterator[type[Config]]:
    """Return the option classes of all built-in components, and of the agent."""
    if base is Config:
        Components()
        importlib.import_module("flafka.agent.config.sinkgroups")
    for cls in base.__subclasses__():
        # plugins.options creates classes that check some options of another one.
        if cls.__module__.partition(".")[0] in OURS and cls.__module__ != "flafka.plugins.options":
            yield cls
            yield from all_config_classes(cls)


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

    @cross_field_validator("kind", "flag")
    def _not_both(self) -> None:
        if self.flag and self.kind == "b":
            raise ValueError("must not be b with flag = true")

    @pydantic.model_validator(mode="after")
    def _check_difference(self) -> Self:
        if self.text == self.needed:
            raise ValueError("someText and needed must differ")
        return self


class Minimal(Config):
    key: pydantic.SecretStr = option(name="key", min_length=100, description="a secret")


def parse(**properties: str) -> Everything:
    config, problems = Everything.parse({"needed": "n"} | properties)
    assert problems == []
    assert config is not None
    return config


def problems(**properties: str) -> list[Problem]:
    config, errors = Everything.parse({"needed": "n"} | properties)
    assert config is None
    return errors


def test_text_becomes_the_type_of_the_field() -> None:
    config, errors = Everything.parse(
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
    assert errors == []
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
        ({"flag": "true", "kind": "b"}, "kind", "must not be b with flag = true"),
        ({"someText": "n"}, "", "someText and needed must differ"),
    ],
)
def test_errors_have_the_words_of_the_file(properties: dict[str, str], option_name: str, message: str) -> None:
    assert problems(**properties) == [Problem(option_name, message)]


@pytest.mark.parametrize(("text", "number"), [("2.", 2.0), (".5", 0.5), ("1e1", 10.0), ("+1.5f", 1.5), ("3D", 3.0)])
def test_numbers_are_spelled_as_in_java(text: str, number: float) -> None:
    assert parse(rate=text).rate == number


@pytest.mark.parametrize("text", ["1_0", "inf", "nan", "Infinity", "0x1p3", "\u0663", "1 0", "f", "1e"])
def test_numbers_without_digits_are_refused(text: str) -> None:
    assert problems(rate=text) == [Problem("rate", f"must be a number, not {text!r}")]


def test_all_errors_are_reported_at_once() -> None:
    config, errors = Everything.parse({"batchSize": "x", "flag": "1", "bathcSize": "3", "kind": "z", "zzz": ""})
    assert config is None
    assert {(problem.option, problem.is_unknown_option) for problem in errors} == {
        ("batchSize", False),
        ("flag", False),
        ("bathcSize", True),
        ("kind", False),
        ("zzz", True),
        ("needed", False),
    }
    text = "unknown option 'bathcSize', did you mean 'batchSize'?"
    assert Problem("bathcSize", text, is_unknown_option=True) in errors
    assert Problem("zzz", "unknown option 'zzz'", is_unknown_option=True) in errors
    assert Problem("needed", "is required") in errors


@pytest.mark.parametrize("name", ["headers", "headers.", "number", "text", "BATCHSIZE", "needed."])
def test_only_the_declared_spelling_is_known(name: str) -> None:
    config, errors = Everything.parse({"needed": "n", name: "5"})
    assert config is not None
    assert [(problem.option, problem.is_unknown_option) for problem in errors] == [(name, True)]


@given(
    st.dictionaries(st.sampled_from([*(o.name for o in Everything.options()), "headers.x", "?"]), st.text(max_size=6))
)
def test_no_text_raises(properties: dict[str, str]) -> None:
    config, errors = Everything.parse(properties)
    assert (config is None) == any(not problem.is_unknown_option for problem in errors)
    assert {problem.option for problem in errors} <= {"", "needed", *properties}


def test_secrets_are_in_no_message_and_no_repr() -> None:
    secret = "tell-nobody"
    for config in (parse(password=secret), parse(password=secret).model_copy()):
        for text in (repr(config), str(config), config.model_dump_json(), f"{config.model_dump()}"):
            assert secret not in text
    for errors in (
        problems(password=secret, batchSize="x"),
        problems(password=secret, flag="true", kind="b"),
        problems(password=secret[:3]),
        Minimal.parse({"key": secret})[1],
        Minimal.parse({"key": secret, "kye": "x"})[1],
    ):
        assert errors
        assert secret[:3] not in str(errors)


def test_a_declaration_has_the_facts_of_the_documentation() -> None:
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
        is_secret=False,
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
    assert [o.name for o in options.values() if o.is_secret] == ["password"]
    assert [o.name for o in options.values() if o.is_required] == ["needed"]
    assert [o.name for o in options.values() if o.is_prefix] == ["headers."]
    assert options["words"].default == ["one"]


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError):
        parse().number = 6


def test_options_by_their_deprecated_aliases():
    class Renamed(Config):
        deprecated_aliases = MappingProxyType({"kafka.topic": "topic", "count": "number"})
        topic: str = option(name="kafka.topic", description="the topic")
        count: int = option(1, name="count", description="a number")

    for properties, expected in [
        ({"topic": "a"}, ("a", 1)),
        ({"topic": "a", "kafka.topic": "b", "number": "5"}, ("b", 5)),
        ({"topic": "a", "count": "2", "number": "x"}, ("a", 2)),
    ]:
        config, errors = Renamed.parse(properties)
        assert errors == []
        assert (config.topic, config.count) == expected
    assert Renamed.parse({"topic": "a", "number": "x"})[1] == [
        Problem("number", "must be a whole number, not 'x'")  # by the name in the file
    ]
    assert Renamed.parse({"topic": "a", "numbre": "x"})[1] == [
        Problem("numbre", "unknown option 'numbre', did you mean 'number'?", is_unknown_option=True)
    ]


def test_all_cross_field_validators_run_in_any_order_of_fields_and_beside_other_errors() -> None:
    def make(*order: str) -> type[Config]:
        annotations = {"low": int, "high": int, "ports": dict[str, str], "other": int}
        declared = {
            "low": option(1, name="low", description="a number"),
            "high": option(9, name="high", description="a number"),
            "ports": option({}, name="port.", description="numbers by name"),
            "other": option(name="other", description="a number"),
        }

        @cross_field_validator("low", "high")
        def _ordered(self: Any) -> None:
            if self.low > self.high:
                raise ValueError(f"must be at most high, {self.high}")

        @cross_field_validator("ports", "low")
        def _all_above(self: Any) -> None:
            for name, port in self.ports.items():
                if int(port) < self.low:
                    raise ValueError(f"{name}: must be at least low, {self.low}")

        fields = {name: declared[name] for name in order}
        body = {"__annotations__": {name: annotations[name] for name in order}, "__module__": __name__}
        return type("Made", (Config,), {**body, **fields, "_ordered": _ordered, "_all_above": _all_above})

    for order in itertools.permutations(("low", "high", "ports", "other")):
        cls = make(*order)
        assert cls.parse({"low": "3", "port.a": "4", "other": "1"})[1] == []
        cross_field = [Problem("low", "must be at most high, 2"), Problem("port.a", "must be at least low, 3")]
        for other, wrong in [("1", []), ("x", [Problem("other", "must be a whole number, not 'x'")])]:
            config, errors = cls.parse({"low": "3", "high": "2", "port.a": "1", "other": other})
            assert config is None
            assert sorted(errors, key=str) == sorted([*cross_field, *wrong], key=str)
        # No message about unreadable values, nor about values that are compared with them.
        assert sorted(problem.option for problem in cls.parse({"low": "x", "port.a": "1"})[1]) == ["low", "other"]
        assert [problem.option for problem in cls.parse({"high": "x", "port.a": "0", "other": "1"})[1]] == [
            "high",
            "port.a",
        ]
        with pytest.raises(pydantic.ValidationError, match="must be at most high, 2"):
            cls.model_validate({"low": "3", "high": "2", "other": "1"})


def test_no_check_of_one_option_sees_another() -> None:
    # A validator that takes pydantic's info can read only the fields declared before its own: moving a field would
    # turn its check off. A check of several options is a `cross_field_validator`.
    for config_class in all_config_classes():
        for name, decorator in config_class.__pydantic_decorators__.field_validators.items():
            if name != "_parse_text":
                parameters = inspect.signature(decorator.func).parameters.values()
                names = [
                    parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
                ]
                assert len(names) == 1, f"{config_class.__name__}.{name} must be a cross_field_validator"


def test_descriptions_are_sentences_of_one_form() -> None:
    for config_class in all_config_classes():
        for declared in config_class.options():
            if declared.without_effect:  # a reason in brackets
                assert not declared.description.endswith("."), (config_class, declared.name)
            else:
                assert re.fullmatch(r"[A-Z`].*[.]", declared.description), (
                    config_class,
                    declared.name,
                    declared.description,
                )


def test_an_option_declared_again_with_another_default() -> None:
    class Other(Everything):
        number: int = with_default(Everything, "number", 7)
        maybe: int = with_default(Everything, "maybe")

    before = {o.name: o for o in Everything.options()}
    options = {o.name: o for o in Other.options()}
    assert options["batchSize"] == dataclasses.replace(before["batchSize"], default=7)
    assert options["maybe"] == dataclasses.replace(before["maybe"], default=options["maybe"].default)
    assert options["maybe"].is_required
    assert Other.parse({"needed": "n", "batchSize": "11"})[1] == [
        Problem("batchSize", "must be at most 10, not '11'"),
        Problem("maybe", "is required"),
    ]
    assert parse().number == 5


def test_options_without_effect() -> None:
    class Old(Config):
        options_without_effect = MappingProxyType({"threads": "one thread is enough"})
        quorum: str | None = option(None, name="quorum", without_effect=True, description="ZooKeeper is not asked")

    expected = {"threads": "one thread is enough", "quorum": "ZooKeeper is not asked"}
    assert Old.list_options_without_effect() == expected
    config, errors = Old.parse({"threads": "many", "quorum": "q"})
    assert (config, errors) == (Old(quorum="q"), [])

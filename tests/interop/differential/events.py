# ruff: noqa: E501  # a list of what is drawn, or a reason, reads best in one line
"""Events through chains of interceptors, and to the channels that selectors choose."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties
from flafka.agent.config.properties import JAVA_BLANKS, Property
from flafka.agent.config.selectors import SelectorReader
from flafka.agent.runner.local.routing import Selector
from flafka.agent.topology import ConfigLocation
from flafka.plugins import Batch, Event, Origin
from flafka.plugins.java.regex import compile_backtracking
from tests.conformance.adapters import components
from tests.interop.differential.drawing import event, header, mutated, sometimes
from tests.interop.differential.search import Answers, Case, Known, Operation, Settings, shrunk

_ATOMS = ("a", "e", "o", "[a-z]+", r"\d+", r"\d{1,3}", r"\w+", r"\s+", r"\S+", ".", ".*", ".+?", "[^ ]*", r"\[", r"\.", ":", " ",
          r"\b", "^", "$", "(?i)INFO", "error|fail", r"\d{4}-\d\d-\d\d", r"[A-Z]\w*", r"\p{Alpha}+", r"\h", "[0-9a-f]{2,}", "x?", "ä", "é")  # fmt: skip
_BACKTRACKING = ("(?=a)", "(?! )", "(?<=a)", "(?<!e)", "(?>[a-z]+)", "a++", ".*+", r"\d?+", r"\Z", "(?=.*error)", "(?<=[a-z]{1,2})",
                 "[a-z&&[^e]]", "[a-f[0-9]]+", "[^a-c[x]]", r"[\w&&[^\d_]]+", r"[^\S&&[^ ]]", r"[\P{Alpha}a]", "(?i)")  # fmt: skip
"""Expressions that RE2 cannot run."""
_SWITCHES = ("true", "false", "TRUE", "False", "true")


def regex(draw: random.Random, groups: int = 0) -> str:
    """Draw a regular expression with at least that many groups."""
    atoms = [draw.choice(_ATOMS) for _ in range(draw.randrange(1, 4))]
    for _ in range(groups):
        inner = draw.choice(_ATOMS) + draw.choice(["", draw.choice(_ATOMS)])
        atoms.insert(draw.randrange(len(atoms) + 1), f"({inner}){draw.choice(['', '', '', '?'])}")
    if sometimes(draw, 0.2):
        atoms.insert(draw.randrange(len(atoms) + 1), draw.choice([*_BACKTRACKING, r"\1" if groups else "^"]))
    if sometimes(draw, 0.1):
        atoms.append(f"(?:{draw.choice(_ATOMS)}|{draw.choice(_ATOMS)})*")
    text = "".join(atoms)
    return (
        mutated(draw, text, ("(", ")", "[", "]", "\\", "*", "+", "?", "{", "}", "|", "(?=a)", r"\1", "&&"))
        if sometimes(draw, 0.05)
        else text
    )


def _switch(draw: random.Random, config: dict[str, str], name: str) -> None:
    if sometimes(draw, 0.4):
        config[name] = draw.choice(_SWITCHES)


def link(draw: random.Random) -> dict[str, Any]:
    """Draw one interceptor."""
    kind = draw.choice(["static", "timestamp", "host", "regex_filter", "regex_filter", "regex_extractor",
                        "regex_extractor", "search_replace", "search_replace", "remove_header"])  # fmt: skip
    config: dict[str, str] = {}
    name = draw.choice(["a", "b", "host", "key", "timestamp", "new"])
    match kind:
        case "static":
            _switch(draw, config, "preserveExisting")
            if sometimes(draw, 0.9):
                config["key"], config["value"] = name, header(draw).strip(JAVA_BLANKS) or "v"
        case "timestamp":
            _switch(draw, config, "preserveExisting")
            if sometimes(draw, 0.5):
                config[draw.choice(["headerName", "headerName", "header"])] = name
        case "host":
            _switch(draw, config, "preserveExisting")
            if sometimes(draw, 0.5):
                config["hostHeader"] = name
        case "regex_filter":
            config["regex"] = regex(draw)
            _switch(draw, config, "excludeEvents")
        case "regex_extractor":
            groups = draw.choice([1, 1, 2, 3])
            config["regex"] = regex(draw, groups)
            names = [f"s{n}" for n in range(draw.choice([groups, groups, 1, groups + 1]))]
            config["serializers"] = draw.choice([" ", "  "]).join(names)
            config |= {
                f"serializers.{serializer}.name": draw.choice(["a", "new", f"h{serializer}"]) for serializer in names
            }
        case "search_replace":
            groups = draw.choice([0, 1, 2])
            config["searchPattern"] = regex(draw, groups)
            config["replaceString"] = draw.choice(
                ["", "X", "$1", "<$0>", "$2-$1", r"\$", "a$1b", "$10", "$", "é", r"\\", "${n}"]
            )
            if sometimes(draw, 0.1):
                config["charset"] = draw.choice(["UTF-8", "ISO-8859-1", "US-ASCII"])
        case _:
            if sometimes(draw, 0.4):
                config["withName"] = name
            if sometimes(draw, 0.4):
                config["fromList"] = draw.choice(["a,b", "a , host", "key", "a b", ",a", "a,,b", "x.y,Key"])
            if sometimes(draw, 0.1):
                config["fromListSeparator"] = draw.choice([" ", ",", r"\s+", ";", ""])
            if sometimes(draw, 0.4):
                config["matching"] = draw.choice(["a", "[ab]", ".*", "k.*", "x.y", "(?i)key", "h"])
    return {"type": kind, "config": {k: v.strip(JAVA_BLANKS) for k, v in config.items() if v.strip(JAVA_BLANKS)}}


def complaint(case: Case) -> str:
    """Return the reason why this chain is refused."""
    answers = Intercept().ours(case.settings, [case.item])
    return answers["error"] if isinstance(answers, dict) else ""


def _is_no_text(body: str, charset: str) -> bool:
    try:
        body.encode("latin-1").decode(charset)
    except (UnicodeError, LookupError):
        return True
    return False


def _empty(case: Case) -> bool:
    """Return True if a pattern to replace matches the empty text, alone or in the body."""
    patterns = [link["config"].get("searchPattern") for link in case.settings["chain"]]
    return "error" not in (case.theirs, case.ours) and any(
        not match.group()
        for pattern in patterns
        if pattern
        for text in ("", case.item[1])
        for match in compile_backtracking(pattern).finditer(text)
    )


def _repeats_nothing(case: Case) -> bool:
    """Return True if a pattern repeats a group and the backtracking engine agrees with Java's."""
    if not re.search(r"\)[*+{]", json.dumps(case.settings)):
        return False
    chain = [{**link, "config": dict(link["config"])} for link in case.settings["chain"]]
    for link in chain:
        if {"regex", "searchPattern"} & link["config"].keys():
            link["config"]["allowBacktracking"] = "true"
    operation, settings = Intercept(), {"chain": chain}
    (answer,) = operation.ours(settings, [case.item]) if not isinstance(case.ours, str) else [None]
    return operation.comparable(settings, case.item, answer) == case.theirs if answer else case.theirs is None


def _kept_null(case: Case) -> bool:
    """Return True if the only additions are headers that `preserveExisting` makes Flume keep as null."""
    chain = case.settings["chain"]
    extractors = [index for index, link in enumerate(chain) if link["type"] == "regex_extractor"]
    if not extractors or not (isinstance(case.theirs, list) and isinstance(case.ours, list)):
        return False
    later = [link["config"] for link in chain[extractors[0] :]]
    nulls = {value for config in later for name, value in config.items() if name.startswith("serializers.")}
    theirs, ours = case.theirs[0], case.ours[0]
    return (
        any(config.get("preserveExisting", "").lower() == "true" for config in later)
        and case.theirs[1] == case.ours[1]
        and nulls >= ours.keys() - theirs.keys()
        and theirs == {name: value for name, value in ours.items() if name in theirs}
    )


class Intercept(Operation):
    """One interceptor or a chain of them."""

    name = "intercept"
    known = (
        Known(
            "a replacement that ends in `$` or names a missing group",
            lambda case: case.ours == "error" and re.search("the replacement .* (has a|names|uses)", complaint(case)),
        ),
        Known(
            r"`\b` is a boundary of ASCII words",
            lambda case: (
                any(r"\b" in text for link in case.settings["chain"] for text in link["config"].values())
                and not (case.item[1] + json.dumps(case.settings, ensure_ascii=False)).isascii()
            ),
        ),
        Known(
            "a reference to a later group, and an intersection with an empty set, are errors",
            lambda case: (
                case.ours == "error"
                and "cannot be read" in complaint(case)
                and re.search(r"&&\]|\\\\[1-9]", json.dumps(case.settings))
            ),
        ),
        Known("a group without part in the match sets its header to null", _kept_null),
        Known("if a repeated group can match an empty text", _repeats_nothing),
        Known("an empty match right after another is not replaced", _empty),
        Known(
            "some patterns that Java refuses are accepted",
            lambda case: case.theirs == "error" and case.ours != "error" and "{" in json.dumps(case.settings),
        ),
        Known(
            "`.` matches all but a newline", lambda case: re.search("\r|\xc2\x85|\xe2\x80[\xa8\xa9]", case.item[1])
        ),
        Known(
            r"bytes that are invalid in `charset` become `\ufffd`",
            lambda case: any(
                _is_no_text(case.item[1], link["config"].get("charset", "utf-8")) for link in case.settings["chain"]
            ),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        chain = [link(draw) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
        return {"chain": chain}, [event(draw) for _ in range(100)]

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        origin = Origin.of_record("t", 0, 0, 0, len(items))
        batch = Batch.of((Event(body.encode("latin-1"), headers) for headers, body in items), origin)
        chain = []
        for entry in settings["chain"]:
            cls = components().get("interceptor", entry["type"])
            config, problems = cls.config_class.parse(entry["config"])
            if config is None:
                return {"error": str(problems)}
            chain.append(cls(config))
        for interceptor in chain:
            interceptor.open()
            batch = interceptor.intercept(batch)
            interceptor.close()
        kept = {
            id.index: [event.headers, event.body.decode("latin-1")]
            for id, event in zip(batch.ids(), batch, strict=True)
        }
        return [kept.get(row) for row in range(len(items))]

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the answer without null headers, and with a placeholder for the time of reading."""
        answer = super().comparable(settings, item, answer)
        if isinstance(answer, list):
            present = {name: _now(value) for name, value in answer[0].items() if value is not None}
            return [present, answer[1]]
        return answer

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        chain = settings["chain"]
        for index in range(len(chain)):
            if len(chain) > 1:
                yield {"chain": chain[:index] + chain[index + 1 :]}, item
            for name, value in chain[index]["config"].items():
                for less in shrunk(value):
                    if less.strip(JAVA_BLANKS) and value not in _SWITCHES:
                        smaller = {**chain[index], "config": {**chain[index]["config"], name: less}}
                        yield {"chain": [*chain[:index], smaller, *chain[index + 1 :]]}, item
        for less in shrunk(item):
            yield settings, less


def _now(value: str) -> str:
    return "now" if len(value) == 13 and value.isdigit() and abs(int(value) / 1000 - time.time()) < 600 else value


class Select(Operation):
    """Channel selectors."""

    name = "select"
    known = (
        Known(
            "multiplexing lists are split at single blanks",
            lambda case: any(
                "  " in value or "\t" in value or len({*value.split()}) < len(value.split())
                for name, value in case.settings["config"].items()
                if name not in ("type", "header")
            ),
        ),
        Known(
            "An optional channel that the source does not have",
            lambda case: case.ours == "error" and case.theirs != "error" and None in case.theirs["optional"],
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        channels = draw.sample(["c1", "c2", "c3", "c4"], draw.randrange(1, 5))
        config = {"type": draw.choice(["multiplexing", "multiplexing", "multiplexing", "replicating", "REPLICATING"])}
        if config["type"] != "multiplexing":
            if sometimes(draw, 0.5):
                config["optional"] = self.names(draw, channels)
        else:
            if sometimes(draw, 0.9):
                config["header"] = draw.choice(["state", "a", "x.y"])
            for value in draw.sample(["CZ", "US", "1", "Ä", "a.b", "cz", "default"], draw.randrange(4)):
                config[f"mapping.{value}"] = self.names(draw, channels)
            for value in draw.sample(["CZ", "US", "XX", "1"], draw.choice([0, 0, 1, 2])):
                config[f"optional.{value}"] = self.names(draw, channels)
            if sometimes(draw, 0.6):
                config["default"] = self.names(draw, channels)
        return {"channels": channels, "config": config}, [self.headers(draw, config) for _ in range(20)]

    def names(self, draw: random.Random, channels: list[str]) -> str:
        drawn = draw.choices([*channels, *channels, *channels, *channels, "c9"], k=draw.choice([1, 1, 2, 3]))
        return draw.choice([" ", " ", " ", "  ", "\t"]).join(dict.fromkeys(drawn) if sometimes(draw, 0.9) else drawn)

    def headers(self, draw: random.Random, config: dict[str, str]) -> dict[str, str]:
        name = config.get("header", "flume.selector.header")
        value = draw.choice(["CZ", "US", "1", "Ä", "a.b", "cz", "XX", "", " CZ", "default"])
        return {name: value} if sometimes(draw, 0.9) else {}

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        location, report = ConfigLocation("case", 1), DiagnosticCollector("normal")
        part = ComponentProperties("source", "s", "a.sources.s", location, {})
        lines = {
            name: Property(f"a.sources.s.selector.{name}", v, location) for name, v in settings["config"].items()
        }
        spec = SelectorReader(part, lines, tuple(settings["channels"]), report).read()
        if report.has_errors:
            return {"error": " ".join(map(str, report.diagnostics()))}
        origin = Origin.of_record("t", 0, 0, 0, len(items))
        answers: list[Any] = [{"required": [], "optional": []} for _ in items]
        for channel, batch, required in Selector(spec).route(Batch.of((Event(b"", item) for item in items), origin)):
            for id in batch.ids():
                answers[id.index]["required" if required else "optional"].append(channel)
        return answers

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the channels as a set, as their order has no meaning."""
        if "error" in answer:
            return "error"
        return {kind: sorted(names, key=str) for kind, names in answer.items()}

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        for name in settings["config"]:
            if name != "type":
                yield {**settings, "config": {n: v for n, v in settings["config"].items() if n != name}}, item
        for less in shrunk(item):
            yield settings, less

"""Code blocks of README, CONTRIBUTING and docs/: their places and their meaning."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import javaproperties
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
NEEDS_KAFKA = re.compile(r"runner *= *spark|sinks\.\w+\.type *= *(spark|kafka)$", re.MULTILINE)
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))


@dataclass(frozen=True)
class Block:
    """One code block."""

    page: Path
    line: int
    """Number of its first line within the page."""
    kind: str
    """Language after the fence; empty for a fence without one, or for an indented block."""
    text: str
    note: str
    """Hidden comment right before it, which selects the check."""

    @property
    def where(self) -> str:
        """Location for messages and names of tests."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def name(self) -> str:
        """Name of the file in a comment or docstring of its first line; empty if none."""
        match = re.match(r"""(?:# |\"\"\"|<!-- )([\w./-]+\.\w+)\b""", self.text)
        return match[1] if match else ""


@cache
def blocks() -> tuple[Block, ...]:
    """Return all blocks in the order of pages and lines."""
    return tuple(block for page in PAGES for block in _of(page))


def _of(page: Path) -> Iterator[Block]:
    note = ""
    for token in MarkdownIt("commonmark").parse(page.read_text("utf-8")):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            yield Block(page, token.map[0] + 1, token.info.strip(), token.content, note)
        note = _comment(token.content) if token.type == "html_block" else ""


def _comment(html: str) -> str:
    match = re.fullmatch(r"<!--(.*)-->", html.strip(), re.DOTALL)
    return match[1].strip() if match else ""


def commands(text: str) -> Iterator[list[str]]:
    """Return each simple command of a shell script, as its words, without assignments of variables before it.

    A quoted text, a command substitution too, is one word.
    """
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "%:@,$…{}[]^+"
        words: list[str] = []
        redirected = False
        for token in [*lexer, ";"]:
            if set(token) <= set("|&;()"):
                if words:
                    yield words
                words = []
            elif set(token) <= set("<>"):
                redirected = True
            elif redirected:
                redirected = False
            elif words or not re.fullmatch(r"\w+=.*", token):
                words.append(token)


def completed(text: str, note: str = "") -> str:
    """Return a fragment of a configuration completed to a whole one without further effects.

    The lines of the fragment and its note stay. Every named component without a type gets a plain one:

    - a source `seq`, with the time and this host's name as headers.
    - a channel `memory`; `file` for the sink `hdfs`; `kafka` where Spark or the sink `kafka` need it.
    - a sink `null`.

    Every source and sink without a channel gets the first one. A channel without a sink gets a sink `null`. The lists
    `sources`, `channels`, `sinks` and `interceptors` name all of them.
    """
    known: dict[str, str] = {**javaproperties.loads(note), **javaproperties.loads(text)}
    agent = next(iter(javaproperties.loads(text))).partition(".")[0]
    added: dict[str, str] = {}

    def default(name: str, value: str) -> None:
        if (key := f"{agent}.{name}") not in known:
            known[key] = added[key] = value

    def named(kind: str) -> list[str]:
        listed = known.get(f"{agent}.{kind}", "").split()
        configured = [
            match[1] for key in known if (match := re.match(rf"{re.escape(agent)}\.{kind}\.([^.]+)\.", key))
        ]
        return list(dict.fromkeys(listed + configured))

    grouped = [name for group in named("sinkgroups") for name in known[f"{agent}.sinkgroups.{group}.sinks"].split()]
    overflows = {value for key, value in known.items() if key.endswith(".overflow")}
    channels = [name for name in named("channels") if name not in overflows] or ["c1"]
    sources, sinks = named("sources") or ["s1"], list(dict.fromkeys(named("sinks") + grouped))
    for name in sources:
        if f"{agent}.sources.{name}.type" not in known:
            default(f"sources.{name}.type", "seq")
            if f"{agent}.sources.{name}.interceptors" not in known:
                default(f"sources.{name}.interceptors.time.type", "timestamp")
                default(f"sources.{name}.interceptors.name.type", "host")
        default(f"sources.{name}.channels", " ".join(channels))
        interceptors = rf"{re.escape(agent)}\.sources\.{name}\.interceptors\.([^.]+)\.type"
        if interceptor_names := [match[1] for key in known if (match := re.fullmatch(interceptors, key))]:
            default(f"sources.{name}.interceptors", " ".join(interceptor_names))
    for name in channels:
        kept = "file" if ".type = hdfs" in text else "memory"
        default(f"channels.{name}.type", "kafka" if NEEDS_KAFKA.search(text) else kept)
    for name in sinks:
        default(f"sinks.{name}.type", "null")
        default(f"sinks.{name}.channel", channels[0])
    drained = {known[f"{agent}.sinks.{name}.channel"] for name in sinks}
    for name in channels:
        if name not in drained:
            sinks.append(f"drain-{name}")
            default(f"sinks.drain-{name}.type", "null")
            default(f"sinks.drain-{name}.channel", name)
    for kind, names in (("sources", sources), ("channels", [*channels, *sorted(overflows)]), ("sinks", sinks)):
        default(kind, " ".join(names))
    return "\n".join([text, note, *(f"{key} = {value}" for key, value in added.items())]) + "\n"

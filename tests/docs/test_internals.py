"""Pages for owners: they name only files, tests, mutants and identifiers that exist, and stay short."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.simulator.mutants import MUTANTS

INTERNALS = sorted((ROOT / "docs/internals").glob("*.md"))
PAGES = [*INTERNALS, ROOT / "docs/architecture.md", ROOT / "docs/decisions.md", ROOT / "tests/README.md"]
MAX_INTERNALS_WORDS = 6_000
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.\w+)*(\(\))?")
EXTERNAL = {"spark.archives", "message.max.bytes"}
"""Names with the form of an identifier that are not ours."""


@cache
def code() -> str:
    folders = ("agent", "plugins", "sources", "channels", "interceptors", "sinks", "tests", "bench")
    return "\n".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py"))


@cache
def files() -> frozenset[str]:
    return frozenset(str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py") if ".venv" not in file.parts)


def unknown(page: Path) -> list[str]:
    """Return the names in backticks that the project lacks."""
    names = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)))
    mutants = {mutant.name for mutant in MUTANTS}
    missing = []
    for name in sorted(names - mutants - EXTERNAL):
        if name.endswith(".py") and "*" not in name:
            known = any(file == name or file.endswith(f"/{name}") for file in files())
        elif "/" in name and " " not in name and (ROOT / name.split("/")[0]).is_dir():
            is_made = name.startswith(".venv/")  # by a command, not in every checkout
            known = is_made or (ROOT / name).exists() or any(sign in name for sign in "<…*")
        elif IDENTIFIER.fullmatch(name) and (re.search(r"[A-Z_]", name) or "." in name):
            known = all(re.search(rf"\b{part}\b", code()) for part in name.removesuffix("()").split("."))
        else:
            continue
        if not known:
            missing.append(name)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_what_exists(page: Path) -> None:
    assert unknown(page) == []


def test_the_pages_stay_short() -> None:
    assert sum(len(page.read_text().split()) for page in INTERNALS) <= MAX_INTERNALS_WORDS


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.name)
def test_a_page_has_a_picture(page: Path) -> None:
    assert re.search(r"```text\n|!\[", page.read_text())

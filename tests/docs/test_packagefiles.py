"""Man pages and completion of packages: complete, and as `--help` has them."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flafka.agent.cli import COMMANDS, main
from tests.docs.blocks import ROOT

SCRIPT = ROOT / "docs" / "packagefiles.py"
_SPEC = importlib.util.spec_from_file_location("packagefiles", SCRIPT)
assert _SPEC is not None
assert _SPEC.loader is not None
packagefiles = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(packagefiles)
CALLED = {"-".join(path): path for _, path in packagefiles.contexts()}
"""Name of a page → words of its command."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("share")
    done = subprocess.run([sys.executable, SCRIPT, directory], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return directory


def plain(text: str) -> str:
    """Return the text of a page without fonts and escapes, in one line."""
    text = re.sub(r"\\f[BR]", "", text).replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")
    return " ".join(text.split())


def page(directory: Path, name: str) -> dict[str, str]:
    """Return the sections of a page by heading."""
    text = (directory / f"man/man1/{name}.1").read_text()
    head, *sections = re.split(r"^\.SH (.+)\n", text, flags=re.MULTILINE)
    assert head.startswith('.TH "AGENT')
    return dict(zip(sections[::2], sections[1::2], strict=True))


def test_every_command_has_a_page(directory: Path) -> None:
    pages = {file.name for file in (directory / "man/man1").iterdir()}
    assert pages == {f"{name}.1" for name in CALLED}
    assert pages > {"agent.1", "agent-dlq-list.1", *(f"agent-{name}.1" for name in COMMANDS)}


@pytest.mark.parametrize("name", CALLED)
def test_a_page_has_what_the_help_has(name: str, directory: Path) -> None:
    words, sections = CALLED[name], page(directory, name)
    shown = CliRunner().invoke(main, [*words[1:], "--help"], prog_name="agent", terminal_width=1000).output
    usage, _, rest = shown.partition("\n\n")
    text, _, options = rest.partition("\nOptions:\n")
    assert usage.removeprefix("Usage: ") == plain(sections["SYNOPSIS"])
    assert re.fullmatch(rf"{name} - \w.*[^.]", plain(sections["NAME"]))
    for line in filter(None, options.partition("\n\n")[0].splitlines()):
        option, _, _ = line.strip().partition("  ")
        assert option in plain(sections["OPTIONS"]), option
    whole = plain(" ".join(sections.values()))
    description = text.partition("\nCommands:")[0].partition("\nFirst steps:")[0]
    for sentence in re.split(r"(?<=[.?])\s+|\n", description.replace("`", "")):
        assert " ".join(sentence.split()).rstrip(".") in whole.replace("`", "")
    for line in description.splitlines():
        if line.startswith("  agent "):
            assert " ".join(line.split()) in plain(sections["EXAMPLES"])
    assert {"0", "1", "2"} <= set(re.findall(r"\\fB(\d)\\fR", sections["EXIT STATUS"]))
    seen = set(re.findall(r"\\fB(\S+)\\fR\(1\)", sections["SEE ALSO"].replace("\\-", "-")))
    assert seen <= {*CALLED}
    assert (name == "agent") or "-".join(words[:-1]) in seen


def test_the_exit_code_of_a_command_of_its_own(directory: Path) -> None:
    assert "1 if events are missing, duplicated or altered" in page(directory, "agent-audit")["EXIT STATUS"]
    assert "0 if all are up" in page(directory, "agent-cluster-status")["EXIT STATUS"]


def test_the_first_steps_are_the_examples_of_the_root(directory: Path) -> None:
    assert "agent check -c mine/agent.conf" in plain(page(directory, "agent")["EXAMPLES"])


def test_environment_variables_are_named(directory: Path) -> None:
    start = main.get_command(click.Context(main), "start")
    assert start is not None
    for param in start.params:
        if param.envvar:
            assert str(param.envvar) in page(directory, "agent-start")["ENVIRONMENT"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_where_a_shell_looks(shell: str, directory: Path) -> None:
    expected = CliRunner().invoke(main, ["completion", shell]).output
    assert (directory / packagefiles.COMPLETIONS[shell]).read_text() == expected


@pytest.mark.parametrize(("file", "words"), [("GRAMMAR", []), ("SNIPPETS", ["--snippets"])])
def test_the_grammar_is_that_of_the_command(file: str, words: list[str], directory: Path) -> None:
    expected = json.loads(CliRunner().invoke(main, ["grammar", *words]).output)
    assert json.loads((directory / getattr(packagefiles, file)).read_text()) == expected


@pytest.mark.skipif(not shutil.which("lexgrog"), reason="man-db is not installed")
def test_man_finds_no_fault(directory: Path) -> None:
    pages = sorted(str(file) for file in (directory / "man/man1").iterdir())
    named = subprocess.run(["lexgrog", *pages], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(named) == len(pages)
    assert all(re.search(r': "agent\S* - \w', line) for line in named)
    for file in pages:
        command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", file]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        assert done.stderr == ""

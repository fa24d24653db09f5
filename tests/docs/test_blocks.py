"""Every code block of README, CONTRIBUTING and docs/ is run, or checked, by its kind.

- `properties`: a configuration, or a part of one that `blocks.completed` completes, with the lines of the comment
  before it. It passes `agent check --strict`.
- `sh`: commands. bash reads them, and `agent` and `./dev` have these verbs, arguments and options.
- `console`: commands and their output. Both are compared, in a directory with `conf/` and the files of the page,
  which a comment in their first line names. `…` stands for any text, and lines may be folded. A comment
  `not run: …` before it has the reason why it is read as `sh` only.
- `python`: it compiles, and its imports of the project exist. Other tests run those with a file's name.
- `toml`, `json`, `xml`: well-formed.
- `text`: a drawing, or lines of the file that the comment before it names: `from: conf/…`.

Any other kind is an error, and so is a block without one.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import json
import re
import socket
import subprocess
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import certifi
import click
import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components
from tests.docs.blocks import ROOT, Block, blocks, commands, completed
from tests.plugins.keytabs import write_keytab

NO_EFFECT = re.compile("(?!Flume: ).*(unknown option|no effect|ignored)")
DRAWN = re.compile("[─-╿▲-◿]")
COMMANDS = {".", "./dev", "agent", "cat", "echo", "eval", "grep", "java", "journalctl", "jq", "logger", "mkdir"}
COMMANDS |= {"apt-get", "bash", "export", "ln", "pip", "podman", "python", "python3", "sudo", "systemctl"}
"""Commands that blocks may have; all but two belong to the system."""
OURS = {"agent", "plugins", "sources", "channels", "interceptors", "sinks"}


@cache
def components() -> Components:
    return Components()


@cache
def dev() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader("dev", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


# --- by kind


def properties(block: Block, directory: Path) -> None:
    if block.name:  # a file that a command of its page names
        assert [other for other in blocks() if other.page == block.page and other.kind == "console"]
        return
    file = directory / "agent.conf"
    file.write_text(standing_in(completed(block.text, block.note), directory))
    check_configuration(file)


def check_configuration(file: Path) -> AgentSpec:
    """Return the agent of a configuration without mistakes, and without options that have no effect."""
    spec, diagnostics = load(file, None, components=components(), mode="strict", environment={}, notes=True)
    wrong = [
        str(diagnostic)
        for diagnostic in diagnostics
        if diagnostic.severity != "note" or NO_EFFECT.match(diagnostic.message)
    ]
    assert spec is not None, "\n".join([*wrong, file.read_text()])
    assert not wrong, "\n".join([*wrong, file.read_text()])
    return spec


def standing_in(text: str, directory: Path) -> str:
    """Return the text with stand-ins for secrets, keytabs and authorities in files."""
    (directory / "secret").write_text("word")
    keytab = write_keytab(directory / "keytab", {f"flume/{socket.getfqdn().lower()}@EXAMPLE.COM": 1})
    text = re.sub(r"/etc/flafka/[\w-]+\.keytab", str(keytab), text)
    text = re.sub(r"\$\{file:[^}]*\}", f"${{file:{directory}/secret}}", text)
    if "= GSSAPI" in text:  # the installed client has no login with Kerberos
        text = text.replace("SASL_SSL", "SSL")
    return re.sub(r"/etc/flafka/[\w-]+\.pem", certifi.where(), text)


def sh(block: Block, _: Path) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in commands(block.text):
        readable(words)


def readable(words: list[str]) -> None:
    """Check that a command with its arguments exists."""
    if words[0] == "sudo":
        words = words[3 if words[1] == "-u" else 1 :]
        words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if words[0].startswith("/"):
        words[0] = Path(words[0]).name
    assert words[0] in COMMANDS, f"{words[0]} is none of the commands that blocks may have"
    for word in words[1:]:
        if re.fullmatch(r"(\./)?(conf|docs|tests|bench)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{word} is not there"
    if words[0] == "agent":
        parsed(main, words[1:], "agent")
    if words[0] == "./dev" and len(words) > 1:
        assert words[1] in (*dev().VERBS, "help"), f"./dev has no {words[1]}"
        if words[1] == "bench" and len(words) > 2 and not words[2].startswith("-"):
            assert (ROOT / "bench" / f"{words[2]}.py").exists(), f"there is no benchmark {words[2]}"


def parsed(command: click.Command, words: list[str], path: str, parent: click.Context | None = None) -> None:
    """Check the verbs, arguments and options, and their values; files need not exist."""
    context = click.Context(command, parent=parent, info_name=path)
    context.allow_interspersed_args = command.allow_interspersed_args
    context.ignore_unknown_options = command.ignore_unknown_options
    values, arguments, _ = command.make_parser(context).parse_args(list(words))
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(value, str) and not isinstance(parameter.type, click.Path | click.File):
            parameter.type_cast_value(context, value)
        missing = value is None or type(value).__name__ == "Sentinel" or value == ()
        assert not (parameter.required and missing), f"{path} needs {parameter.human_readable_name}"
    if isinstance(command, click.Group):
        if arguments:
            name, subcommand, arguments = command.resolve_command(context, arguments)
            assert subcommand is not None, f"{path} has no {name}"
            parsed(subcommand, arguments, f"{path} {name}", context)
    else:
        assert not arguments or context.allow_extra_args, f"{path} takes no {arguments}"


def console(block: Block, directory: Path) -> None:
    shown = [part.partition("\n") for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]]
    assert shown, "no line begins with `$ `"
    for command, _, expected in shown:
        (words,) = commands(command)
        readable(words)
        if block.note.startswith("not run: "):
            continue
        result = CliRunner().invoke(main, words[1:])
        pattern = re.escape(" ".join(expected.split())).replace("…", ".*")
        assert re.fullmatch(pattern, " ".join(result.output.split())), f"{command}\n{result.output}"


def python(block: Block, _: Path) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            there = importlib.import_module(node.module or "")
            for name in node.names:
                known = hasattr(there, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
                assert known, f"{node.module} has no {name.name}"


def text(block: Block, _: Path) -> None:
    if block.note.startswith("from: "):
        file = ROOT / block.note.removeprefix("from: ")
        assert block.text in file.read_text("utf-8"), f"{file.name} has no such lines"
    else:
        assert DRAWN.search(block.text), "text is for drawings and for lines of a file: `<!-- from: conf/… -->`"


KINDS: dict[str, Callable[[Block, Path], object]] = {
    "properties": properties,
    "sh": sh,
    "console": console,
    "python": python,
    "toml": lambda block, _: tomllib.loads(block.text),
    "json": lambda block, _: json.loads(block.text),
    "xml": lambda block, _: ET.fromstring(block.text),
    "text": text,
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of commands."""
    for there in ("conf", "docs"):
        (tmp_path / there).symlink_to(ROOT / there)
    (tmp_path / "hadoop").mkdir()
    (tmp_path / "hadoop" / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "hadoop"))  # as on a host of a cluster
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_of(page: Path, directory: Path) -> None:
    """Write the files of a page."""
    for block in blocks():
        if block.page == page and block.name and not (directory / block.name).exists():
            (directory / block.name).parent.mkdir(parents=True, exist_ok=True)
            (directory / block.name).write_text(block.text)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.where) for block in blocks()])
def test_block(block: Block, directory: Path) -> None:
    assert block.kind in KINDS, (
        f"a block of the kind {block.kind!r}: write one of {', '.join(KINDS)} behind the fence"
    )
    files_of(block.page, directory)
    KINDS[block.kind](block, directory)


def test_verbs_that_sentences_name_exist() -> None:
    """`agent dlq list` in a sentence is a command of that name."""
    wrong = []
    for page in {block.page for block in blocks()} | {ROOT / "docs/index.md"}:
        for line in re.findall(r"`(agent [a-z][^`]*)`", page.read_text("utf-8")):
            words = line.replace("\n", " ").split()[1:]
            command: click.Command = main
            while words and isinstance(command, click.Group):
                subcommand = command.get_command(click.Context(command), words[0])
                if subcommand is None:
                    wrong.append(f"{page.name}: {line}")
                    break
                command, words = subcommand, words[1:]
    wrong = [sentence for sentence in wrong if "|" not in sentence]
    assert not wrong

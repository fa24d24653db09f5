"""Files of packages that are made of the commands: `python docs/packagefiles.py DIRECTORY`.

DIRECTORY becomes a tree like /usr/share: man pages of all commands, completion for bash, zsh and fish, and the
grammar of configurations for editors. `man -l DIRECTORY/man/man1/agent.1` shows a
page.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from flafka.agent.cli import COMMAND_GROUPS, FIRST_STEPS, completion
from flafka.agent.cli import main as cli
from flafka.agent.grammar import snippets, textmate_grammar
from flafka.plugins import Components

COMPLETIONS = {
    "bash": "bash-completion/completions/agent",
    "zsh": "zsh/vendor-completions/_agent",
    "fish": "fish/vendor_completions.d/agent.fish",
}
"""Shell → file below /usr/share, as Debian has it."""
GRAMMAR, SNIPPETS = "flafka/editors/flafka.tmLanguage.json", "flafka/editors/flafka.code-snippets"
EXIT_STATUS = (
    ("0", "Success."),
    ("1", "The command failed; standard error has the reason."),
    ("2", "The command line or the configuration has an error."),
)
"""Exit codes of every command."""
_EXIT_SENTENCE = re.compile(r"(?:The exit code|Exit code)\b.*", re.DOTALL)
_EXAMPLE = re.compile(r"(?:# .*\n)*(?:agent |ln )")
"""Beginning of a paragraph of examples, perhaps with comments."""


def main(directory: Path) -> None:
    """Write all files below a directory, and print their number."""
    files = package_files()
    for name, text in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    print(f"{directory}: {len(files)} files")


def package_files() -> dict[str, str]:
    """Return file name below /usr/share → content."""
    pages = {f"man/man1/{name}.1": text for name, text in man_pages().items()}
    scripts = {file: completion.script(shell) for shell, file in COMPLETIONS.items()}
    components = Components()
    editors = {GRAMMAR: textmate_grammar(components), SNIPPETS: snippets(components)}
    return {**pages, **scripts, **{file: json.dumps(content, indent=1) + "\n" for file, content in editors.items()}}


# --- man pages


def man_pages() -> dict[str, str]:
    """Return the name of each page, such as `agent-dlq-list`, with its text for man."""
    return {"-".join(path): "\n".join(_page(context, path)) + "\n" for context, path in contexts()}


def contexts() -> Iterator[tuple[click.Context, tuple[str, ...]]]:
    """Yield the context and the words of each command, groups and the root too."""
    yield from _contexts(cli, ("agent",), None)


def _contexts(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[click.Context, tuple[str, ...]]]:
    context = click.Context(command, info_name=path[-1], parent=parent, **command.context_settings)
    yield context, path
    for name, sub in _commands(context):
        yield from _contexts(sub, (*path, name), context)


def _commands(context: click.Context) -> list[tuple[str, click.Command]]:
    """Return name and command of all commands directly below a context."""
    group = context.command
    if not isinstance(group, click.Group):
        return []
    commands = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return [(name, command) for name, command in commands if command is not None]


def _page(context: click.Context, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of the page of a command."""
    name = "-".join(path)
    purpose, description, examples, exit_status = _help(context.command)
    yield f'.TH "{_roff(name.upper())}" "1" "" "Flafka {_roff(version("flafka"))}" "Flafka"'
    yield from (".SH NAME", f"{_roff(name)} \\- {_inline(purpose.rstrip('.'))}")
    yield from (".SH SYNOPSIS", f"\\fB{_roff(' '.join(path))}\\fR")
    yield _roff(" ".join(context.command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    for number, paragraph in enumerate((purpose, *description)):
        if number:
            yield ".PP"
        yield from _preformatted(paragraph) if "\n" in paragraph else [_inline(paragraph)]
    yield from _command_sections(context, path)
    yield ".SH OPTIONS"
    for param in context.command.get_params(context):
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None:
            yield from (".TP", f"\\fB{_roff(record[0])}\\fR", _inline(record[1]))
    if variables := [p for p in context.command.params if isinstance(p, click.Option) and p.envvar]:
        yield ".SH ENVIRONMENT"
        for param in variables:
            yield from (".TP", f"\\fB{_roff(str(param.envvar))}\\fR", f"Value of {_roff(param.opts[-1])}.")
    if len(path) == 1:
        width = max(len(line) for line, _ in FIRST_STEPS)
        examples = ["\n".join(f"{line.ljust(width)}  {text}" for line, text in FIRST_STEPS)]
    if examples:
        yield ".SH EXAMPLES"
        for example in examples:
            yield from _preformatted(example)
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_STATUS:
        yield from (".TP", f"\\fB{code}\\fR", meaning)
    for sentence in exit_status:
        yield from (".PP", _inline(sentence))
    yield from (".SH SEE ALSO", ",\n".join(_see_also(context, path)))


def _help(command: click.Command) -> tuple[str, list[str], list[str], list[str]]:
    """Return purpose, paragraphs, examples and sentences about the exit code of a command's help."""
    paragraphs = re.split(r"\n{2,}", inspect.cleandoc(command.help or "").strip())
    description: list[str] = []
    examples: list[str] = []
    exit_status: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith("\b"):
            text = paragraph.removeprefix("\b").strip("\n")
            (examples if _EXAMPLE.match(text) else description).append(text)
            continue
        text = " ".join(paragraph.split())
        if match := _EXIT_SENTENCE.search(text):
            exit_status.append(match[0])
            text = text[: match.start()].strip()
        if text:
            description.append(text)
    purpose, _, rest = description[0].partition(". ")
    return purpose, [*filter(None, [rest]), *description[1:]], examples, exit_status


def _command_sections(context: click.Context, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the section of the commands below this one; that of the root has headings."""
    commands = dict(_commands(context))
    if not commands:
        return
    yield ".SH COMMANDS"
    headings = COMMAND_GROUPS if len(path) == 1 else {"": commands}
    for heading, names in headings.items():
        if heading:
            yield f".SS {heading}"
        for name in names:
            page = "-".join((*path, name))
            purpose = commands[name].get_short_help_str(limit=1000)
            yield from (".TP", f"\\fB{_roff(page)}\\fR(1)", _inline(purpose))


def _see_also(context: click.Context, path: tuple[str, ...]) -> list[str]:
    """Return references to the page above, its other commands, and the commands below."""
    names = ["-".join((*path, name)) for name, _ in _commands(context)]
    if context.parent is not None:
        above = path[:-1]
        names += ["-".join(above)]
        if len(above) > 1:
            names += ["-".join((*above, name)) for name, _ in _commands(context.parent) if name != path[-1]]
    return [f"\\fB{_roff(name)}\\fR(1)" for name in sorted(names)]


def _preformatted(text: str) -> Iterator[str]:
    """Yield lines that man does not fill."""
    yield from (".PP", ".nf", *map(_roff, text.splitlines()), ".fi")


def _inline(text: str) -> str:
    """Return a text with what stands between backquotes in bold."""
    parts = " ".join(text.split()).split("`")
    return _guarded("".join(f"\\fB{_escaped(part)}\\fR" if n % 2 else _escaped(part) for n, part in enumerate(parts)))


def _roff(text: str) -> str:
    return _guarded(_escaped(text))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _guarded(line: str) -> str:
    """Return a line that does not begin with a control character of roff."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/packagefiles.py DIRECTORY")
    main(Path(sys.argv[1]))

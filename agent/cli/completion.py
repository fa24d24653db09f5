"""`agent completion`: scripts that complete command lines in shells.

A script has a table of all commands, so a key needs no start of Python. Names of sources, channels and sinks come
from the configuration on the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import click

from flafka.agent.cli import completiontext as text

FILES, DIRECTORIES, ANYTHING, TYPES, OPTIONS = "files", "directories", "anything", "types", "options"
"""Kinds of values; further ones are `names:KINDS` and `words:A,B`."""
_ARGUMENTS = {"explain": (None, TYPES, OPTIONS)}
"""Command → kinds of its arguments that click cannot know; None for the kinds of components."""
_NAMES = {"sink": "sinks", "source": "sources", "component": "sources|channels|sinks"}
"""Parameter → kinds of the components whose names are its values."""

_TYPE_OPTIONS = {"new": ("source", "channel", "sink")}
"""Command → options whose values are types of the component of their name."""


@dataclass(frozen=True)
class Parameter:
    """Option or argument of a command."""

    names: tuple[str, ...]
    """Spellings of an option, such as `-c` and `--conf`; the name of an argument."""
    help: str
    value: str
    """Kind of the value; empty for a flag."""
    is_repeatable: bool


_HELP = Parameter(("-h", "--help"), "Show this message and exit.", "", is_repeatable=False)
"""Option of every command. click keeps the names that it has in the first context of a command."""


@dataclass(frozen=True)
class CommandWords:
    """Words that may follow a command."""

    path: tuple[str, ...]
    """`("agent", "dlq", "list")`"""
    subcommands: dict[str, str]
    """Name → help text."""
    options: tuple[Parameter, ...]
    arguments: tuple[Parameter, ...]


@dataclass(frozen=True)
class ComponentWords:
    """Names that `agent explain` knows."""

    kinds: tuple[str, ...]
    types: dict[str, tuple[str, ...]]
    """Kind → types."""
    options: dict[tuple[str, str], tuple[str, ...]]
    """Kind and type → names of options."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names of components in a shell.

    \b
    agent completion bash > ~/.local/share/bash-completion/completions/agent
    agent completion zsh > DIRECTORY/_agent       a directory of $fpath.
    agent completion fish > ~/.config/fish/completions/agent.fish

    The script knows the plugins that are installed now. Print it again after an update.
    """
    click.echo(script(shell), nl=False)


def script(shell: str) -> str:
    """Return the script for `bash`, `zsh` or `fish`."""
    from flafka.agent.cli import main

    components = component_words()
    commands = [*_commands(main, ("agent",), components)]
    writers: dict[str, Callable[[list[CommandWords], ComponentWords], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    return writers[shell](commands, components)


def component_words() -> ComponentWords:
    """Return the names of all kinds, types and options, including installed plugins."""
    from flafka.agent.explain import AGENT, ALL_KINDS, describe_component, list_types
    from flafka.plugins import Components

    components = Components()
    types = {kind: tuple(name for name, _ in list_types(components, kind)) for kind in ALL_KINDS if kind != AGENT}
    described = {(kind, name): describe_component(components, kind, name) for kind in types for name in types[kind]}
    options = {
        key: tuple(option.name.removesuffix("*") for option in component.options())
        for key, component in described.items()
    }
    types[AGENT] = tuple(option.name for option in describe_component(components, AGENT, AGENT).options())
    return ComponentWords(ALL_KINDS, types, options)


def _commands(command: click.Command, path: tuple[str, ...], components: ComponentWords) -> Iterator[CommandWords]:
    """Yield the words of this command and of all commands below it."""
    context = click.Context(command, info_name=path[-1])
    below: dict[str, click.Command] = {}
    if isinstance(command, click.Group):
        found = ((name, command.get_command(context, name)) for name in command.list_commands(context))
        below = {name: sub for name, sub in found if sub is not None}
    params = command.params
    options = [_option(param) for param in params if isinstance(param, click.Option) and not param.hidden]
    options.append(_HELP)
    types = {f"--{kind}": f"words:{','.join(components.types[kind])}" for kind in _TYPE_OPTIONS.get(path[-1], ())}
    options = [replace(option, value=types.get(option.names[0], option.value)) for option in options]
    arguments = [_argument(param) for param in params if isinstance(param, click.Argument)]
    for index, value in enumerate(_ARGUMENTS.get(path[-1], ())):
        known = value or f"words:{','.join(components.kinds)}"
        arguments[index] = Parameter(arguments[index].names, "", known, is_repeatable=False)
    subcommands = {name: sub.get_short_help_str(limit=200) for name, sub in below.items()}
    yield CommandWords(path, subcommands, tuple(options), tuple(arguments))
    for name, sub in below.items():
        yield from _commands(sub, (*path, name), components)


def _option(param: click.Option) -> Parameter:
    names = (*param.opts, *param.secondary_opts)
    value = "" if param.is_flag or param.count else _value(param)
    return Parameter(names, " ".join((param.help or "").split()), value, is_repeatable=param.multiple)


def _argument(param: click.Argument) -> Parameter:
    return Parameter((param.human_readable_name,), "", _value(param), is_repeatable=param.nargs < 0)


def _value(param: click.Parameter) -> str:
    """Return the kind of the values of a parameter."""
    if isinstance(param.type, click.Choice):
        return f"words:{','.join(map(str, param.type.choices))}"
    if isinstance(param.type, click.Path):
        return FILES if param.type.file_okay else DIRECTORIES
    if isinstance(param.type, click.File):
        return FILES
    if param.name in _NAMES and param.metavar in (None, "NAME"):
        return f"names:{_NAMES[param.name]}"
    return ANYTHING


# --- bash


def _bash(commands: list[CommandWords], components: ComponentWords) -> str:
    """Return the script for bash."""
    lines = []
    for command in commands:
        flags = [name for option in command.options if not option.value for name in option.names]
        valued = [f"{name}={option.value}" for option in command.options if option.value for name in option.names]
        arguments = [argument.value + "*" * argument.is_repeatable for argument in command.arguments]
        words = (("subcommands", command.subcommands), ("flags", flags), ("valued", valued), ("arguments", arguments))
        assigned = "; ".join(f"{name}={shlex.quote(' '.join(values))}" for name, values in words if values)
        lines.append(f"    {shlex.quote(' '.join(command.path))}) {assigned} ;;")
    return _filled(text.BASH, COMMANDS="\n".join(lines), COMPONENTS=_component_cases(components))


def _component_cases(components: ComponentWords) -> str:
    """Return the branches of a `case` that print the types of a kind, or the options of a type."""
    words = [*components.types.items(), *((f"{kind} {name}", o) for (kind, name), o in components.options.items())]
    return "\n".join(f"    {shlex.quote(key)}) echo {shlex.quote(' '.join(values))} ;;" for key, values in words)


# --- zsh


def _zsh(commands: list[CommandWords], components: ComponentWords) -> str:
    """Return the script for zsh: a function for each command."""
    functions = "\n\n".join(_zsh_function(command) for command in commands)
    return _filled(text.ZSH, FUNCTIONS=functions, COMPONENTS=_component_cases(components))


def _zsh_function(command: CommandWords) -> str:
    specs = [spec for option in command.options for spec in _zsh_options(option)]
    if command.subcommands:
        specs += ["1:command:->command", "*::: :->rest"]
    for number, argument in enumerate(command.arguments, 1):
        place = "*" if argument.is_repeatable else str(number)
        specs.append(f"{place}:{_zsh_quoted(argument.names[0])}:{_zsh_action(argument.value)}")
    lines = [f"{_zsh_name(command.path)}() {{"]
    lines.append("    local context state state_descr line ret=1; typeset -A opt_args")
    lines.append("    _arguments -C -s \\\n" + " \\\n".join(f"        {shlex.quote(s)}" for s in specs) + " && ret=0")
    if command.subcommands:
        pairs = [shlex.quote(f"{name}:{help_text}") for name, help_text in command.subcommands.items()]
        cases = [
            f"            {name}) {_zsh_name((*command.path, name))} && ret=0 ;;" for name in command.subcommands
        ]
        lines += ["    case $state in", "    command)", "        local -a subcommands=("]
        lines += [*(f"            {pair}" for pair in pairs), "        )"]
        lines += ["        _describe -t commands command subcommands && ret=0 ;;", "    rest)"]
        lines += ['        words=($line[1] "${words[@]}"); (( CURRENT += 1 ))', "        case $line[1] in", *cases]
        lines += ["        esac ;;", "    esac"]
    return "\n".join([*lines, "    return ret", "}"])


def _zsh_options(option: Parameter) -> Iterator[str]:
    """Yield a specification for `_arguments` for each spelling of an option."""
    for name in option.names:
        others = f"({' '.join(option.names)})" if len(option.names) > 1 and not option.is_repeatable else ""
        repeated = "*" * option.is_repeatable
        value = f":{_zsh_quoted(option.names[-1].lstrip('-'))}:{_zsh_action(option.value)}" if option.value else ""
        yield f"{others}{repeated}{name}[{_zsh_quoted(option.help)}]{value}"


def _zsh_action(value: str) -> str:
    kind, _, words = value.partition(":")
    if kind == "words":
        return f"({words.replace(',', ' ')})"
    if kind == "names":
        return "_agent_names " + shlex.quote(words)
    return {FILES: "_files", DIRECTORIES: "_files -/", TYPES: "_agent_types", OPTIONS: "_agent_options"}.get(
        kind, " "
    )


def _zsh_quoted(sentence: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", sentence)


def _zsh_name(path: Iterable[str]) -> str:
    return "_" + "__".join(path)


# --- fish


def _fish(commands: list[CommandWords], components: ComponentWords) -> str:
    """Return the script for fish: a line for each word."""
    paths = [_fish_quoted(" ".join(command.path[1:])) for command in commands if len(command.path) > 1]
    valued = {name for command in commands for option in command.options if option.value for name in option.names}
    lines = [line for command in commands for line in _fish_lines(command)]
    cases = [*components.types.items(), *((f"{kind} {name}", o) for (kind, name), o in components.options.items())]
    return _filled(
        text.FISH,
        PATHS=" ".join(paths),
        VALUED=" ".join(sorted(valued)),
        COMPONENTS="\n".join(
            f"        case {_fish_quoted(key)}\n            string split ' ' {_fish_quoted(' '.join(v))}"
            for key, v in cases
        ),
        COMMANDS="\n".join(lines),
    )


def _fish_lines(command: CommandWords) -> Iterator[str]:
    """Yield the lines `complete` for the words behind a command."""
    path = _fish_quoted(" ".join(command.path[1:]))
    here = f"complete -c agent -n {_fish_quoted(f'__agent_at {path}')}"
    for name, help_text in command.subcommands.items():
        yield f"{here} -a {name} -d {_fish_quoted(help_text)}"
    for option in command.options:
        short = [f"-s {name[1:]}" for name in option.names if len(name) == 2]
        long = [f"-l {name[2:]}" for name in option.names if name.startswith("--")]
        values = _fish_values(option.value)
        yield " ".join(filter(None, (here, *short, *long, values, f"-d {_fish_quoted(option.help)}")))
    for number, argument in enumerate(command.arguments):
        count = "-ge" if argument.is_repeatable else "-eq"
        condition = f"__agent_at {path}; and test (__agent_count) {count} {number}"
        if argument.value != ANYTHING:
            values = _fish_values(argument.value).removeprefix("-x ").removeprefix("-r ")
            yield f"complete -c agent -n {_fish_quoted(condition)} {values}"


def _fish_values(value: str) -> str:
    """Return the part of a line `complete` that has the values of an option; empty for a flag."""
    kind, _, words = value.partition(":")
    functions = {
        "words": words.replace(",", " "),
        "names": f"(__agent_names {_fish_quoted(words)})",
        DIRECTORIES: "(__fish_complete_directories)",
        TYPES: "(__agent_types)",
        OPTIONS: "(__agent_options)",
    }
    if kind in functions:
        return f"-x -a {_fish_quoted(functions[kind])}"
    return {"": "", FILES: "-r -F"}.get(kind, "-x")


def _fish_quoted(sentence: str) -> str:
    """Return a word in single quotes of fish, which reads \\\\ and \\' in them."""
    return "'" + sentence.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _filled(template: str, **parts: str) -> str:
    """Return the template with each part in place of `@NAME@`."""
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)

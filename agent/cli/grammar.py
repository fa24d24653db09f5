"""`agent grammar`: colours and completion of configurations in editors."""

from __future__ import annotations

from pathlib import Path

import click

from flafka.agent.cli.output import show_json


@click.command()
@click.option("--snippets", "only_snippets", is_flag=True, help="Print the snippets of VS Code instead.")
@click.option(
    "--vscode",
    "archive",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an extension of VS Code with grammar and snippets, such as flafka.vsix.",
)
def grammar(only_snippets: bool, archive: Path | None) -> None:
    """Print a TextMate grammar of configurations, which colours options that exist.

    \b
    agent grammar --vscode flafka.vsix; code --install-extension flafka.vsix
    agent grammar > flafka.tmLanguage.json     for other editors.

    The grammar knows the plugins that are installed now.
    """
    from flafka.agent.grammar import snippets, textmate_grammar, vscode_extension
    from flafka.plugins import Components

    components = Components()
    if archive is None:
        show_json(snippets(components) if only_snippets else textmate_grammar(components))
        return
    if only_snippets:
        raise click.UsageError("--vscode writes grammar and snippets: leave out --snippets")
    from importlib.metadata import version

    try:
        archive.write_bytes(vscode_extension(components, version("flafka")))
    except OSError as e:
        raise click.ClickException(f"{archive} cannot be written: {e.strerror}") from e
    click.echo(f"{archive}: install it with: code --install-extension {archive}", err=True)

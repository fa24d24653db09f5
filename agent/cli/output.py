"""Common output of commands: tables, JSON and times."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ends before its end, as that of a shell."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Verbs(click.Group):
    """Group whose help shows the first sentence of each verb in full; click truncates it to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each verb with the first sentence of its help text."""
        verbs = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.get_short_help_str(limit=1000)) for name, verb in verbs if verb])


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print rows on standard output: a table on a terminal, tab-separated lines in a pipe, or JSON.

    `columns` are JSON keys such as `log_end_offset`. The heading is LOG END OFFSET in a table and LOG-END-OFFSET in a
    pipe. None is `-`, in JSON null. A table is as wide as the terminal: long texts wrap, numbers and headings do not.
    """
    if as_json:
        show_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    texts = [["-" if value is None else str(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for text in ([column.upper().replace("_", "-") for column in columns], *texts):
            click.echo("\t".join(text))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        words = column.upper().split("_")
        numeric = all(text[number].isdecimal() or text[number] == "-" for text in texts)
        unbreakable = [*words, *(text[number] for text in texts if numeric)]
        table.add_column(" ".join(words), overflow="fold", no_wrap=False, min_width=max(map(len, unbreakable)))
    for text in texts:
        table.add_row(*map(Text, text))  # Text: a name with [brackets] is not markup
    Console().print(table)


def show_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    click.echo(json.dumps(value, indent=2))


def printable(text: str) -> str:
    """Return the text with control characters escaped, as these could change the state of a terminal."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def utc(millis: int) -> str:
    """Return a time in milliseconds since the epoch as ISO text in UTC, with milliseconds."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def iso_time(_context: click.Context, _option: click.Parameter, text: str | None) -> datetime | None:
    """Return an option's ISO time with a zone, local if it names none; None for None. Raises BadParameter."""
    try:
        return datetime.fromisoformat(text).astimezone() if text is not None else None
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an ISO time, such as 2026-03-01T12:00") from None

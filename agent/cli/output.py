"""What commands have in common that print: rows are shown in one way, and a group's help says what its verbs do.

Rows are a table on a terminal, tab-separated lines with a heading in a pipe, and JSON when asked for.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Verbs(click.Group):
    """A group whose help has of each verb the first sentence, in as many lines as it takes; click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """click calls this for the list in `--help`."""
        verbs = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.get_short_help_str(limit=1000)) for name, verb in verbs if verb])


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print rows on standard output.

    Columns are named as JSON keys, `log_end_offset`; a table's heading is LOG END OFFSET, and in a pipe, where lines
    can be cut at tabs, LOG-END-OFFSET. None is shown as `-`, in JSON as null. A table is as wide as the terminal:
    what is longer goes on in the next line, numbers and words of the heading are never cut.
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
        least = [*words, *(text[number] for text in texts if numeric)]
        table.add_column(" ".join(words), overflow="fold", no_wrap=False, min_width=max(map(len, least)))
    for text in texts:
        table.add_row(*map(Text, text))  # Text: a name with [brackets] is not markup
    Console().print(table)


def show_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    click.echo(json.dumps(value, indent=2))


def utc(millis: int) -> str:
    """A time in ISO's form, in milliseconds, of UTC."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def iso_time(_context: click.Context, _option: click.Parameter, text: str | None) -> datetime | None:
    """What an option with a time in ISO's form says; without a zone it is the user's."""
    try:
        return datetime.fromisoformat(text).astimezone() if text is not None else None
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an ISO time, such as 2026-03-01T12:00") from None


def short(number: float | None) -> str:
    """A number in up to seven characters: `9,999`, `12.3 k`; `-` where it is not known."""
    if number is None:
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= max(size, 1e4) * 0.99995:
            return f"{number / size:,.1f} {letter}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.1f}"


def brief(milliseconds: float) -> str:
    """A time in up to seven characters: `0.4 ms`, `12 ms`, and as `span` from ten seconds on."""
    if milliseconds >= 10_000:
        return span(milliseconds / 1000)
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def span(seconds: float | None) -> str:
    """A time in up to seven characters: `12 s`, `3.5 h`; `-` where it is not known."""
    if seconds is None:
        return "-"
    for size, least, unit in ((86400, 172800, "d"), (3600, 3600, "h"), (60, 60, "min")):
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}" if unit == "min" else f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"

"""One way to show rows: a table on a terminal, tab-separated lines in a pipe, JSON when asked for."""

import json
import sys
from collections.abc import Iterable, Sequence

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print rows on standard output.

    Columns are named as JSON keys, `log_end_offset`; a table's heading is LOG-END-OFFSET. Without a terminal there is
    no heading, so that lines can be cut and counted. None is shown as `-`, in JSON as null.
    """
    if as_json:
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
        return
    texts = [["-" if value is None else str(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for text in texts:
            click.echo("\t".join(text))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper().replace("_", "-"), overflow="fold")
    for text in texts:
        table.add_row(*map(Text, text))  # Text: a name with [brackets] is not markup
    Console().print(table)

"""`agent template`."""

from __future__ import annotations

import click

from flafka.agent import scaffold
from flafka.plugins.shared.javaclass import is_java_class


@click.command()
@click.argument("kind", type=click.Choice(scaffold.COMPONENTS))
@click.argument("java_class", required=False)
def template(kind: str, java_class: str | None) -> None:
    """Print a component in Python to start from, which a configuration can name by a Java class that it replaces.

    `agent new` makes one that replaces none, with its test, as a package.

    \b
    agent template source com.acme.OurSource > my_source.py
    """
    if java_class is not None and not is_java_class(java_class):
        raise click.UsageError(f"{java_class!r} is no name of a Java class, such as com.acme.OurSource")
    click.echo(scaffold.for_java(kind, java_class or "com.example.Mine"), nl=False)

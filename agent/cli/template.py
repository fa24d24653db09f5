"""`agent template`."""

from __future__ import annotations

import click

from flafka.agent import scaffold
from flafka.plugins.java.classes import is_java_class


@click.command()
@click.argument("kind", type=click.Choice(scaffold.COMPONENTS))
@click.argument("java_class", required=False)
def template(kind: str, java_class: str | None) -> None:
    """Print a Python component as a template, with a Java class as alias that it replaces in configurations.

    `agent new` creates a component without such an alias, as a package with a test.

    \b
    agent template source com.acme.OurSource > my_source.py
    """
    if java_class is not None and not is_java_class(java_class):
        raise click.UsageError(f"{java_class!r} is not a name of a Java class such as com.acme.OurSource")
    click.echo(scaffold.render_java_replacement(kind, java_class or "com.example.Mine"), nl=False)

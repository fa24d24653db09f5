"""`agent template`."""

from __future__ import annotations

from importlib import resources

import click

from plugins.shared.javaclass import is_java_class


@click.command()
@click.argument("kind", type=click.Choice(["source", "sink", "interceptor"]))
@click.argument("java_class", required=False)
def template(kind: str, java_class: str | None) -> None:
    """Print a component in Python to start from, which a configuration can name by a Java class that it replaces.

    \b
    agent template source com.acme.OurSource > my_source.py
    """
    if java_class is not None and not is_java_class(java_class):
        raise click.UsageError(f"{java_class!r} is no name of a Java class, such as com.acme.OurSource")
    text = (resources.files("plugins.templates") / f"{kind}.py").read_text("utf-8")
    click.echo(text.replace("com.example.Mine", java_class or "com.example.Mine"), nl=False)

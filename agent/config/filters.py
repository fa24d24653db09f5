"""Flume's config filters, which give `${f1['KEY']}` a value."""

from __future__ import annotations

import codecs
import os
import subprocess
from collections.abc import Callable, Mapping

from flafka.agent.config import catalogue
from flafka.agent.config.components import report_missing_option
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties, Groups, configured_components, listed_names
from flafka.agent.config.properties import Property
from flafka.agent.config.substitution import Filter, UnresolvedExpression
from flafka.plugins.problems import suggest

COMMAND_TIMEOUT_SECONDS = 30
_AVAILABLE = "available types: env, external"


def config_filters(
    agent: str, properties: Mapping[str, Property], environment: Mapping[str, str], report: DiagnosticCollector
) -> dict[str, Filter]:
    """Return the config filters that an agent lists, by name. A wrong one is reported, and has no value for any key.

    `properties` are all properties of the agent, by name without the agent's.
    """
    listed, path, groups = properties.get("configfilters"), f"{agent}.configfilters", Groups()
    for key, prop in properties.items():
        kind, _, rest = key.partition(".")
        name, _, option = rest.partition(".")
        if kind == "configfilters" and name and option:
            groups.setdefault(name, {})[option] = prop
    names = listed_names(listed, report, path)
    filters: dict[str, Filter] = dict.fromkeys(names, _unusable_filter)
    for part in configured_components("config filter", names, listed, groups, path, report):
        filters[part.name] = _build_filter(part, environment, report) or _unusable_filter
    return filters


def _build_filter(
    part: ComponentProperties, environment: Mapping[str, str], report: DiagnosticCollector
) -> Filter | None:
    """Return the filter of these properties; None, with an error reported, if it cannot be used."""
    written = part.take("type")
    if written is None:
        report_missing_option(part, "type", _AVAILABLE, report)
        return None
    flume = catalogue.find_type("config filter", written.value)
    alias = flume.alias if flume else ""
    if alias == "env":
        return environment.get
    if alias == "external":
        if (command := part.take("command")) is not None:
            charset = part.take("charset")
            try:
                return _external_filter(command.value, codecs.lookup(charset.value if charset else "utf-8").name)
            except LookupError:
                message = f"unknown character set {charset.value if charset else ''!r}"
        else:
            message = f"command is required: add {part.path}.command = …"
    elif flume:
        message = f"Flume's config filter {flume.alias!r} is not supported; {flume.alternative}"
    else:
        near = suggest(written.value, ["env", "external"])
        message = f"unknown config filter type {written.value!r}{near}; {_AVAILABLE}"
    report.error(written.place, part.path, message)
    return None


def _external_filter(command: str, charset: str) -> Callable[[str], str | None]:
    """Return a filter that runs `command` with the key as last argument, and returns the first line of its output.

    None without output. The filter raises UnresolvedExpression if the command fails or takes longer than 30 s.
    """

    def run_command(key: str) -> str | None:
        words = [*command.split(), key]
        try:
            # With the user's environment, and so without the Kerberos login of Kafka's clients.
            done = subprocess.run(
                words, capture_output=True, timeout=COMMAND_TIMEOUT_SECONDS, check=True, env=os.environ
            )
            text = done.stdout.decode(charset)
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            # The text of the error may hold output of the command, which is a secret.
            raise UnresolvedExpression(f"the command {words[0]!r} fails ({type(e).__name__})") from None
        return next(iter(text.splitlines()), None)

    return run_command


def _unusable_filter(key: str) -> str | None:
    """Raise UnresolvedExpression, in place of a filter that was reported."""
    raise UnresolvedExpression("its config filter cannot be used")

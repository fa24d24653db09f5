"""Flume's config filters: what `${f1['KEY']}` asks."""

from __future__ import annotations

import codecs
import subprocess
from collections.abc import Callable, Mapping

from flafka.agent.config import catalogue
from flafka.agent.config.components import missing
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties, Groups, names_in, parts
from flafka.agent.config.properties import Property
from flafka.agent.config.substitution import Filter, Unresolved
from flafka.plugins.problems import suggestion

COMMAND_SECONDS = 30
BUILT = "built are: env, external"


def config_filters(
    agent: str, properties: Mapping[str, Property], environment: Mapping[str, str], report: DiagnosticCollector
) -> dict[str, Filter]:
    """The config filters an agent lists, by name. `properties` are the agent's own, without its name."""
    listed, path, groups = properties.get("configfilters"), f"{agent}.configfilters", Groups()
    for key, prop in properties.items():
        kind, _, rest = key.partition(".")
        name, _, option = rest.partition(".")
        if kind == "configfilters" and name and option:
            groups.setdefault(name, {})[option] = prop
    names = names_in(listed, report, path)
    made: dict[str, Filter] = dict.fromkeys(names, _unusable)
    for part in parts("config filter", names, listed, groups, path, report):
        made[part.name] = _filter(part, environment, report) or _unusable
    return made


def _filter(part: ComponentProperties, environment: Mapping[str, str], report: DiagnosticCollector) -> Filter | None:
    written = part.take("type")
    if written is None:
        missing(part, "type", BUILT, report)
        return None
    flume = catalogue.find("config filter", written.value)
    alias = flume.alias if flume else ""
    if alias == "env":
        return environment.get
    if alias == "external":
        if (command := part.take("command")) is not None:
            charset = part.take("charset")
            try:
                return _external(command.value, codecs.lookup(charset.value if charset else "utf-8").name)
            except LookupError:
                message = f"there is no character set {charset.value if charset else ''!r}"
        else:
            message = f"command is required: add {part.path}.command = …"
    elif flume:
        message = f"Flume's config filter {flume.alias!r} is not built yet; {flume.instead}"
    else:
        message = (
            f"unknown config filter type {written.value!r}{suggestion(written.value, ['env', 'external'])}; {BUILT}"
        )
    report.error(written.place, part.path, message)
    return None


def _external(command: str, charset: str) -> Callable[[str], str | None]:
    """Gives the first line that the command prints when given the key, in that character set."""

    def ask(key: str) -> str | None:
        words = [*command.split(), key]
        try:
            done = subprocess.run(words, capture_output=True, timeout=COMMAND_SECONDS, check=True)
            text = done.stdout.decode(charset)
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            # Not the error's own text, which may hold what the command printed.
            raise Unresolved(f"the command {words[0]!r} did not give it ({type(e).__name__})") from None
        return next(iter(text.splitlines()), None)

    return ask


def _unusable(key: str) -> str | None:
    raise Unresolved("its config filter cannot be used")

"""Reader of one component: resolves the class, parses the options, and reports each problem at its line."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Mapping
from typing import Any

from flafka.agent.config import catalogue
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties
from flafka.agent.config.paths import absolute_paths
from flafka.agent.config.properties import Property
from flafka.agent.topology import ComponentSpec
from flafka.plugins import Component, Components, Config, Problem, UnknownType, UnusableType
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.installed import describe_class, plugin_location
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.problems import suggest

_SECRET_NAME = re.compile(
    r"password|passphrase|secret|jaas|token$|credential|(api|access|account|private|keystore)[._-]?key|[._]pem$",
    re.IGNORECASE,
)
_TRAILING_COMMENT = re.compile(r"\s#|\s//")
_NAMING_OPTIONS = re.compile(
    r"(?:path|dirs?|directory|file|host(?:s|name|names)?|bind|topics?|servers)$|^filegroups\.", re.IGNORECASE
)
"""Options whose values name something. A `#` or `//` in one is probably meant as a comment."""

COMMON_OPTIONS = {
    "source": ["type", "channels", "interceptors", "selector.type", "selector.optional"],
    "channel": ["type"],
    "sink": ["type", "channel", "interceptors", "group", "runner", "errors.tolerance", "errors.window"],
    "interceptor": ["type"],
}
"""Options of all components of a kind, which the agent itself reads."""


def report_missing_option(part: ComponentProperties, name: str, hint: str, report: DiagnosticCollector) -> None:
    """Report the missing option `name` as an error with `hint` at its end.

    If another option is probably a misspelling of it, report and remove that option instead.
    """
    misspelled = next((option for option in part.properties if suggest(option, [name])), None)
    if misspelled is None:
        report.error(part.place, part.path, f"{name} is missing; {hint}")
    elif prop := part.take(misspelled):
        message = f"unknown option {misspelled!r}, did you mean {name!r}?"
        report.error(prop.place, part.path, message)


def hide_secrets(config_class: type[Config], properties: Mapping[str, Property], report: DiagnosticCollector) -> None:
    """Redact the values of options that are declared as secrets, or whose names look like one."""
    declared = {option.name for option in config_class.options() if option.is_secret}
    declared |= {alias for name, alias in config_class.deprecated_aliases.items() if name in declared}
    for name, prop in properties.items():
        if name in declared or is_secret_name(name):
            report.hide_secret(prop.value, "****")


def is_secret_name(option: str) -> bool:
    """Return True if the name of an option looks like that of a password, a token or a key."""
    return _SECRET_NAME.search(option) is not None


class ComponentReader:
    """Reader of the components of one configuration."""

    def __init__(self, components: Components, report: DiagnosticCollector) -> None:
        self.components, self.report = components, report
        self.drafts: dict[str, ComponentSpec] = {}
        """Components with invalid values, by path, without these values: for checks of several components."""

    def read(self, part: ComponentProperties) -> ComponentSpec | None:
        """Return the component, and remove its type from `part`.

        None, with an error reported, if its class or an option is not usable. Unknown options, warnings of the
        component and missing libraries are reported at their lines. Opens nothing.
        """
        written = part.take("type")
        if written is None:
            report_missing_option(part, "type", self.available_types(part.kind), self.report)
            return None
        if not written.resolved:
            return None
        cls = self._class(part, written)
        if cls is None:
            return None
        self._note_compatibility(part, written, cls)
        texts = {name: prop.value for name, prop in part.properties.items()}
        try:
            config_class = cls.config_class.for_type(written.value)
            texts |= absolute_paths(part.path, config_class.options(), part.properties, self.report)
            hide_secrets(config_class, part.properties, self.report)
            config, problems = config_class.parse(texts)
            warnings = list(config.warnings()) if config is not None else []
        except ANY_FAILURE as e:  # a failing validator of a plugin must not prevent the other checks
            self._report_bug(part, cls, "the options cannot be checked", e)
            return None
        java_prefixes = tuple(f"{problem.option}." for problem in problems if "is a Java class" in problem.message)
        for problem in problems:
            if problem.is_unknown_option:
                texts.pop(problem.option, None)
                if problem.option.startswith(java_prefixes):
                    message = f"{problem.option} is an option of the Java class, which cannot run here"
                    self.report.note(part.properties[problem.option].place, part.path, message)
                    continue
                self._report_unknown_option(part, cls, problem)
            else:
                self._report_wrong_value(part, problem)
        if config is None:
            valid = {name: text for name, text in texts.items() if name not in {p.option for p in problems}}
            self._keep_draft(part, cls, valid)
            return None
        for module, extra in cls.libraries_for(config).items():
            # find_spec of a submodule would import its package.
            if extra and importlib.util.find_spec(module.partition(".")[0]) is None:
                message = f"{module} is not installed: pip install 'flafka[{extra}]'"
                self.report.missing_library(written.place, part.path, message)
                break
        for warning in warnings:
            self._report_warning(part, warning)
        self._warn_trailing_comments(part)
        self._note_accepted_options(part, config_class, {warning.option for warning in warnings})
        spec = ComponentSpec(part.name, part.path, cls, config, texts, part.place)
        try:
            spec.make()
        except ANY_FAILURE as e:  # the constructor of a plugin may raise anything
            self._report_bug(part, cls, "the component cannot be created", e)
            return None
        return spec

    def _keep_draft(self, part: ComponentProperties, cls: type[Component[Any]], valid: dict[str, str]) -> None:
        """Keep a component with the `valid` options in `drafts`, unless an option that it requires is invalid."""
        try:
            config, _ = cls.config_class.parse(valid)
            draft = ComponentSpec(part.name, part.path, cls, config, valid, part.place) if config else None
            if draft is not None and draft.make():
                self.drafts[part.path] = draft
        except ANY_FAILURE:  # the reported values are the reason
            return

    def available_types(self, kind: str) -> str:
        """Return `available types: …` with the installed types of a kind, as part of an error message."""
        return f"available types: {', '.join(cls.type_name for cls in self.components.all(kind)) or 'none'}"

    def _class(self, part: ComponentProperties, written: Property) -> type[Component[Any]] | None:
        """Return the class of this type or Java class; None, after an error, if no usable one is installed."""
        try:
            return self.components.get(part.kind, written.value)
        except UnusableType as e:
            self.report.error(written.place, part.path, str(e))
            return None
        except UnknownType as e:
            unknown = str(e)
        available = self.available_types(part.kind)
        if flume := catalogue.find_type(part.kind, written.value):
            message = f"Flume's {flume.name!r} {part.kind} is not supported; {flume.alternative or available}"
            if flume.java.startswith("org.apache.flume.source.twitter."):
                message = java_class_error(part.kind, flume.java)
            self.report.error(written.place, part.path, message)
            return None
        near = catalogue.spelling_hint(part.kind, written.value)
        if is_java_class(written.value) and not near:
            message = java_class_error(part.kind, written.value)
        else:
            message = unknown if unknown.endswith("?") else f"{unknown}{near or f'; {available}'}"
        message += trailing_comment_hint(written)
        if any(fault.is_whole_plugin for fault in self.components.faults):
            message += " (or its plugin cannot be used: see the warnings)"
        self.report.error(written.place, part.path, message)
        return None

    def _note_compatibility(self, part: ComponentProperties, written: Property, cls: type[Component[Any]]) -> None:
        """Note how the class differs from Flume's, at the option that a note is about, or else at the type."""
        for note in cls.compatibility_notes:
            prop = part.properties.get(note.option) if note.option else written
            if prop:
                self.report.note(prop.place, part.path, str(note), differs=note.is_common)

    def _warn_trailing_comments(self, part: ComponentProperties) -> None:
        """Warn about values that name something and probably end in a comment."""
        for name, prop in part.properties.items():
            if _NAMING_OPTIONS.search(name) and (match := _TRAILING_COMMENT.search(prop.value)):
                comment = prop.value[match.start() :].strip()
                self.report.warn(
                    prop.place,
                    part.path,
                    f"{comment!r} is part of the value of {name}, as in Flume{trailing_comment_hint(prop)}",
                )

    def _note_accepted_options(
        self, part: ComponentProperties, config_class: type[Config], reported: Collection[str]
    ) -> None:
        """Note options without effect, except those in `reported`, and deprecated aliases."""
        current_names = {alias: name for name, alias in config_class.deprecated_aliases.items()}
        without = config_class.list_options_without_effect()
        for name, prop in part.properties.items():
            reason = next(
                (why for o, why in without.items() if name == o or (o[-1] == "." and name.startswith(o))), ""
            )
            if reason and name not in reported:
                self.report.note(prop.place, part.path, f"{name} has no effect: {reason}")
            elif name in current_names:
                self.report.note(prop.place, part.path, f"{name} is a deprecated alias of {current_names[name]}")

    def _report_warning(self, part: ComponentProperties, warning: Problem) -> None:
        """Report a problem that keeps no component from running, as missing library, note or warning."""
        prop = part.properties.get(warning.option)
        place, message = prop.place if prop else part.place, f"{warning.option} {warning.message}"
        if warning.is_library_missing:
            self.report.missing_library(place, part.path, message)
            return
        if warning.is_note:
            self.report.note(place, part.path, message)
            return
        replacement = warning.replacement
        if prop is None or not prop.resolved:
            replacement = None
        elif replacement is not None:
            replacement = {f"{part.path}.{name}": value for name, value in replacement.items()}
        self.report.warn(place, part.path, message, differs=not warning.is_flume_behavior, replacement=replacement)

    def _report_bug(
        self, part: ComponentProperties, cls: type[Component[Any]], what: str, error: BaseException
    ) -> None:
        """Report an exception of a plugin's code as an error, with the line in the plugin that raised it."""
        culprit = plugin_location(error) or describe_class(cls)
        message = f"{what}, a bug in {culprit}: {type(error).__name__}: {error}"
        self.report.error(part.place, part.path, message)

    def _report_unknown_option(self, part: ComponentProperties, cls: type[Component[Any]], problem: Problem) -> None:
        """Report an unknown option: as an error for a component of Python only, else as a warning or note.

        Java classes accept unknown options, and old files have options of former versions.
        """
        place, message = part.properties[problem.option].place, problem.message
        if not message.endswith("?"):
            message += suggest(problem.option, COMMON_OPTIONS[part.kind])
        # Java classes silently accept unknown options, and old files contain options of former versions.
        if any(alias.startswith("org.apache.flume.") for alias in cls.aliases):
            types = self._types_with_option(part.kind, problem.option)
            report_at = self.report.warn if message.endswith("?") or types else self.report.note
            hint = f": it is an option of {types}" if types and not message.endswith("?") else ""
            report_at(place, part.path, f"{message} (ignored){hint}")
        elif any("." in alias for alias in cls.aliases):
            # The Java class that the plugin replaces may have had the option.
            self.report.warn(place, part.path, f"{message} (ignored)", differs=True)
        else:
            self.report.error(place, part.path, message)

    def _types_with_option(self, kind: str, option: str) -> str:
        """Return the names of the types of this kind that have the option with an effect, separated by commas."""
        return ", ".join(
            cls.type_name
            for cls in self.components.all(kind)
            if any(o.name == option and not o.without_effect for o in cls.config_class.options())
        )

    def _report_wrong_value(self, part: ComponentProperties, problem: Problem) -> None:
        """Report a wrong or missing value as an error, unless an unresolved `${…}` in it was reported before."""
        prop = part.properties.get(problem.option)
        concerned = [prop] if prop else part.properties.values() if not problem.option else []
        if any(not p.resolved for p in concerned):
            return
        option, message = problem.option, problem.message
        if prop:
            message += trailing_comment_hint(prop)
        if message == "is required":
            message += f": add {part.path}.{option} = …"
        option += "*" * option.endswith(".")
        kind = option.rpartition(".")[2]
        if option and not message.startswith(kind):
            message = (
                f"{option} {message}" if message.startswith(("is ", "must ", "has ")) else f"{option}: {message}"
            )
        if (
            prop
            and kind in ("serializer", "deserializer")
            and not re.search("not (built|supported)", message)
            and (flume := catalogue.find_type(kind, prop.value))
        ):
            message = f"Flume's {flume.name!r} {kind} is not supported here: {message}"
            self.report.error(prop.place, part.path, message)
            return
        self.report.error(prop.place if prop else part.place, part.path, message)


def trailing_comment_hint(prop: Property) -> str:
    """Return the advice to move a comment to its own line if the value may end in a comment; else an empty text."""
    return "; write a comment on a line of its own, beginning with #" if _TRAILING_COMMENT.search(prop.value) else ""

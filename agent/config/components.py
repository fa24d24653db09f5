"""Reader of one component: finds its class, reads its options, and reports each problem at its line."""

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
from flafka.plugins.installed import blamed, described
from flafka.plugins.problems import suggestion
from flafka.plugins.shared.javaclass import cannot_run, is_java_class

_SECRET_NAME = re.compile(r"password|passphrase|secret|jaas|token$|credential|api[._-]?key|[._]pem$", re.IGNORECASE)
_BEHIND = re.compile(r"\s#|\s//")
_NAMES = re.compile(
    r"(?:path|dirs?|directory|file|host(?:s|name|names)?|bind|topics?|servers)$|^filegroups\.", re.IGNORECASE
)
"""Options in whose values nobody writes what begins a comment elsewhere."""

COMMON = {
    "source": ["type", "channels", "interceptors", "selector.type", "selector.optional"],
    "channel": ["type"],
    "sink": ["type", "channel", "interceptors", "group", "runner", "errors.tolerance", "errors.window"],
    "interceptor": ["type"],
}
"""Options that all components of a kind have, and that the agent itself reads."""


def missing(part: ComponentProperties, name: str, hint: str, report: DiagnosticCollector) -> None:
    """Report a missing common option, or the one that is it but for a typing error."""
    mistyped = next((other for other in part.properties if suggestion(other, [name])), None)
    if mistyped is None:
        report.error(part.place, part.path, f"{name} is missing; {hint}")
    elif prop := part.take(mistyped):
        message = f"unknown option {mistyped!r}, did you mean {name!r}?"
        report.error(prop.place, part.path, message)


class ComponentReader:
    """Reads components of one configuration."""

    def __init__(self, components: Components, report: DiagnosticCollector) -> None:
        self.components, self.report = components, report

    def read(self, part: ComponentProperties) -> ComponentSpec | None:
        """The component; None where its class or its options cannot be had."""
        written = part.take("type")
        if written is None:
            missing(part, "type", self.built(part.kind), self.report)
            return None
        if not written.resolved:
            return None
        cls = self._class(part, written)
        if cls is None:
            return None
        self._tell_differences(part, written, cls)
        texts = {name: prop.value for name, prop in part.properties.items()}
        try:
            config_class = cls.config_class.for_type(written.value)
            texts |= absolute_paths(part.path, config_class.options(), part.properties, self.report)
            self._hide_secrets(config_class, part.properties)
            config, problems = config_class.parse(texts)
            cautions = list(config.warnings()) if config is not None else []
        except ANY_FAILURE as e:  # a plugin's own check, which must not keep the rest from being checked
            self._bug(part, cls, "its options cannot be checked", e)
            return None
        javas = tuple(f"{one.option}." for one in problems if "is a Java class" in one.message)
        for problem in problems:
            if problem.unknown:
                texts.pop(problem.option, None)
                if problem.option.startswith(javas):
                    message = f"{problem.option} is read by the Java class, which cannot run here"
                    self.report.note(part.properties[problem.option].place, part.path, message)
                    continue
                self._unknown(part, cls, problem)
            else:
                self._wrong(part, problem)
        if config is None:
            return None
        for module, extra in cls.libraries_for(config).items():
            # Only the package is looked for: to find a module in it, Python would import it.
            if extra and importlib.util.find_spec(module.partition(".")[0]) is None:
                message = f"{module} is not installed: pip install 'flafka[{extra}]'"
                self.report.uninstalled(written.place, part.path, message)
                break
        for caution in cautions:
            self._caution(part, caution)
        self._tell_comments(part)
        self._tell_accepted(part, config_class, {caution.option for caution in cautions})
        spec = ComponentSpec(part.name, part.path, cls, config, texts, part.place)
        try:
            spec.make()
        except ANY_FAILURE as e:  # a plugin's constructor may raise whatever its author wrote
            self._bug(part, cls, "it cannot be made", e)
            return None
        return spec

    def built(self, kind: str) -> str:
        """Return the types that there are, as part of a sentence."""
        return f"built are: {', '.join(cls.type_name for cls in self.components.all(kind)) or 'none'}"

    def _class(self, part: ComponentProperties, written: Property) -> type[Component[Any]] | None:
        try:
            return self.components.get(part.kind, written.value)
        except UnusableType as e:
            self.report.error(written.place, part.path, str(e))
            return None
        except UnknownType as e:
            unknown = str(e)
        built = self.built(part.kind)
        if flume := catalogue.find(part.kind, written.value):
            message = f"Flume's {flume.name!r} {part.kind} is not built yet; {flume.instead or built}"
            if flume.java.startswith("org.apache.flume.source.twitter."):
                message = cannot_run(part.kind, flume.java)
            self.report.error(written.place, part.path, message)
            return None
        near = catalogue.near(part.kind, written.value)
        if is_java_class(written.value) and not near:
            message = cannot_run(part.kind, written.value)
        else:
            message = unknown if unknown.endswith("?") else f"{unknown}{near or f'; {built}'}"
        message += comment_behind(written)
        if any(fault.whole for fault in self.components.faults):
            message += " (it may be of a plugin that cannot be used: see the warnings)"
        self.report.error(written.place, part.path, message)
        return None

    def _tell_differences(self, part: ComponentProperties, written: Property, cls: type[Component[Any]]) -> None:
        for one in cls.compatibility_notes:
            concerned = part.properties.get(one.option) if one.option else written
            if concerned:
                self.report.note(concerned.place, part.path, str(one), differs=one.seen)

    def _tell_comments(self, part: ComponentProperties) -> None:
        """Values that name something and end in what was probably meant as a comment."""
        for name, prop in part.properties.items():
            if _NAMES.search(name) and (found := _BEHIND.search(prop.value)):
                behind = prop.value[found.start() :].strip()
                self.report.warn(
                    prop.place, part.path, f"{behind!r} is a part of {name}, as in Flume{comment_behind(prop)}"
                )

    def _tell_accepted(self, part: ComponentProperties, config_class: type[Config], told: Collection[str]) -> None:
        """Options of Flume's that have no effect, and older names."""
        newer = {older: new for new, older in config_class.deprecated_aliases.items()}
        without = config_class.without_effect()
        for name, prop in part.properties.items():
            why = next(
                (w for one, w in without.items() if name == one or (one[-1] == "." and name.startswith(one))), ""
            )
            if why and name not in told:
                self.report.note(prop.place, part.path, f"{name} has no effect: {why}")
            elif name in newer:
                self.report.note(prop.place, part.path, f"{name} is a former name of {newer[name]}")

    def _caution(self, part: ComponentProperties, caution: Problem) -> None:
        prop = part.properties.get(caution.option)
        place, message = prop.place if prop else part.place, f"{caution.option} {caution.message}"
        if caution.uninstalled:
            self.report.uninstalled(place, part.path, message)
            return
        if caution.note:
            self.report.note(place, part.path, message)
            return
        instead = caution.instead
        if prop is None or not prop.resolved:
            instead = None
        elif instead is not None:
            instead = {f"{part.path}.{name}": value for name, value in instead.items()}
        self.report.warn(place, part.path, message, differs=not caution.as_in_flume, instead=instead)

    def _bug(self, part: ComponentProperties, cls: type[Component[Any]], what: str, error: BaseException) -> None:
        culprit = blamed(error) or described(cls)
        message = f"{what}, a bug in {culprit}: {type(error).__name__}: {error}"
        self.report.error(part.place, part.path, message)

    def _hide_secrets(self, config_class: type[Config], properties: Mapping[str, Property]) -> None:
        declared = {option.name for option in config_class.options() if option.secret}
        declared |= {older for newer, older in config_class.deprecated_aliases.items() if newer in declared}
        for name, prop in properties.items():
            if name in declared or _SECRET_NAME.search(name):
                self.report.secret(prop.value, "****")

    def _unknown(self, part: ComponentProperties, cls: type[Component[Any]], problem: Problem) -> None:
        place, message = part.properties[problem.option].place, problem.message
        if not message.endswith("?"):
            message += suggestion(problem.option, COMMON[part.kind])
        # Java classes take what they do not know without a word, and old files carry what they once knew.
        if any(alias.startswith("org.apache.flume.") for alias in cls.aliases):
            others = self._having(part.kind, problem.option)
            tell = self.report.warn if message.endswith("?") or others else self.report.note
            of = f": it is an option of {others}" if others and not message.endswith("?") else ""
            tell(place, part.path, f"{message} (ignored){of}")
        elif any("." in alias for alias in cls.aliases):
            # The class that it takes the place of may have read it.
            self.report.warn(place, part.path, f"{message} (ignored)", differs=True)
        else:
            self.report.error(place, part.path, message)

    def _having(self, kind: str, option: str) -> str:
        return ", ".join(
            cls.type_name
            for cls in self.components.all(kind)
            if any(one.name == option and not one.without_effect for one in cls.config_class.options())
        )

    def _wrong(self, part: ComponentProperties, problem: Problem) -> None:
        prop = part.properties.get(problem.option)
        concerned = [prop] if prop else part.properties.values() if not problem.option else []
        if any(not one.resolved for one in concerned):
            return
        option, message = problem.option, problem.message
        if prop:
            message += comment_behind(prop)
        if message == "is required":
            message += f": add {part.path}.{option} = …"
        option += "*" * option.endswith(".")
        kind = option.rpartition(".")[2]
        if option and not message.startswith(kind):
            message = (
                f"{option} {message}" if message.startswith(("is ", "must ", "has ")) else f"{option}: {message}"
            )
        built = "not built" not in message
        if built and prop and kind in ("serializer", "deserializer") and (flume := catalogue.find(kind, prop.value)):
            message = f"Flume's {flume.name!r} {kind} is not built here yet: {message}"
            self.report.error(prop.place, part.path, message)
            return
        self.report.error(prop.place if prop else part.place, part.path, message)


def comment_behind(prop: Property) -> str:
    """A hint where what keeps a value from being understood may be a comment behind it."""
    return "; a comment is a line of its own, which begins with #" if _BEHIND.search(prop.value) else ""

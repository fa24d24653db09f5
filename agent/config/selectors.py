"""Reader of channel selectors: `a1.sources.s1.selector.*`."""

from __future__ import annotations

from typing import cast

from flafka.agent.config import catalogue
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties, listed_names
from flafka.agent.config.properties import Property
from flafka.agent.topology import Policy, Route, SelectorKind, SelectorSpec
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.problems import suggest

SELECTOR_OPTIONS: dict[str, list[str]] = {
    "replicating": ["type", "optional"],
    "multiplexing": ["type", "header", "mapping.", "optional.", "default"],
    "load_balancing": ["type", "policy"],
}

DEFAULT_HEADER = "flume.selector.header"


class SelectorReader:
    """Reader of the selector of one source.

    `properties` are those under `selector.`; `channels` are the channels of the source.
    """

    def __init__(
        self,
        part: ComponentProperties,
        properties: dict[str, Property],
        channels: tuple[str, ...],
        report: DiagnosticCollector,
    ) -> None:
        self._part, self._properties, self._channels, self._report = part, properties, channels, report

    def read(self) -> SelectorSpec:
        """Return the selector; the default, a replicating selector without routes, if its type is unknown.

        Each mistake is reported as an error, with which the source cannot run; an unknown option is a warning.
        """
        kind = self._kind()
        if kind is None:
            return SelectorSpec()
        spec = {
            "replicating": self._replicating,
            "multiplexing": self._multiplexing,
            "load_balancing": self._load_balancing,
        }[kind]()
        for name, prop in self._properties.items():
            message = f"unknown option {'selector.' + name!r}{suggest(name, SELECTOR_OPTIONS[kind])} (ignored)"
            self._report.warn(prop.place, self._part.path, message)
        return spec

    def _kind(self) -> SelectorKind | None:
        """Remove the type and return its kind, by default "replicating"; None, after an error, if it is unknown."""
        written = self._properties.pop("type", None)
        if written is None:
            return "replicating"
        if flume := catalogue.find_type("selector", written.value):
            if flume.alias == "load_balancing":
                message = "Flume: a source with this selector does not run, as Flume does not find its configuration"
                self._report.note(written.place, self._part.path, f"{message}. Here: it runs", differs=True)
            return cast(SelectorKind, flume.alias)
        if is_java_class(written.value):
            self._report_error(written, java_class_error("channel selector", written.value))
            return None
        near = suggest(written.value, list(SELECTOR_OPTIONS)) or f"; available types: {', '.join(SELECTOR_OPTIONS)}"
        self._report_error(written, f"unknown selector type {written.value!r}{near}")
        return None

    def _replicating(self) -> SelectorSpec:
        listed = self._properties.pop("optional", None)
        optional = self._names("optional", listed)
        required = tuple(name for name in self._channels if name not in optional)
        if listed and self._channels and not required:
            message = "all channels of the source are optional: an event that they reject is lost"
            self._report.warn(listed.place, self._part.path, message)
        return SelectorSpec("replicating", Route(required, optional))

    def _multiplexing(self) -> SelectorSpec:
        header = self._properties.pop("header", None)
        header_name = header.value if header else DEFAULT_HEADER
        default = self._properties.pop("default", None)
        default_channels = self._names("default", default)
        mapping, optional = self._take_routes("mapping."), self._take_routes("optional.")
        routes = {}
        for value in dict.fromkeys((*mapping, *optional)):
            required = mapping.get(value) or default_channels
            also = tuple(name for name in optional.get(value, ()) if name not in required)
            routes[value] = Route(required, also)
        if default is None:
            message = (
                f"events whose header {header_name!r} is missing or not mapped are dropped: set selector.default"
            )
            self._report.warn((header or self._part).place, self._part.path, message)
        return SelectorSpec("multiplexing", Route(default_channels), header_name, routes)

    def _load_balancing(self) -> SelectorSpec:
        policy = self._properties.pop("policy", None)
        name = policy.value.lower() if policy else "round_robin"
        if policy and name not in ("round_robin", "random"):
            near = suggest(name, ["round_robin", "random"])
            self._report_error(policy, f"selector.policy must be round_robin or random, not {policy.value!r}{near}")
            name = "round_robin"
        return SelectorSpec("load_balancing", Route(self._channels), policy=cast(Policy, name))

    def _take_routes(self, prefix: str) -> dict[str, tuple[str, ...]]:
        """Remove the options that begin with `prefix`, and return channels by header value."""
        keys = [key for key in self._properties if key.startswith(prefix) and key != prefix]
        return {key.removeprefix(prefix): self._names(key, self._properties.pop(key)) for key in keys}

    def _names(self, option: str, listed: Property | None) -> tuple[str, ...]:
        """Return the channels in an option's list that the source has. Each other name is reported as an error."""
        names = listed_names(listed, self._report, self._part.path)
        for name in names:
            if listed and self._channels and name not in self._channels:
                self._report_error(listed, f"selector.{option} names {name!r}, which is not a channel of the source")
        return tuple(name for name in names if name in self._channels)

    def _report_error(self, prop: Property, message: str) -> None:
        self._report.error(prop.place, self._part.path, message)

"""What Apache Flume 1.11 itself makes of a file: which components survive its checks, and the errors it notes.

Flume drops what is wrong and runs the rest. `--lenient` follows it, and the conformance cases hold this to it, so
its quirks are here too: names are visited in the order of Java's hash sets (of two sink groups with one sink, that
order decides who gets it), and where a component cannot be made at all, the errors of the one before are noted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.config import catalogue
from agent.config.properties import BLANKS, LISTS, words
from agent.topology import ComponentSpec

_KINDS = {"sources": "source", "channels": "channel", "sinks": "sink", "configfilters": "config filter"}


_BATCHES = {
    "source seq": ("batchSize", "1"),
    "source exec": ("batchSize", "20"),
    "source spooldir": ("batchSize", "100"),
    "source multiport_syslogtcp": ("batchSize", "100"),
    "source TAILDIR": ("batchSize", "100"),
    "source jms": ("batchSize", "100"),
    "source org.apache.flume.source.kafka.KafkaSource": ("batchSize", "1000"),
    "sink avro": ("batch-size", "100"),
    "sink thrift": ("batch-size", "100"),
    "sink null": ("batchSize", "100"),
    "sink file_roll": ("sink.batchSize", "100"),
    "sink hdfs": ("hdfs.batchSize", "100"),
    "sink hbase": ("batchSize", "100"),
    "sink asynchbase": ("batchSize", "100"),
    "sink hbase2": ("batchSize", "100"),
    "sink morphline_solr": ("batchSize", "1000"),
    "sink hive": ("batchSize", "15000"),
    "sink org.apache.flume.sink.kafka.KafkaSink": ("flumeBatchSize", "100"),
}
"""Flume's components that say how many events they move at once: the property and its default."""
_TRANSACTIONS = {"channel memory": "100", "channel file": "10000"}
"""Flume's channels whose transactions are bounded, and the default of transactionCapacity."""


@dataclass(frozen=True, order=True)
class Finding:
    """One entry of Flume's error list."""

    level: str
    code: str
    component: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.level} {self.code} component={self.component} key={self.key}"


@dataclass(frozen=True)
class Survivors:
    """The components of one agent that Flume would go on to make."""

    sources: list[str]
    channels: list[str]
    sinks: list[str]
    sinkgroups: list[str]
    configfilters: list[str]


def validate(properties: Mapping[str, str]) -> tuple[dict[str, Survivors | None], list[Finding]]:
    """Per agent what survives (None: the agent is invalid), and all Flume would complain about.

    Raises ValueError where Flume's own check ends in an exception.
    """
    findings: list[Finding] = []
    agents: dict[str, _Agent | None] = {}
    for raw, value in properties.items():
        name = raw.strip(BLANKS)
        agent_name, dot, key = name.partition(".")
        if dot and agent_name:
            agents.setdefault(agent_name, None)
        if not value.strip(BLANKS):
            findings.append(Finding("ERROR", "PROPERTY_VALUE_NULL", name))
        elif not dot or not agent_name:
            findings.append(Finding("ERROR", "AGENT_NAME_MISSING", name))
        elif not key:
            findings.append(Finding("ERROR", "PROPERTY_NAME_NULL", name))
        else:
            agent = agents[agent_name] = agents[agent_name] or _Agent(agent_name, findings)
            agent.add(key, value.strip(BLANKS))
    return {name: agent.survivors() if agent else None for name, agent in agents.items()}, findings


@dataclass
class _Agent:
    name: str
    findings: list[Finding]
    lists: dict[str, str] = field(default_factory=dict)
    components: dict[str, dict[str, dict[str, str]]] = field(default_factory=lambda: {kind: {} for kind in LISTS})

    def note(self, code: str, key: str, level: str = "ERROR") -> None:
        self.findings.append(Finding(level, code, self.name, key))

    def add(self, key: str, value: str) -> None:
        if key in LISTS:
            if key in self.lists:
                self.note("DUPLICATE_PROPERTY", key)
            else:
                self.lists[key] = value
            return
        kind, _, rest = key.partition(".")
        # The first character of a name may be a dot: Flume looks for the one that ends it from the second on.
        end = rest.find(".", 1)
        if kind not in LISTS or end < 0 or not rest[end + 1 :]:
            self.note("INVALID_PROPERTY", key)
        else:
            self.components[kind].setdefault(rest[:end].strip(BLANKS), {})[rest[end + 1 :]] = value

    def survivors(self) -> Survivors | None:
        filters = self._check("configfilters", _has_type)
        channels = self._check("channels", _has_type)
        if not channels:
            self.note("PROPERTY_VALUE_NULL", "channels")
            self.note("AGENT_CONFIGURATION_INVALID", "")
            return None
        sources = self._check("sources", lambda name, props: _check_source(name, props, channels))
        sinks = self._check("sinks", lambda name, props: _check_sink(name, props, channels))
        for kind in ("sources", "sinks"):
            if kind not in self.lists:
                self.note("PROPERTY_VALUE_NULL", kind, "WARNING")
        groups = self._groups(sinks)
        if not sources and not sinks:
            self.note("PROPERTY_VALUE_NULL", "sources")
            self.note("PROPERTY_VALUE_NULL", "sinks")
            self.note("AGENT_CONFIGURATION_INVALID", "")
            return None
        return Survivors(sources, channels, sinks, groups, filters)

    def _check(self, kind: str, check: Callable[[str, dict[str, str]], tuple[bool, list[Finding]]]) -> list[str]:
        kept: list[str] = []
        previous: list[Finding] = []
        for name in java_order(words(self.lists.get(kind, ""))):
            properties = self.components[kind].get(name)
            if properties is None:
                self.note("CONFIG_ERROR", name)
                continue
            if not _makeable(_KINDS[kind], properties.get("type", ""), properties.get("config", "OTHER")):
                self.findings += previous
                continue
            good, previous = check(name, properties)
            self.findings += previous
            if good:
                kept.append(name)
        return kept

    def _groups(self, sinks: list[str]) -> list[str]:
        taken: set[str] = set()
        kept = []
        tokens = [token for token in self.lists.get("sinkgroups", "").split(" ") if token]
        for name in java_order(tokens, grown=True):
            group = self.components["sinkgroups"].get(name)
            if group is None:
                self.note("CONFIG_ERROR", name)
                continue
            if "sinks" not in group:
                raise ValueError(f"sink group {name} names no sinks")
            if group.get("processor.type", "").upper() == "OTHER":
                self.note("CONFIG_ERROR", name)
                continue
            mine = []
            for sink in java_order(words(group["sinks"])):
                if sink in taken:
                    self.note("PROPERTY_PART_OF_ANOTHER_GROUP", name)
                elif sink not in sinks:
                    self.note("INVALID_PROPERTY", sink)
                else:
                    mine.append(sink)
            taken.update(mine)
            if mine:
                kept.append(name)
            else:
                self.note("CONFIG_ERROR", name)
                self.note("CONFIG_ERROR", name)
        return kept


def _has_type(name: str, properties: Mapping[str, str]) -> tuple[bool, list[Finding]]:
    missing = "type" not in properties
    return not missing, [Finding("ERROR", "ATTRS_MISSING", name, "type")] if missing else []


def _check_source(name: str, properties: dict[str, str], channels: list[str]) -> tuple[bool, list[Finding]]:
    typed, findings = _has_type(name, properties)
    if not typed:
        return False, findings
    selector_failed = Finding("ERROR", "CONFIG_ERROR", name, "ChannelSelector")
    if "channels" not in properties:
        return False, [Finding("ERROR", "PROPERTY_VALUE_NULL", name, "Channel"), selector_failed]
    selector = properties.get("selector.type", "replicating")
    if not _makeable("selector", selector, properties.get("selector.config", "OTHER")):
        return False, [selector_failed]
    return any(channel in channels for channel in words(properties["channels"])), []


def _check_sink(name: str, properties: dict[str, str], channels: list[str]) -> tuple[bool, list[Finding]]:
    typed, findings = _has_type(name, properties)
    if typed and "channel" not in properties:
        findings = [Finding("ERROR", "PROPERTY_VALUE_NULL", name, "channel")]
    return properties.get("channel") in channels and typed, findings


def _makeable(kind: str, written: str, config: str) -> bool:
    """Whether Flume finds a configuration class: by the type where it knows that, else by the property `config`."""
    if written.upper() == "OTHER":
        return True
    if (known := catalogue.find(kind, written)) is None or not known.alias:
        known = catalogue.find(kind, config)
        if config.upper() != "OTHER" and (known is None or known.alias.upper() != config.upper()):
            return False
    # Flume lists this selector among its types and forgets it among their configurations.
    return known is None or known.alias != "load_balancing"


def too_much_at_once(kind: str, spec: ComponentSpec, channel: ComponentSpec) -> str:
    """Why Flume drops a source or sink: it moves more at once than a transaction of its channel holds; else empty."""
    batches = _BATCHES.get(_flume_name(kind, spec))
    default = _TRANSACTIONS.get(_flume_name("channel", channel))
    if batches is None or default is None:
        return ""
    batch = int(spec.properties.get(*batches))
    capacity = int(channel.properties.get("transactionCapacity", default))
    if batch <= capacity:
        return ""
    return f"{batches[0]} = {batch} is more than a transaction of channel {channel.name} holds, {capacity}"


def _flume_name(kind: str, spec: ComponentSpec) -> str:
    known = (catalogue.find(kind, name) for name in (spec.cls.type_name, *spec.cls.aliases))
    return next((f"{kind} {flume.name}" for flume in known if flume), "")


def java_order(names: Iterable[str], *, grown: bool = False) -> list[str]:
    """Distinct names in the order of a java.util.HashSet: made of a list, or `grown` name by name."""
    listed = list(names)
    distinct = list(dict.fromkeys(listed))
    capacity = 16
    while capacity * 0.75 < len(distinct) if grown else capacity < int(len(listed) / 0.75) + 1:
        capacity *= 2
    return sorted(distinct, key=lambda name: _spread(name) & (capacity - 1))


def _spread(name: str) -> int:
    """java.util.HashMap's hash of a text: Java's own, its upper half folded into the lower."""
    code = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16

"""Topology of a configured agent as nodes and edges, and its rendering as text, Mermaid and SVG."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Literal

from flafka.agent.options import format_option_value
from flafka.agent.topology import AgentSpec, ComponentSpec, Route, SinkSpec, SourceSpec
from flafka.plugins import Channel, Config, StreamingSink
from flafka.plugins.kafka.topic import KafkaBackedChannel

NodeKind = Literal["source", "interceptor", "channel", "sink"]
EdgeKind = Literal["events", "optional", "overflow", "topic"]
"""`optional`: failed puts are counted and dropped. `topic`: a channel reads the topic that a processor writes."""


@dataclass(frozen=True)
class Node:
    """One component."""

    id: str
    """Path in the configuration, `a1.sinks.k1`."""
    kind: NodeKind
    name: str
    type: str
    words: tuple[str, ...] = ()
    """Annotations: `on Spark`, `group g1`, `by header type`."""
    metrics: str = ""
    """Key of its metrics, `SINK.k1`."""
    lag_unit: str = ""
    """Unit of a sink's lag: `events`, or `records` of a Kafka channel whose records hold many events each."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that the configuration sets, without secrets."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Values of the other options."""
    place: str = ""
    """File and line."""
    is_durable: bool = True
    """True unless the events of this channel are lost with the process."""
    interceptors: tuple[Node, ...] = ()
    """Interceptors behind a source, or before a sink, in their order."""


@dataclass(frozen=True)
class Edge:
    """Flow of events from one component to another."""

    start: str
    end: str
    """Ids of nodes."""
    kind: EdgeKind = "events"
    label: str = ""
    """Description of the events on this edge; empty for all events."""
    metrics: str = ""
    """Key of its metrics, `ROUTE.s1.c1`; empty if the edge has no metrics."""


@dataclass(frozen=True)
class SinkGroup:
    """Sinks that drain one channel together."""

    name: str
    kind: str
    sinks: tuple[str, ...]
    """Ids of nodes."""


@dataclass(frozen=True)
class Graph:
    """Topology of one agent, in the order of its file."""

    agent: str
    file: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[SinkGroup, ...]
    lines: Mapping[str, str] = field(default_factory=dict)
    """Key → value of each line of the configuration in effect, without secrets."""
    arguments: str = ""
    """Arguments of commands for this agent, for any working directory: `-c /etc/flafka/agent.conf -n a1`."""


def graph_of(spec: AgentSpec) -> Graph:
    """Return the graph of an agent: nodes are sources, then channels, then sinks, in the order of the file."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    paths = {channel.name: channel.path for channel in spec.channels}
    for source in spec.sources:
        nodes.append(_node_with_interceptors(spec, source, "source", _source_words(source), f"SOURCE.{source.name}"))
        edges += (
            Edge(source.path, paths[name], kind, label, f"ROUTE.{route_of(source, name)}")
            for name, kind, label in _routes(source)
        )
    for channel in spec.channels:
        nodes.append(_node(spec, channel, "channel", (), f"CHANNEL.{channel.name}"))
        if (overflow := channel.overflow) is not None:
            edges.append(Edge(channel.path, paths[overflow], "overflow", "while brokers are away"))
    for sink in spec.sinks:
        words = (*(["on Spark"] * (sink.runner == "spark")), *([f"group {sink.group}"] if sink.group else []))
        nodes.append(_node_with_interceptors(spec, sink, "sink", words, f"SINK.{sink.name}"))
        edges.append(Edge(paths[sink.channel], sink.path))
        edges += (Edge(sink.path, path, "topic", topic) for topic, path in _topic_edges(sink, spec))
    paths = {sink.name: sink.path for sink in spec.sinks}
    groups = tuple(
        SinkGroup(group.name, group.processor.kind, tuple(paths[name] for name in group.sinks if name in paths))
        for group in spec.groups
    )
    return Graph(
        spec.name, str(Path(spec.file).absolute()), tuple(nodes), tuple(edges), groups, spec.shown, spec.arguments
    )


def route_of(source: SourceSpec, channel: str) -> str:
    """Return the name of the metrics of a source's puts into a channel: `<source>.<channel>`."""
    return f"{source.name}.{channel}"


def metrics_of_interceptor(spec: AgentSpec, owner: SourceSpec | SinkSpec, name: str) -> str:
    """Return the name of an interceptor's metrics: `<source or sink>.<name>`.

    The name is `sinks.<sink>.<name>` for a sink that has the name of a source.
    """
    is_ambiguous = isinstance(owner, SinkSpec) and any(source.name == owner.name for source in spec.sources)
    return f"{'sinks.' if is_ambiguous else ''}{owner.name}.{name}"


def _node_with_interceptors(
    agent: AgentSpec, spec: SourceSpec | SinkSpec, kind: NodeKind, words: tuple[str, ...], metrics: str
) -> Node:
    """Return the node of a source or sink, with the nodes of its interceptors."""
    interceptors = tuple(
        _node(agent, one, "interceptor", (), f"INTERCEPTOR.{metrics_of_interceptor(agent, spec, one.name)}")
        for one in spec.interceptors
    )
    return replace(_node(agent, spec, kind, words, metrics), interceptors=interceptors)


def _topic_edges(sink: SinkSpec, spec: AgentSpec) -> Iterator[tuple[str, str]]:
    """Yield topic and channel path for each topic that a processor writes and a channel of this agent reads."""
    if not issubclass(sink.cls, StreamingSink):
        return
    topics = sink.make().topics()
    for channel in spec.channels:
        instance = channel.make()
        if isinstance(instance, KafkaBackedChannel) and (topic := instance.kafka.stream(None).topic) in topics:
            yield topic, channel.path


def _node(agent: AgentSpec, spec: ComponentSpec, kind: NodeKind, words: tuple[str, ...], metrics: str) -> Node:
    """Return the node of a component. `words` are annotations, and `metrics` the key of its metrics."""
    options = agent.shown_options(spec.path)
    if kind in ("source", "sink"):  # the nodes of interceptors have these options
        options = {name: value for name, value in options.items() if not name.startswith("interceptors.")}
    return Node(
        *(spec.path, kind, spec.name, spec.cls.type_name, words, metrics, _lag_unit(agent, spec)),
        *(options, _defaults(spec.config, options), str(spec.place)),
        is_durable=not issubclass(spec.cls, Channel) or spec.cls.durable,
    )


def _lag_unit(agent: AgentSpec, spec: ComponentSpec) -> str:
    """Return the unit of a sink's lag, `records` or `events`; empty for other components."""
    if not isinstance(spec, SinkSpec):
        return ""
    channel = agent.channel(spec.channel).make()
    return "records" if isinstance(channel, KafkaBackedChannel) and channel.holds_batches else "events"


def _defaults(config: Config, written: Mapping[str, str]) -> dict[str, str]:
    """Return option → default of all options with an effect that the configuration does not set, without secrets."""
    defaults = {}
    for option in type(config).options():
        value = getattr(config, option.field, None)
        if option.is_prefix and any(name.startswith(option.name) for name in written):
            continue  # its properties may be passwords
        if not (option.name in written or option.without_effect or option.is_secret or value in (None, {}, [])):
            defaults[option.name] = format_option_value(value)
    return defaults


def _source_words(source: SourceSpec) -> tuple[str, ...]:
    """Return the annotations of a source by its selector."""
    selector = source.selector
    words = [f"by header {selector.header}"] * (selector.kind == "multiplexing")
    return (*words, *(["channels in turn"] * (selector.kind == "load_balancing")))


def _routes(source: SourceSpec) -> Iterator[tuple[str, EdgeKind, str]]:
    """Yield each channel of a source with the kind and the label of its edge."""
    selector = source.selector
    routes: list[tuple[str, Route]] = [(f"{selector.header} = {value}", r) for value, r in selector.routes.items()]
    routes.append(("default" if routes else "", selector.default))
    for name in source.channels:
        required = [label for label, route in routes if name in route.required]
        optional = [label for label, route in routes if name in route.optional]
        if required or optional:
            kind: EdgeKind = "events" if required else "optional"
            yield name, kind, ", ".join(filter(None, dict.fromkeys(required or optional)))


# --- text


def text_lines(graph: Graph) -> list[str]:
    """Return a line for each edge with interceptors, each component without edges, and each sink group.

    The edges of a channel with one source and one sink are joined into one line.
    """
    nodes = {node.id: node for node in graph.nodes}
    incoming = Counter(edge.end for edge in graph.edges)
    to_sinks = [edge for edge in graph.edges if edge.kind == "events" and nodes[edge.start].kind == "channel"]
    outgoing = Counter(edge.start for edge in to_sinks)
    joined = {edge.start: edge for edge in to_sinks if incoming[edge.start] == outgoing[edge.start] == 1}
    lines = []
    for edge in graph.edges:
        if joined.get(edge.start) is edge:
            continue
        start = nodes[edge.start]
        before = [start.name] if edge in to_sinks else [_label(start)]
        if start.kind == "source":
            before += map(_label, start.interceptors)
        label = f"[{edge.label}] " if edge.label else ""
        after = [_end_label(nodes[edge.end])]
        if edge.end in joined:
            after.append(_end_label(nodes[joined[edge.end].end]))
        lines.append(f"{' → '.join(before)} {_TEXT_ARROWS[edge.kind]} {label}{' → '.join(after)}")
    lines += (
        _label(node) for node in graph.nodes if not incoming[node.id] and all(e.start != node.id for e in graph.edges)
    )
    for group in graph.groups:
        lines.append(f"sink group {group.name}: {group.kind} of {', '.join(nodes[id].name for id in group.sinks)}")
    return lines


def _end_label(node: Node) -> str:
    """Return the text of a node at the end of an edge, after its interceptors."""
    return " → ".join([*map(_label, node.interceptors), _label(node)])


_TEXT_ARROWS = {"events": "→", "optional": "⇢ (optional)", "overflow": "→ overflow", "topic": "→ topic"}


def _label(node: Node) -> str:
    """Return `name (type, annotations)`."""
    return f"{node.name} ({', '.join((node.type, *node.words))})"


# --- Mermaid


_SHAPES = {"source": '(["{}"])', "channel": '[("{}")]', "sink": '[/"{}"/]'}
_ARROWS = {"events": "-->", "optional": "-.->", "overflow": "-.->", "topic": "-.->"}


def render_mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart, which GitHub and many wikis render."""
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        words = [_escape_mermaid(word) for word in (node.name, node.type, *node.words)]
        words += (_escape_mermaid(f"· {one.name} ({one.type})") for one in node.interceptors)
        lines.append(f"  {ids[node.id]}{_SHAPES[node.kind].format('<br/>'.join(words))}")
    for edge in graph.edges:
        label = f'|"{_escape_mermaid(edge.label)}"|' if edge.label else ""
        lines.append(f"  {ids[edge.start]} {_ARROWS[edge.kind]}{label} {ids[edge.end]}")
    for group in graph.groups:
        lines.append(f'  subgraph "{_escape_mermaid(group.name)}: {group.kind}"')
        lines += (f"    {ids[id]}" for id in group.sinks)
        lines.append("  end")
    return "\n".join(lines)


def _escape_mermaid(label: str) -> str:
    return re.sub(r'["<>|]', lambda match: f"#{ord(match[0])};", label)


# --- SVG

_WIDTH, _HEIGHT, _ROW, _GAP, _COLUMN_GAP = 200, 50, 17, 16, 130
"""Sizes in SVG units."""
_COLOURS = {"source": "#2f6f4f", "channel": "#1f4e79", "sink": "#7a2e4d"}


def render_svg(graph: Graph) -> str:
    """Return the graph as a self-contained SVG picture."""
    columns = [column for kind in _COLOURS if (column := [node for node in graph.nodes if node.kind == kind])]
    heights = [sum(map(_height, column)) + _GAP * (len(column) - 1) for column in columns]
    width, height = len(columns) * (_WIDTH + _COLUMN_GAP) - _COLUMN_GAP + 60, max(heights, default=0) + 20
    positions: dict[str, tuple[float, float, float]] = {}
    for number, (column, tall) in enumerate(zip(columns, heights, strict=True)):
        y = 10 + (height - 20 - tall) / 2
        for node in column:
            positions[node.id] = 30 + number * (_WIDTH + _COLUMN_GAP), y, _height(node)
            y += _height(node) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(graph.agent)}</title>",
        *(_line(edge, positions) for edge in graph.edges),
    ]
    for node in graph.nodes:
        x, y, tall = positions[node.id]
        parts += (
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{tall}" rx="8" fill="{_COLOURS[node.kind]}"/>',
            f'<text x="{x + 10}" y="{y + 21}" fill="white" font-weight="bold">{escape(node.name)}</text>',
            _small_text(x, y + 38, ", ".join((node.type, *node.words))),
            *(
                _small_text(x, y + 38 + _ROW * (row + 1), f"· {one.name} ({one.type})")
                for row, one in enumerate(node.interceptors)
            ),
        )
    return "\n".join([*parts, "</svg>"])


def _height(node: Node) -> float:
    return _HEIGHT + _ROW * len(node.interceptors)


def _small_text(x: float, y: float, words: str) -> str:
    return f'<text x="{x + 10}" y="{y}" fill="white" font-size="11">{escape(words)}</text>'


def _line(edge: Edge, positions: Mapping[str, tuple[float, float, float]]) -> str:
    """Return the SVG path of an edge, with its label. `positions` has x, y and height by node."""
    (x1, y1, tall1), (x2, y2, tall2) = positions[edge.start], positions[edge.end]
    y1, y2, across = y1 + tall1 / 2, y2 + tall2 / 2, _COLUMN_GAP / 2
    if edge.kind == "overflow":  # both nodes are in one column: a curve around their left edges
        bends = x1 - 30, x2 - 30
    elif edge.kind == "topic":  # a curve back to an earlier column
        bends = x1 - across, x2 + _WIDTH + across
        x2 += _WIDTH
    else:
        x1 += _WIDTH
        bends = x1 + across, x2 - across
    path = f"M{x1},{y1} C{bends[0]},{y1} {bends[1]},{y2} {x2},{y2}"
    dashed = ' stroke-dasharray="5 4"' if edge.kind != "events" else ""
    drawn = f'<path d="{path}" fill="none" stroke="#888" stroke-width="1.5"{dashed}/>'
    if not edge.label:
        return drawn
    x, y = (x1 + x2) / 2, (y1 + y2) / 2 - 4
    return f'{drawn}<text x="{x}" y="{y}" text-anchor="middle" font-size="10" fill="#888">{escape(edge.label)}</text>'

"""Differences between the outputs of two runs of one real file."""

from __future__ import annotations

import re
from collections import Counter

from flafka.agent.topology import ComponentSpec
from tests.conformance.arrival import ID, Run

_TEXT = {"DataStream", "CompressedStream"}
_TIME = re.compile(rb"\b1[6-9]\d{11}\b")


def compared(ours: Run, theirs: Run, products: tuple[str, str]) -> list[str]:
    """Return the differences of their outputs as sentences; `products` names the two products."""
    differences, runs = [], (ours, theirs)
    for sink in ours.spec.sinks:
        if sum(other.channel == sink.channel for other in ours.spec.sinks) > 1:
            continue  # the sink of an event is random
        our_lines, their_lines = (_comparable_lines(run, sink) for run in runs)
        for maker, surplus in zip(products, (our_lines - their_lines, their_lines - our_lines), strict=True):
            differences += [
                f"{sink.name}: only by {maker}: {line!r} ({count} times)" for line, count in surplus.most_common(3)
            ]
        if sink.name in ours.names:
            names = [{_shape(_without_run(run, name)) for name in run.names[sink.name]()} for run in runs]
            if names[0] != names[1]:
                differences.append(
                    f"{sink.name}: files are named {names[0]} by {products[0]}, {names[1]} by {products[1]}"
                )
    return differences


def _comparable_lines(run: Run, sink: ComponentSpec) -> Counter[bytes]:
    """Return by event the text beside its id, without the times of the run."""
    text = sink.cls.type_name == "file_roll" or sink.properties.get("hdfs.fileType") in _TEXT
    output = run.readers[sink.name]()
    counts = Counter[bytes]()
    suffix = rb"[^\"\x00-\x1f]*" if sink.cls.type_name == "elasticsearch" else rb"[\x20-\x7e]*"  # one line of JSON
    for match in re.finditer(rb"[\x20-\x7e]*?(%b)%b" % (ID.pattern, suffix), output):
        if not run.ours(match[1]):
            continue
        line = match[0] if text else output[match.start(1) : match.end()]
        if sink.cls.type_name == "logger":
            line = match[0][match[0].index(b"Event: ") :]
        dumped = run.key.encode().hex(" ").upper()
        for text_of_run, name in (
            (str(run.home), b"HOME"),
            (run.place, b"PLACE"),
            (run.key, b"KEY"),
            (dumped, b"KEY"),
        ):
            line = line.replace(text_of_run.encode(), name)
        line = re.sub(rb"(?<=\{)[^{}]*(?=\})", _sorted, _TIME.sub(b"TIME", line))
        counts[line] += 1
    return counts


def _sorted(headers: re.Match[bytes]) -> bytes:
    """Return sorted headers, as Flume's are in the order of a hash."""
    return b", ".join(sorted(part.strip() for part in headers[0].split(b",")))


def _without_run(run: Run, name: str) -> str:
    return name.replace(str(run.home).lstrip("/"), "HOME").replace(run.place, "PLACE")


def _shape(name: str) -> str:
    """Return a name without numbers; a part of it is partition and offsets here, a counter in Flume."""
    return re.sub(r"\.[\w-]+(-N){4}(?=\.|$)", ".N", re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", name))

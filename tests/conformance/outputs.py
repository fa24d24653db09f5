"""Differences between the outputs of two runs of one real file."""

from __future__ import annotations

import re
from collections import Counter

from flafka.agent.topology import ComponentSpec
from tests.conformance.arrival import ID, Run

_TEXT = {"DataStream", "CompressedStream"}
_TIME = re.compile(rb"\b1[6-9]\d{11}\b")


def compared(ours: Run, theirs: Run, who: tuple[str, str]) -> list[str]:
    """Return the differences of their outputs as sentences; `who` names the two products."""
    told, runs = [], (ours, theirs)
    for sink in ours.spec.sinks:
        if sum(other.channel == sink.channel for other in ours.spec.sinks) > 1:
            continue  # the sink of an event is random
        here, there = (_shown(run, sink) for run in runs)
        for maker, more in zip(who, (here - there, there - here), strict=True):
            told += [f"{sink.name}: only by {maker}: {line!r} ({count} times)" for line, count in more.most_common(3)]
        if sink.name in ours.names:
            names = [{_shape(_own(run, name)) for name in run.names[sink.name]()} for run in runs]
            if names[0] != names[1]:
                told.append(f"{sink.name}: files are named {names[0]} by {who[0]}, {names[1]} by {who[1]}")
    return told


def _shown(run: Run, sink: ComponentSpec) -> Counter[bytes]:
    """Return by event the text beside its id, without the times of the run."""
    text = sink.cls.type_name == "file_roll" or sink.properties.get("hdfs.fileType") in _TEXT
    found = run.found[sink.name]()
    shown = Counter[bytes]()
    rest = rb"[^\"\x00-\x1f]*" if sink.cls.type_name == "elasticsearch" else rb"[\x20-\x7e]*"  # one line of JSON
    for match in re.finditer(rb"[\x20-\x7e]*?(%b)%b" % (ID.pattern, rest), found):
        if not run.ours(match[1]):
            continue
        line = match[0] if text else found[match.start(1) : match.end()]
        if sink.cls.type_name == "logger":
            line = match[0][match[0].index(b"Event: ") :]
        dumped = run.key.encode().hex(" ").upper()
        for own, name in ((str(run.home), b"HOME"), (run.place, b"PLACE"), (run.key, b"KEY"), (dumped, b"KEY")):
            line = line.replace(own.encode(), name)
        line = re.sub(rb"(?<=\{)[^{}]*(?=\})", _sorted, _TIME.sub(b"TIME", line))
        shown[line] += 1
    return shown


def _sorted(headers: re.Match[bytes]) -> bytes:
    """Return sorted headers, as Flume's are in the order of a hash."""
    return b", ".join(sorted(part.strip() for part in headers[0].split(b",")))


def _own(run: Run, name: str) -> str:
    return name.replace(str(run.home).lstrip("/"), "HOME").replace(run.place, "PLACE")


def _shape(name: str) -> str:
    """Return a name without numbers; a part of it is partition and offsets here, a counter in Flume."""
    return re.sub(r"\.[\w-]+(-N){4}(?=\.|$)", ".N", re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", name))

"""How the agent's cost for an event grows: with its bytes, with files, with masks, and with partitions.

CPU time of the agent for an event, over a range of each. Files are beside rsyslog and Flume, the start of each
included; those that grow are beside rsyslog. Sizes are beside a bare producer of the same lines, and both get a line
a + b · bytes fitted to their medians, of which b is a row of its own; so is the cost of one more mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.frame import CPU, Bench, Row, simply
from bench.frame.kafka import Topic, bare_producer
from bench.frame.peers import BARE
from bench.frame.syslog import Lines, ours, taking
from bench.taildir import arriving, compare, growing

SIZES = (100, 1_000, 10_000, 100_000)
FILES = (1, 100, 10_000)
GROWTH = 10_000
"""Lines a second, of all files together."""
ARRIVALS, LENGTH = 20, 10
"""New files a second, and how many lines each has."""
MASKS = (1, 5, 20)
PARTITIONS = (1, 6, 60)
CODECS = {"zstd": (), "lz4": ("a.channels.kafka.kafka.producer.compression.type = lz4",)}
"""Both have the same. The channel's own is zstd, of level 1 as Arrow has it; librdkafka's is of level 3, which takes
a tenth more."""
SHORTEST = 110
"""Bytes of a line without filling, about: the smallest size has none."""
BYTE = "µs CPU/KB"
Costs = dict[int, Sequence[tuple[float, float | None]]]
"""Of so many bytes or masks: those of ours and of the peer in each round."""


def run(bench: Bench) -> None:
    """One after the other."""
    sizes(bench)
    files(bench)
    masks(bench)
    partitions(bench)


def sizes(bench: Bench) -> None:
    """Events of 100 B to 100 KB, of words: LZ4 halves them."""
    budget = bench.events(200_000, 2_000) * 1_000  # bytes of a run
    text = _text(budget // 20)
    larger = f"a.sources.syslog.eventSize = {2 * SIZES[-1]}"
    measured: dict[str, Costs] = {codec: {} for codec in CODECS}
    for size in SIZES[:2] if bench.smoke else SIZES:
        filling = max(0, size - SHORTEST)
        starts = range(0, len(text) - filling, filling or len(text))  # no two the same within several batches
        fillings = [text[start : start + filling] for start in starts]
        lines = Lines(bench, max(100, min(budget // size, budget // 200)), fillings)
        for codec, option in CODECS.items():
            topics = [Topic(bench.kafka.bootstrap_servers, f"size-{size}-{codec}-{who}") for who in "ab"]
            rows = bench.compare(
                f"events of {size:,} bytes, {codec}",
                taking(ours(bench, topics[0], larger, *option), lines),
                {BARE: simply(bare_producer(topics[1], lines.path, lines.whole, f"compression.type={codec}"))},
            )
            for row in rows:
                if row.unit == CPU:
                    measured[codec][size] = row.runs
    for codec, costs in measured.items():
        if costs:
            slopes = [(1000 * mine, 1000 * bare) for mine, bare in zip(slope(costs, 0), slope(costs, 1), strict=True)]
            bench.rows.append(Row(f"events, {codec}: b of a + b · bytes", BYTE, BARE, slopes))


def _text(size: int) -> bytes:
    """Words, some of them frequent, as in any language."""
    chance = np.random.default_rng(1)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    words = [chance.choice(letters, length).tobytes() for length in chance.integers(2, 11, 5_000)]
    picked = chance.zipf(1.2, size // 4) % len(words)
    return b" ".join(words[number] for number in picked)[:size]


def slope(measured: Costs, whose: int) -> list[float]:
    """b of a + b · number in each round; every point counts by its share of the cost, so that small ones do."""
    found = []
    for runs in zip(*measured.values(), strict=True):
        costs = np.array([run[whose] for run in runs], float)
        found.append(float(np.polyfit(list(measured), costs, 1, w=1 / costs)[0]))
    return found


def files(bench: Bench) -> None:
    """The same lines in so many files, which are all there when the program starts, beside rsyslog and Flume; then
    files that grow while they are followed, and new ones beside those."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    data, size = lines.path.read_bytes(), lines.bytes
    for count in FILES[:2] if bench.smoke else FILES:
        directory = bench.directory("files")
        share = lines.events // count
        for number in range(count):
            end = lines.events if number == count - 1 else (number + 1) * share
            (directory / f"{number}.log").write_bytes(data[number * share * size : end * size])
        compare(bench, f"{count:,} file{'s' * (count > 1)}", lines, directory)
    fewer, count = lines.fewer(10), 10 if bench.smoke else 1_000
    growing(bench, f"{count:,} files, a line at a time", fewer, count, GROWTH)
    few, many = lines.fewer(500), 100 if bench.smoke else 5_000
    arriving(bench, f"{many:,} files, new ones of {LENGTH} lines", few, many, ARRIVALS, LENGTH)


def masks(bench: Bench) -> None:
    """So many patterns of which one finds something."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    measured: Costs = {}
    for count in MASKS[:2] if bench.smoke else MASKS:
        topic = Topic(bench.kafka.bootstrap_servers, f"masks-{count}")
        more = [f"a.sources.syslog.interceptors.mask.patterns.p{n} = secret{n}=[a-z]+" for n in range(count - 1)]
        rows = bench.compare(f"{count} mask{'s' * (count > 1)}", taking(ours(bench, topic, *more), lines), {})
        for row in rows:
            if row.unit == CPU:
                measured[count] = row.runs
    if measured:
        bench.rows.append(Row("one more mask", CPU, None, [(cost, None) for cost in slope(measured, 0)]))


def partitions(bench: Bench) -> None:
    """Topics with so many partitions."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    for count in PARTITIONS[:2] if bench.smoke else PARTITIONS:
        topic = Topic(bench.kafka.bootstrap_servers, f"partitions-{count}", count)
        bench.compare(f"{count} partition{'s' * (count > 1)}", taking(ours(bench, topic), lines), {})

"""Growth of the agent's CPU time per event with bytes, files, masks and partitions.

Peers are rsyslog and Flume for files that exist at the start, rsyslog for files that grow, and a bare producer for
sizes. A line a + b · bytes is fitted to the medians of sizes, and b is a row of its own. So is the cost of one more
mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.frame import CPU, Bench, Row, without_setup
from bench.frame.kafka import Topic, bare_producer
from bench.frame.peers import BARE
from bench.frame.syslog import Lines, ours, syslog_contestant
from bench.taildir import compare, compare_growing_files, compare_new_files

EVENT_BYTES = (200, 1_000, 10_000, 100_000)
FILE_COUNTS = (1, 100, 10_000)
LINES_PER_SECOND = 10_000
"""Rate of all files together."""
NEW_FILES_PER_SECOND, LINES_PER_FILE = 20, 10
"""Rate and size of new files."""
MASK_COUNTS = (1, 5, 20)
PARTITION_COUNTS = (1, 6, 60)
CODECS = {"zstd": (), "lz4": ("a.channels.kafka.kafka.producer.compression.type = lz4",)}
"""Codec of both contestants → options of the agent.

The default of the channel is zstd of level 1, by Arrow. That of librdkafka has level 3, which takes a tenth more.
"""
MIN_LINE_BYTES = 205
"""Mean size of a line without filling; the smallest size has none."""
CPU_PER_KB = "µs CPU/KB"
Costs = dict[int, Sequence[tuple[float, float | None]]]
"""Number of bytes or masks → CPU time of Flafka and of the peer in each round."""


def run(bench: Bench) -> None:
    """Compare all kinds of growth."""
    compare_sizes(bench)
    compare_files(bench)
    compare_masks(bench)
    compare_partitions(bench)


def compare_sizes(bench: Bench) -> None:
    """Compare events of 200 B to 100 KB, varied lines with words, which LZ4 compresses to half their size."""
    run_bytes = bench.events(200_000, 2_000) * 1_000
    text = _text(run_bytes // 20)
    larger = f"a.sources.syslog.eventSize = {2 * EVENT_BYTES[-1]}"
    measured: dict[str, Costs] = {codec: {} for codec in CODECS}
    for size in EVENT_BYTES[:2] if bench.smoke else EVENT_BYTES:
        filling = max(0, size - MIN_LINE_BYTES)
        starts = range(0, len(text) - filling, filling or len(text))  # no repetition within several batches
        fillings = [text[start : start + filling] for start in starts]
        lines = Lines(bench, max(100, min(run_bytes // size, run_bytes // 200)), fillings)
        for codec, option in CODECS.items():
            topics = [
                Topic(bench.kafka.bootstrap_servers, f"size-{size}-{codec}-{contestant}") for contestant in "ab"
            ]
            rows = bench.compare(
                f"events of {size:,} bytes, {codec}",
                syslog_contestant(ours(bench, topics[0], larger, *option), lines),
                {BARE: without_setup(bare_producer(topics[1], lines.path, lines.lines, f"compression.type={codec}"))},
            )
            for row in rows:
                if row.unit == CPU:
                    measured[codec][size] = row.runs
    for codec, costs in measured.items():
        if costs:
            slopes = [(1000 * own, 1000 * bare) for own, bare in zip(slope(costs, 0), slope(costs, 1), strict=True)]
            bench.rows.append(Row(f"events, {codec}: b of a + b · bytes", CPU_PER_KB, BARE, slopes))


def _text(size: int) -> bytes:
    """Return words with the frequencies of a natural language."""
    chance = np.random.default_rng(1)
    characters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    words = [chance.choice(characters, length).tobytes() for length in chance.integers(2, 11, 5_000)]
    picked = chance.zipf(1.2, size // 4) % len(words)
    return b" ".join(words[number] for number in picked)[:size]


def slope(measured: Costs, contestant: int) -> list[float]:
    """Return b of a + b · number in each round. Points are weighted by 1/cost, so that small ones count."""
    slopes = []
    for runs in zip(*measured.values(), strict=True):
        costs = np.array([run[contestant] for run in runs], float)
        slopes.append(float(np.polyfit(list(measured), costs, 1, w=1 / costs)[0]))
    return slopes


def compare_files(bench: Bench) -> None:
    """Compare numbers of files that exist at the start, then files that grow, then new files."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    for count in FILE_COUNTS[:2] if bench.smoke else FILE_COUNTS:
        directory = bench.directory("files")
        share = lines.events // count
        for number in range(count):
            end = lines.events if number == count - 1 else (number + 1) * share
            (directory / f"{number}.log").write_bytes(lines.block(number * share, end))
        compare(bench, f"{count:,} file{'s' * (count > 1)}", lines, directory)
    fewer, count = lines.fewer(10), 10 if bench.smoke else 1_000
    compare_growing_files(bench, f"{count:,} files, a line at a time", fewer, count, LINES_PER_SECOND)
    few, many = lines.fewer(500), 100 if bench.smoke else 5_000
    compare_new_files(
        bench, f"{many:,} files, new ones of {LINES_PER_FILE} lines", few, many, NEW_FILES_PER_SECOND, LINES_PER_FILE
    )


def compare_masks(bench: Bench) -> None:
    """Compare numbers of patterns, of which one matches."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    measured: Costs = {}
    for count in MASK_COUNTS[:2] if bench.smoke else MASK_COUNTS:
        topic = Topic(bench.kafka.bootstrap_servers, f"masks-{count}")
        options = [f"a.sources.syslog.interceptors.mask.patterns.p{n} = secret{n}=[a-z]+" for n in range(count - 1)]
        rows = bench.compare(
            f"{count} mask{'s' * (count > 1)}", syslog_contestant(ours(bench, topic, *options), lines), {}
        )
        for row in rows:
            if row.unit == CPU:
                measured[count] = row.runs
    if measured:
        bench.rows.append(Row("one more mask", CPU, None, [(cost, None) for cost in slope(measured, 0)]))


def compare_partitions(bench: Bench) -> None:
    """Compare numbers of partitions."""
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    for count in PARTITION_COUNTS[:2] if bench.smoke else PARTITION_COUNTS:
        topic = Topic(bench.kafka.bootstrap_servers, f"partitions-{count}", count)
        bench.compare(f"{count} partition{'s' * (count > 1)}", syslog_contestant(ours(bench, topic), lines), {})

"""Command line of `./dev bench`, which measures Flafka and its alternatives."""

from __future__ import annotations

import argparse
import importlib
import json
import signal

from bench.frame import ROUNDS, Bench
from bench.frame.report import as_json, print_table
from bench.frame.results import keep_result

NAMES = (
    "intake",
    "append",
    "taildir",
    "connections",
    "hdfs",
    "spark",
    "stores",
    "classic",
    "latency",
    "scaling",
    "curves",
    "memory",
    "start",
    "sizing",
    "filechannel",
    "staging",
)
"""Benchmarks in their order: modules of `bench` with a function `run`."""


def main() -> None:
    """Run those that are describe_machine, or all."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end by `timeout` still stops the servers
    parser = argparse.ArgumentParser(prog="./dev bench", description="Run benchmarks: " + " ".join(NAMES))
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds that count (default: {ROUNDS})")
    parser.add_argument("--events", type=int, help="events of a run (default: each benchmark's own)")
    parser.add_argument("--only", default="", metavar="TEXT", help="measures with that text in their name")
    parser.add_argument("--smoke", action="store_true", help="run one round with few events, as a test")
    parser.add_argument("--json", action="store_true", help="print JSON, one line per benchmark, and no table")
    parser.add_argument(
        "--keep", action="store_true", help="write the result and its picture into bench/results and docs/pictures"
    )
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        module = importlib.import_module(f"bench.{name}")
        with Bench(
            name,
            rounds=arguments.rounds,
            smoke=arguments.smoke,
            events=arguments.events,
            only=arguments.only,
        ) as bench:
            try:
                module.run(bench)
            finally:
                if bench.rows:
                    report(bench, arguments)


def report(bench: Bench, arguments: argparse.Namespace) -> None:
    """Print the result of a benchmark, and keep it with `--keep`."""
    result = as_json(bench)
    if arguments.json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
    else:
        print_table(result, bench.skipped)
    if arguments.keep:
        keep_result(result)


if __name__ == "__main__":
    main()

"""`./dev bench`: measure this project beside what a user would take instead; see docs/performance.md."""

from __future__ import annotations

import argparse
import importlib
import json
import signal

from bench.frame import ROUNDS, Bench
from bench.frame.kept import keep
from bench.frame.report import as_json, show

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
    "memory",
    "start",
    "sizing",
    "filechannel",
    "staging",
)
"""All benchmarks, in the order in which docs/performance.md has them: a module of `bench` each, with its `run`."""


def main() -> None:
    """Run those that are named, or all."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what `timeout` ends still stops its servers
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure. Names: " + " ".join(NAMES))
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds that count (default: {ROUNDS})")
    parser.add_argument("--events", type=int, help="events of a run (default: each benchmark's own)")
    parser.add_argument("--only", default="", metavar="TEXT", help="measures with that text in their name")
    parser.add_argument("--smoke", action="store_true", help="one round with few events: does it work?")
    parser.add_argument("--json", action="store_true", help="print JSON, one line a benchmark, and no table")
    parser.add_argument("--keep", action="store_true", help="keep the result in bench/results, and draw it")
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
                    tell(bench, arguments)


def tell(bench: Bench, arguments: argparse.Namespace) -> None:
    """Print, and keep."""
    result = as_json(bench)
    if arguments.json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
    else:
        show(result, bench.skipped)
    if arguments.keep:
        keep(result)


if __name__ == "__main__":
    main()

"""`python -m tests.interop.differential`: search, and print the findings."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.interop.differential.operations import OPERATIONS
from tests.interop.differential.search import Flumes, search


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("operations", nargs="*", default=[*OPERATIONS])
    parser.add_argument("--inputs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed: {arguments.seed}")
    with tempfile.TemporaryDirectory() as directory, Flumes(Path(directory)) as flumes:
        for name in arguments.operations:
            started, cpu = time.monotonic(), time.process_time()
            print(search(flumes, OPERATIONS[name], arguments.seed, arguments.inputs))
            print(
                f"  {time.monotonic() - started:.1f} s, {time.process_time() - cpu:.1f} s of our processor time",
                flush=True,
            )


if __name__ == "__main__":
    main()

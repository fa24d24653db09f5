"""`./dev simulate`: the project's code on modelled servers, schedule by schedule, until something is lost."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.simulator import files, mutants, overflow
from tests.simulator.plans import KINDS, SINKS, Plan, plan_of
from tests.simulator.program import installed
from tests.simulator.stories import attempt

PLANS = {"taildir": files.plan_of, "overflow": overflow.plan_of}


def main() -> None:
    """Run schedules; print what failed, with its seed, and as short a story as shows it."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many schedules")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first one")
    parser.add_argument("--sink", choices=SINKS, action="append", help="only schedules with this sink")
    parser.add_argument("--step", choices=KINDS, action="append", default=[], help="schedules in which this happens")
    parser.add_argument("--source", choices=PLANS, help="only schedules of this on the way in, and no sink")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--tell", action="store_true", help="print all that happens")
    parser.add_argument("--no-shrink", action="store_true", help="leave failures as long as they are")
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="see that the simulator finds what is wrong in each of these, or all",
    )
    arguments = parser.parse_args()
    if arguments.mutants is not None:
        sys.exit(not find_mutants(arguments.mutants, arguments.first, arguments.seeds))
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
        command = [sys.executable, "-m", "tests.simulator", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    failed = ran = 0
    with installed():
        started, used = time.monotonic(), time.process_time()
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            sinks, steps = tuple(arguments.sink or SINKS), tuple(arguments.step)
            plan = PLANS[arguments.source](seed) if arguments.source else plan_of(seed, sinks, steps)
            run, error = attempt(plan, verbose=arguments.tell)
            ran += 1
            if error is None:
                continue
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if not arguments.no_shrink:
                tell(shrink(replace(plan, faults=run.world.faults), error))
            if not arguments.keep_going:
                break
        took, used = time.monotonic() - started, time.process_time() - used
    rates = f"{60 * ran / took:.0f} a minute, {60 * ran / used:.0f} a minute of processor time"
    print(f"{ran} schedules in {took:.1f} s, {rates}")
    print(f"{ran - failed} passed, {failed} failed")
    sys.exit(bool(failed))


def find_mutants(names: list[str], first: int, attempts: int) -> bool:
    """Print which schedule finds each of these mutants, or of all, and return True if all are found."""
    survivors = 0
    for mutant in mutants.chosen(names):
        failure = mutants.found(mutant, first=first, attempts=attempts)
        survivors += failure is None
        print(f"{mutant.name} ({mutant.guard}): {failure or f'NOT FOUND in {attempts} schedules'}", flush=True)
    return not survivors


def tell(plan: Plan) -> None:
    """Print the plan, and what comes of it."""
    run, error = attempt(plan)
    for title, lines in (("as a story", story_of(plan)), ("log", run.world.story)):
        print(f"  {title}:", *(f"    {line}" for line in lines), sep="\n", flush=True)
    print(f"  {type(error).__name__}: {error}")


def story_of(plan: Plan) -> list[str]:
    """Return the lines of a call that carries the plan out, to be pasted as a story."""
    if type(plan) is not Plan:
        head = f'{type(plan).__name__}({plan.seed}, "{plan.sink}", ['
        return [head, *(f"    {step}," for step in plan.steps), f"], faults={plan.faults or []})"]
    faults = [f"faults=({', '.join(map(repr, plan.faults))},),"] if plan.faults else []
    arguments = [f'"{plan.sink}",', *(f"{step}," for step in plan.steps), *faults, f"seed={plan.seed},"]
    return ["run_story(", *(f"    {argument}" for argument in arguments), ")"]


def shrink(plan: Plan, error: BaseException) -> Plan:
    """Return the smallest plan that fails alike, apart from numbers and events in the message."""

    def fails(candidate: Plan) -> bool:
        return _signature(attempt(candidate)[1]) == _signature(error)

    changed = fails(plan)
    while changed:
        changed = False
        for index in reversed(range(len(plan.faults or []))):
            faults = [*(plan.faults or [])]
            del faults[index]
            if fails(smaller := replace(plan, faults=faults)):
                plan, changed = smaller, True
        for index in reversed(range(len(plan.steps))):
            steps = [*plan.steps[:index], *plan.steps[index + 1 :]]
            if fails(smaller := replace(plan, steps=steps)):
                plan, changed = smaller, True
    return plan


def _signature(error: BaseException | None) -> tuple[type, str]:
    return type(error), re.sub(r"b'[^']*'|[0-9.]+", "", str(error))


def simulate(output: Path, *arguments: str) -> None:
    """Run in a process of its own: `./dev simulate` with these arguments; it ends the process with its exit code."""
    sys.argv[1:] = arguments
    with output.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        main()


if __name__ == "__main__":
    main()

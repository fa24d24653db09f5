"""Time, threads and processes of a simulation, and what goes wrong in it.

All threads are greenlets: one runs until it waits or makes a call, then another one's turn comes, as the seed says.
Time stands still while any thread can run and jumps to the next timer when none can. So a run of many simulated
minutes takes milliseconds, and the same seed gives the same run.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent

from tests.simulator.faults import OF_THE_PROCESS, Chances, Fault, Kind
from tests.simulator.processes import Process, Thread

MOST_STEPS = 200_000
"""A run that takes more switches of threads does not come to an end."""
START_SECONDS_SINCE_EPOCH = 1_790_000_000.0
"""Wall-clock time at which a simulation begins, in seconds since the epoch."""


class Stuck(Exception):
    """A run does not come to an end."""


class World:
    """One simulation.

    Faults come by chance as `chances` says, or, where `given` is a list, they are these and no others. Those that
    came about are in `faults`; given to another run with the same seed, they come about there.
    """

    def __init__(
        self, seed: int, *, chances: Chances | None = None, given: list[Fault] | None = None, verbose: bool = False
    ) -> None:
        self.seed, self.verbose = seed, verbose
        self.random = random.Random(seed)
        self._fate = random.Random(~seed)
        self.now = 0.0
        """Seconds since the simulation began."""
        self.delayed_until = 0.0
        """Time at which all paused processes run and all late requests have arrived."""
        self.skew = 0.0
        """Error of the wall clock, in seconds."""
        self.chances = chances or Chances()
        self.given = None if given is None else {(f.process, f.life, f.what, f.number): f for f in given if not f.on}
        self._given_on = [fault for fault in given or () if fault.on]
        self._counts = Counter[Fault]()
        """Numbers of calls that had the path or topic of these faults."""
        self._armed: dict[tuple[str, str], tuple[Kind, float, str]] = {}
        self.faults: list[Fault] = []
        self.story: list[str] = []
        """Log of the run, a line for each event."""
        self.failures: list[BaseException] = []
        """Uncaught exceptions of threads."""
        self._error: BaseException | None = None
        """Exception of a timer, which no thread raised."""
        self.over = False
        self.quiet = False
        """Set to have no more faults."""
        self.steps = 0
        self.lives = Counter[str]()
        """Number of processes by name."""
        self.hub = getcurrent()
        self.outside = Process(self, "world")
        self.current: Thread = None  # type: ignore[assignment]  # nobody asks while there is none
        """The thread that runs."""
        self.process = self.outside
        """The one whose thread runs; the world's own while what is due is done by nobody's thread."""
        self._runnable: list[Thread] = []
        self._timers: list[tuple[float, int, Thread | None, Any]] = []
        self._numbers = itertools.count()
        self._threads: list[Thread] = []
        self.models: dict[str, Any] = {}
        """The servers, by name: each model keeps its own here."""

    # --- time

    def wall(self) -> float:
        """Seconds since the epoch, as the machine's clock shows."""
        return START_SECONDS_SINCE_EPOCH + self.now + self.skew

    def sleep(self, seconds: float) -> None:
        """The present thread waits so long; with 0 the others get their turn."""
        thread = self.current
        if seconds <= 0:
            thread.parked = True
            self.wake(thread)
            self.switch()
        elif self._runnable or (self._timers and self._timers[0][0] <= self.now + seconds) or self.over:
            self.park(seconds)
        else:  # nobody else has a turn meanwhile
            self.now += seconds

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have something done at that time, by nobody's thread: it must not wait."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), None, call))

    def late(self, seconds: float, call: Callable[[], None]) -> None:
        """Call like `later`, for a request of the present that arrives late."""
        self.delayed_until = max(self.delayed_until, self.now + seconds)
        self.later(seconds, call)

    # --- threads

    def spawn(self, target: Callable[[], Any], name: str, process: Process | None = None) -> Thread:
        """A new thread, which runs when its turn comes."""
        thread = Thread(self, target, name, process or self.process)
        self._threads.append(thread)
        thread.parked = True
        self.wake(thread)
        return thread

    def park(self, seconds: float | None = None) -> bool:
        """The present thread waits until it is woken, or so long. Whether it was woken."""
        thread = self.current
        thread.ticket += 1
        thread.parked, thread.fired = True, False
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + max(seconds, 0.0), next(self._numbers), thread, thread.ticket))
        self.switch()
        return thread.fired

    def wake(self, thread: Thread) -> None:
        """Wake a parked thread."""
        if thread.parked:
            thread.parked, thread.fired = False, True
            self._runnable.append(thread)

    def shorten_waits(self, idle: list[tuple[Thread, int, float]]) -> None:
        """Shorten the waits of idle threads to those times."""
        for thread, ticket, until in idle:
            if thread.parked and thread.ticket == ticket:
                heapq.heappush(self._timers, (max(until, self.now), next(self._numbers), thread, ticket))

    def switch(self) -> None:
        """Give the turn away."""
        if self.over:
            raise GreenletExit
        before = self.current
        thread = self._next()
        if thread is None:
            self.hub.switch()
        elif thread is not before:
            thread.switch()
        if self.over:
            raise GreenletExit

    def crashed(self, thread: Thread, error: BaseException) -> None:
        """A thread ended by an exception."""
        if not self.over and thread.process.alive:
            self.failures.append(error)

    def run(self, main: Callable[[], Any]) -> Any:
        """Simulate until `main` returns; all other threads end with it. Raises what `main` raises, and Stuck."""
        outcome: list[Any] = []

        def first() -> None:
            outcome.append(main())

        thread = self.spawn(first, "main", self.outside)
        try:
            self._turns(thread)
        finally:
            self.over = True
            for unfinished in self._threads:
                if not unfinished.dead:
                    self.current, self.process = unfinished, unfinished.process
                    unfinished.throw()
            self.process = self.outside
            self._threads.clear()
            self._timers.clear()
        if self.failures:
            raise self.failures[0]
        return outcome[0]

    def _turns(self, main: Thread) -> None:
        """Let threads run, one at a time, until that one has ended."""
        while not main.done:
            thread = self._next()
            if thread is not None:
                thread.switch()
            elif self._error is not None:
                raise self._error
            elif self.steps > MOST_STEPS:
                raise Stuck(f"no end after {self.steps} steps, at {self.now:.1f} s: {self._waiting()}")
            else:
                raise Stuck(f"all threads wait for ever, at {self.now:.1f} s: {self._waiting()}")

    def _next(self) -> Thread | None:
        """Run timers that are due and return the next thread; None if no thread can run."""
        runnable, timers = self._runnable, self._timers
        while True:
            while not runnable:
                if not timers:
                    return None
                when, _, thread, ticket = heapq.heappop(timers)
                if thread is None:
                    self.now = max(self.now, when)
                    self.process = self.outside
                    try:
                        ticket()
                    except BaseException as e:  # for the run to tell, not for the thread that happens to wait here
                        self._error = e
                        return None
                elif thread.parked and thread.ticket == ticket and thread.process.alive:
                    self.now = max(self.now, when)
                    thread.parked = False
                    runnable.append(thread)
            self.steps += 1
            if self.steps > MOST_STEPS:
                return None
            index = int(self.random.random() * len(runnable))
            thread = runnable[index]
            last = runnable.pop()
            if last is not thread:
                runnable[index] = last
            process = thread.process
            if process.alive:
                if process.paused_until <= self.now:
                    self.current, self.process = thread, process
                    return thread
                self._postpone(thread)

    def _postpone(self, thread: Thread) -> None:
        """Postpone a thread until its process is awake."""
        thread.parked = True
        thread.ticket += 1
        fired = thread.fired

        def resume() -> None:
            self.wake(thread)
            thread.fired = fired

        heapq.heappush(self._timers, (thread.process.paused_until, next(self._numbers), None, resume))

    def _waiting(self) -> str:
        return ", ".join(f"{t.process.name}/{t.name}" for t in self._threads if not t.done and t.process.alive)

    # --- what goes wrong

    def call(self, what: str, *kinds: Kind, seconds: float = 0.0, on: str = "") -> Fault | None:
        """Begin a call of a model on behalf of the present thread: it takes `seconds`, in which others run.

        `kinds` are the failures that the model knows, besides failures of the process. `on` is the path, topic or
        offset of the call. Return the failure that the model has to play, or None. A killed process never returns.
        """
        process = self.process
        if self.over:
            raise GreenletExit
        if process is self.outside:
            return None
        process.calls[what] += 1
        fault = self._drawn(process, what, kinds, on)
        self.sleep(seconds)
        if fault is None:
            return None
        self.faults.append(fault)
        self.log(str(fault))
        if fault.kind is Kind.PAUSED:
            process.pause(fault.seconds)
        elif fault.kind is Kind.KILLED:
            process.kill()
        return fault

    def answered(self, fault: Fault | None) -> None:
        """A model is done with a call that `call` gave this fault for."""
        if fault is not None and fault.kind is Kind.PAUSED_AFTER:
            self.process.pause(fault.seconds)
        elif fault is not None and fault.kind is Kind.KILLED_AFTER:
            self.process.kill()

    def arm(self, process: str, what: str, kind: Kind, seconds: float, on: str = "") -> None:
        """Let the next call of that name by a process fail, or the next one on that path or topic."""
        self._armed[process, what] = kind, seconds, on

    def disarm(self, process: str, what: str) -> None:
        """Let the next call of that name succeed, unless it has come already."""
        self._armed.pop((process, what), None)

    def _drawn(self, process: Process, what: str, kinds: tuple[Kind, ...], on: str) -> Fault | None:
        number = process.calls[what]
        if self.quiet:
            return None
        if self._armed and (armed := self._armed.get((process.name, what))) is not None and armed[2] in on:
            kind, seconds, _ = self._armed.pop((process.name, what))
            return Fault(process.name, what, number, kind, seconds, process.life)
        if self.given is not None:
            call = process.name, process.life, what
            matching = [f for f in self._given_on if (f.process, f.life, f.what) == call and f.on in on]
            self._counts.update(matching)
            for fault in matching:
                if self._counts[fault] == fault.number:
                    return fault
            return self.given.get((process.name, process.life, what, number))
        chances = self.chances
        if len(self.faults) >= chances.most:
            return None
        if self._fate.random() >= chances.share * chances.often.get(what, 1.0):
            return None
        if chances.processes is not None and process.name not in chances.processes:
            return None
        possible = [kind for kind in (*kinds, *OF_THE_PROCESS) if kind in chances.kinds]
        if not possible:
            return None
        kind = self._fate.choice(possible)
        seconds = self._fate.choice([2.0, 20.0, 70.0]) if kind is not Kind.LATE else self._fate.choice([1.0, 15.0])
        return Fault(process.name, what, number, kind, seconds, process.life)

    def log(self, line: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.now:8.2f}  {line}")
        if self.verbose:
            print(self.story[-1])


_present: list[World] = []


def world() -> World:
    """The simulation that runs now."""
    return _present[-1]


class simulation:  # read as a word: `with simulation(World(7)) as world`
    """Makes a world the present one."""

    def __init__(self, made: World) -> None:
        self.made = made

    def __enter__(self) -> World:
        _present.append(self.made)
        return self.made

    def __exit__(self, *_: object) -> None:
        _present.pop()

"""A simulation's processes, their threads, and what threads wait for."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, greenlet

if TYPE_CHECKING:
    from tests.simulator.world import World


class Process:
    """A program at work: threads that are killed and paused together."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        world.lives[name] += 1
        self.life = world.lives[name]
        """Ordinal among the processes of that name."""
        self.alive = True
        self.paused_until = 0.0
        self.exhausted_until = 0.0
        """Simulated time before which every opening of a file or a connection fails."""
        self.calls: Counter[str] = Counter()
        self.ended: list[Callable[[], None]] = []
        """Called when it is gone: what the kernel does then, such as closing its connections."""
        self.idle: list[tuple[Thread, int, float]] = []
        """Threads in `Signal.idle`: in which wait of theirs, and until when they do not look around anyway."""

    def kill(self) -> None:
        """End it at once; a thread of its own that does this never comes back."""
        if self.alive:
            self.alive = False
            self.world.log(f"{self.name} is killed")
            for close in self.ended:
                close()
        if self.world.process is self:
            self.world.switch()

    def pause(self, seconds: float) -> None:
        """Let no thread of the process run for so many simulated seconds."""
        self.world.log(f"{self.name} sleeps for {seconds:.0f} s")
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.world.delayed_until = max(self.world.delayed_until, self.paused_until)
        if self.world.process is self:
            self.world.sleep(0)

    def exhaust(self, seconds: float) -> None:
        """Have it open nothing for so long, as where its file descriptors have run out."""
        self.world.log(f"{self.name} has no file descriptor left for {seconds:.0f} s")
        self.exhausted_until = max(self.exhausted_until, self.world.now + seconds)
        self.world.delayed_until = max(self.world.delayed_until, self.exhausted_until)

    def check_descriptors(self) -> None:
        """Raise OSError (EMFILE) while it has no file descriptor left."""
        if self.exhausted_until > self.world.now:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def stir(self) -> None:
        """One of its threads waits for others now: those that are idle look whether there is something to do."""
        if self.idle:
            idle, self.idle = self.idle, []
            self.world.shorten_waits(idle)

    def spawn(self, target: Callable[[], Any], name: str) -> Thread:
        """A thread of it."""
        return self.world.spawn(target, name, self)


class Thread(greenlet):
    """One thread."""

    def __init__(self, world: World, target: Callable[[], Any], name: str, process: Process) -> None:
        super().__init__(self._main, world.hub)
        self.world, self.target, self.name, self.process = world, target, name, process
        self.ticket = 0
        """Number of the present wait: the timer of another one is void."""
        self.parked = self.fired = self.done = False
        self.finished = Signal(world)

    def _main(self) -> None:
        try:
            self.target()
        except GreenletExit:
            pass
        except BaseException as e:  # what a thread does not catch is for the run to tell
            self.world.crashed(self, e)
        finally:
            self.done = True
            self.finished.fire()


class Signal:
    """Something threads wait for."""

    __slots__ = ("waiting", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: list[Thread] = []

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, and return True if the signal was fired within that time."""
        thread = self.world.current
        self.waiting.append(thread)
        fired = self.world.park(seconds)
        if not fired and thread in self.waiting:
            self.waiting.remove(thread)
        return fired

    def idle(self, seconds: float, longest: float) -> bool:
        """Wait like `wait`, in a thread that polls at that interval.

        The thread skips polls for at most `longest` seconds while nothing happens in its process (`Process.stir`).
        """
        if longest > seconds:
            world = self.world
            thread = world.current
            world.process.idle.append((thread, thread.ticket + 1, world.now + seconds))
            seconds = longest
        return self.wait(seconds)

    def fire(self) -> None:
        """Wake all waiting threads."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for thread in waiting:
                self.world.wake(thread)

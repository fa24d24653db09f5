"""What each thread of this process is doing, for somebody who asks from outside."""

from __future__ import annotations

import os
import sys
import threading
import traceback

STANDARD_ERROR = 2


def tell(number: int, frame: object) -> None:
    """A handler of SIGQUIT: write the stack of each thread to standard error, as a JVM does.

    The main thread runs it, once it is not within a call that is not Python's. The standard library's `faulthandler`
    would answer even then, but it reads the stacks of threads that run meanwhile, and has ended a busy process by
    SIGSEGV.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"Thread {names.get(ident, ident)} (most recent call last):\n{''.join(traceback.format_stack(top))}"
        for ident, top in sys._current_frames().items()
    ]
    text = "".join([*stacks, f"{len(stacks)} threads\n"]).encode()
    while text:  # not through a file object, whose lock the thread that is interrupted may hold
        text = text[os.write(STANDARD_ERROR, text) :]

"""Thread dump of this process on SIGQUIT."""

from __future__ import annotations

import os
import sys
import threading
import traceback

STANDARD_ERROR = 2


def write_thread_dump(number: int, frame: object) -> None:
    """Write the stack of each thread to standard error, as a JVM does: a handler for SIGQUIT.

    The main thread runs it after the current C call. The standard library's `faulthandler` runs at once, but it reads
    the stacks of running threads and has ended a busy process by SIGSEGV.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"Thread {names.get(ident, ident)} (most recent call last):\n{''.join(traceback.format_stack(top))}"
        for ident, top in sys._current_frames().items()
    ]
    text = "".join([*stacks, f"{len(stacks)} threads\n"]).encode()
    while text:  # os.write: the interrupted thread may hold the lock of the file object
        text = text[os.write(STANDARD_ERROR, text) :]

"""Exit of commands that run a sink which hangs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def exit_if_sink_hangs() -> Iterator[None]:
    """Exit with code 1 after a hanging sink or Ctrl-C in the block, if threads would delay the end of Python.

    Without such threads, the exception is passed on.
    """
    from flafka.agent.runner.local.standalone import Hangs

    try:
        yield
    except (Hangs, KeyboardInterrupt) as e:
        if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            raise
        click.secho(f"error: {e}" if isinstance(e, Hangs) else "\nAborted!", fg="red", err=True)
        sys.stdout.flush()
        os._exit(1)

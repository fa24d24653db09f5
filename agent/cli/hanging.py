"""What the commands that run a sink themselves share: they end although the sink does not."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def ending_though_a_sink_hangs() -> Iterator[None]:
    """End the process at once, with a sentence or after Ctrl-C, where threads are left that Python would wait for."""
    from flafka.agent.runner.local.alone import Hangs

    try:
        yield
    except (Hangs, KeyboardInterrupt) as e:
        if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            raise
        click.secho(f"error: {e}" if isinstance(e, Hangs) else "\nAborted!", fg="red", err=True)
        sys.stdout.flush()
        os._exit(1)

"""The command `agent`, which is also `python -m flafka`."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path

FLUME_NG = "flume-ng"
"""Name of a link to this program that makes it accept the command line of Flume's launcher."""


def main() -> None:
    """Run the command `agent`; as `agent flume-ng`, if this program was started by the name flume-ng."""
    process_exit = ProcessExit()
    atexit.register(process_exit.exit)  # the first registered handler is called last
    from flafka.agent.cli import main as command

    try:
        if Path(sys.argv[0]).name == FLUME_NG:
            _run_as_flume_ng()
        else:
            command()
        process_exit.code = 0
    except SystemExit as e:
        process_exit.code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise


def _run_as_flume_ng() -> None:
    """Run `agent flume-ng` with the words behind the name flume-ng."""
    from flafka.agent.cli import one_line_errors
    from flafka.agent.cli.flume_ng import flume_ng

    with one_line_errors():
        flume_ng(prog_name=FLUME_NG)


class ProcessExit:
    """Exit of this process without C's exit handlers if a Kafka client may be running.

    OpenSSL's exit handler frees memory that a client's thread may use in a TLS handshake: SIGSEGV. A client survives
    the end of `main` if no one waits for its thread, such as that of a connectivity check.
    """

    def __init__(self) -> None:
        self.code = 1
        """Exit code of the process; 1 after an exception, which Python has printed by then."""

    def exit(self) -> None:
        """Flush standard output and error, and end the process; do nothing if no Kafka client was imported."""
        if "confluent_kafka" not in sys.modules:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        os._exit(self.code)


if __name__ == "__main__":
    main()

"""The command `agent`, which is also `python -m flafka`."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys


def main() -> None:
    """Run the command."""
    ending = Ending()
    atexit.register(ending.leave)  # before others are: the first that is registered is called last
    from flafka.agent.cli import main as command

    try:
        command()
        ending.code = 0
    except SystemExit as e:
        ending.code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise


class Ending:
    """End of this process, without the exit handlers of C where a Kafka client may be at work.

    OpenSSL's handler frees what a client's thread uses that is in a TLS handshake at that moment: SIGSEGV. A client
    lives on where the thread that uses it is not waited for, such as one that looks for brokers.
    """

    def __init__(self) -> None:
        self.code = 1
        """Exit code of the process; 1 for an exception, which Python has shown by then."""

    def leave(self) -> None:
        """Write what is buffered, and end the process."""
        if "confluent_kafka" not in sys.modules:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        os._exit(self.code)


if __name__ == "__main__":
    main()

"""Source `exec`: the lines that a command prints."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator
from types import MappingProxyType

import pyarrow as pa
import pydantic

from flafka.plugins import Batch, Config, Problem, Retry, Source, option
from flafka.plugins.java.charsets import text_codec
from flafka.sources.batching import STOP_CHECK_SECONDS, BatchingPolicy

_READ_BYTES = 256 * 1024
_MAX_EVENTS = 10_000
"""Maximum number of events in a batch."""
MAX_LINE_BYTES = 1 << 20
"""Maximum size of a line, in bytes; a longer line becomes several events.

Otherwise a command that prints no newline could exhaust memory.
"""
_TERMINATE_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL for the command."""


class ExecConfig(Config):
    """Options of the source `exec`."""

    options_without_effect = MappingProxyType(
        {"batchSize": "lines are batched as they arrive", "batchTimeout": "lines are batched as they arrive"}
    )
    command: str = option(name="command", min_length=1, description="The command to run.")
    shell: str | None = option(
        None,
        name="shell",
        description="Shell that runs the command, such as `/bin/sh -c`; needed for pipes, wildcards and "
        "variables. Without it the command is split at blanks and run directly.",
    )
    restart: bool = option(False, name="restart", description="Run the command again when it ends.")
    restart_throttle: int = option(
        10_000, name="restartThrottle", unit="ms", ge=0, description="Pause before the command is run again."
    )
    log_stderr: bool = option(False, name="logStdErr", description="Log what the command prints to standard error.")
    charset: str = option(
        "UTF-8", name="charset", description="Character set of the lines. Bodies of events are UTF-8."
    )

    _check_charset = pydantic.field_validator("charset")(text_codec)

    def warnings(self) -> Iterator[Problem]:
        """Yield a warning for a shell without `-c`, and for shell syntax in a command without a shell."""
        if self.shell and re.fullmatch(r"\S*\b(?:ba|da|k|z)?sh", self.shell.strip()):
            text = f"{self.shell} takes the command for the name of a file, as in Flume; write {self.shell} -c"
            yield Problem("shell", text, is_flume_behavior=True)
        if not self.shell and (match := re.search(r"[*|<>;&`]|\$\w", self.command)):
            text = f"{match[0]} means nothing without a shell, as in Flume; write shell = /bin/sh -c"
            yield Problem("command", text, is_flume_behavior=True)


class ExecSource(Source[ExecConfig]):
    """Make an event of each line that a command prints.

    Lines that were read are never dropped while the agent runs. The command gets no acknowledgement. Its output
    around a stop or a crash of the agent is lost, or repeated if the command starts over. To tail files, use
    `taildir`, which loses nothing.
    """

    type_name = "exec"
    aliases = ("org.apache.flume.source.ExecSource",)

    def __init__(self, config: ExecConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the command in a process group of its own. Raises Retry if it cannot be started."""
        arguments = self._arguments()
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if self.config.log_stderr else subprocess.DEVNULL,
                env=os.environ,  # without the Kerberos login of Kafka's clients
                start_new_session=True,  # a process group, so that `close` also ends its children
            )
        except (OSError, ValueError) as e:
            raise Retry(f"{arguments[0]!r} cannot be run: {getattr(e, 'strerror', None) or e}") from e

    def close(self) -> None:
        """End the command and its process group: SIGTERM, after 2 s SIGKILL. Blocks until the command ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # its children may ignore SIGTERM
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def check_connectivity(self) -> Iterator[str]:
        """Yield an error if the program of the command does not exist."""
        if shutil.which(program := self._arguments()[0]) is None:
            yield f"{program!r} cannot be run: there is no such program"

    def _arguments(self) -> list[str]:
        """Return the program and its arguments: the shell with the command, or the command split at blanks."""
        shell, command = self.config.shell, self.config.command
        return [*shell.split(), command] if shell else command.split()

    def sets_headers(self) -> Collection[str]:
        """Return no names: the source sets no headers."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """Yield batches of lines until the agent stops, or the command ends and `restart` is false.

        A command that ended is started again after `restartThrottle` ms. Raises Retry if that fails.
        """
        while not self.stopping.is_set():
            yield from self._lines()
            if self.stopping.is_set():
                return
            assert self._process is not None
            code = self._process.wait()
            self.close()
            (self.log.warning if code else self.log.info)("the command ended with code %d", code)
            if not self.config.restart or self.stopping.wait(self.config.restart_throttle / 1000):
                return
            self.open()

    def _lines(self) -> Iterator[Batch]:
        """Yield the lines of one run of the command, until its output ends or the agent stops.

        Lines that were complete before the stop are yielded. Error output is logged with `logStdErr`.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        splitter = _LineSplitter(self.config.charset)
        lines: list[bytes] = []
        batching, running = BatchingPolicy(), True
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if process.stderr is not None:
                selector.register(process.stderr, selectors.EVENT_READ)
            while running and not self.stopping.is_set():
                ready = selector.select(batching.timeout() if lines else STOP_CHECK_SECONDS)
                for key, _ in ready:
                    data = os.read(key.fd, _READ_BYTES)
                    if key.fileobj is process.stdout:
                        running = bool(data)
                        if not lines:
                            batching.start_batch()
                        lines += splitter.feed(data)
                    elif data:
                        self.log.warning("%s", data.decode(errors="replace").rstrip())
                    else:
                        selector.unregister(key.fileobj)
                if lines and (not running or len(lines) >= _MAX_EVENTS or batching.is_due(idle=not ready)):
                    batching.end_batch(len(lines))
                    yield Batch.of_columns(pa.array(lines, pa.binary()), {})
                    lines = []
        if lines:
            yield Batch.of_columns(pa.array(lines, pa.binary()), {})


class _LineSplitter:
    """Splitter of a byte stream into lines, which are converted to UTF-8."""

    def __init__(self, charset: str) -> None:
        # UTF-8 passes unchanged, even if it is invalid.
        is_utf8 = codecs.lookup(charset).name == "utf-8"
        self._decoder = None if is_utf8 else codecs.getincrementaldecoder(charset)("replace")
        self._unfinished = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without newline or CR LF, in UTF-8.

        Empty `data` ends the stream and completes the last line. A line is split every `MAX_LINE_BYTES` bytes.
        """
        text = self._decoder.decode(data, not data).encode() if self._decoder else data
        *lines, unfinished = (self._unfinished + text).split(b"\n")
        lines = [line.removesuffix(b"\r") for line in lines]
        while len(unfinished) >= MAX_LINE_BYTES or (unfinished and not data):
            lines.append(unfinished[:MAX_LINE_BYTES])
            unfinished = unfinished[MAX_LINE_BYTES:]
        self._unfinished = unfinished
        return lines

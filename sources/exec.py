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
from flafka.plugins.shared.charsets import text_codec
from flafka.sources.pace import STOP_CHECK_SECONDS, Pace

READ_SIZE = 256 * 1024
MAX_EVENTS = 10_000
MAX_LINE = 1 << 20
"""Maximum size of a line, in bytes; a longer line becomes several events.

Otherwise a command that prints no newline could exhaust memory.
"""
FAREWELL = 2.0
"""Seconds between SIGTERM and SIGKILL for the command."""


class ExecConfig(Config):
    """Options of the source `exec`."""

    options_without_effect = MappingProxyType(
        {"batchSize": "lines are batched as they come", "batchTimeout": "lines are batched as they come"}
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
        """Yield warnings about a shell without `-c`, and about shell syntax without a shell."""
        if self.shell and re.fullmatch(r"\S*\b(?:ba|da|k|z)?sh", self.shell.strip()):
            takes = f"{self.shell} takes the command for the name of a file, as in Flume; write {self.shell} -c"
            yield Problem("shell", takes, as_in_flume=True)
        if not self.shell and (found := re.search(r"[*|<>;&`]|\$\w", self.command)):
            alone = f"{found[0]} means nothing without a shell, as in Flume; write shell = /bin/sh -c"
            yield Problem("command", alone, as_in_flume=True)


class ExecSource(Source[ExecConfig]):
    """Make an event of each line that a command prints.

    Lines that were read are never dropped while the agent lives. The command does not learn which lines were stored.
    What it prints around a stop or a crash of the agent is lost, or repeated if the command starts over. To follow
    files, use `taildir`, which loses nothing.
    """

    type_name = "exec"
    aliases = ("org.apache.flume.source.ExecSource",)

    def __init__(self, config: ExecConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the command. Raises Retry where that is impossible."""
        words = self._words()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if self.config.log_stderr else subprocess.DEVNULL,
                start_new_session=True,  # a process group, so that `close` also ends its children
            )
        except (OSError, ValueError) as e:
            raise Retry(f"{words[0]!r} cannot be run: {getattr(e, 'strerror', None) or e}") from e

    def close(self) -> None:
        """End the command and its process group: SIGTERM, after 2 s SIGKILL. Blocks until the command ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(FAREWELL)
        with contextlib.suppress(ProcessLookupError):  # its children may ignore SIGTERM
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def check_connectivity(self) -> Iterator[str]:
        """Yield a fault if there is no such program."""
        if shutil.which(program := self._words()[0]) is None:
            yield f"{program!r} cannot be run: there is no such program"

    def _words(self) -> list[str]:
        shell, command = self.config.shell, self.config.command
        return [*shell.split(), command] if shell else command.split()

    def sets_headers(self) -> Collection[str]:
        """Return no names: the source sets no headers."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """Yield batches of lines until the command ends for good or the agent stops."""
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
        """Yield the batches of one run of the command."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        cutter = _Cutter(self.config.charset)
        lines: list[bytes] = []
        pace, running = Pace(), True
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if process.stderr is not None:
                selector.register(process.stderr, selectors.EVENT_READ)
            while running and not self.stopping.is_set():
                ready = selector.select(pace.patience() if lines else STOP_CHECK_SECONDS)
                for key, _ in ready:
                    data = os.read(key.fd, READ_SIZE)
                    if key.fileobj is process.stdout:
                        running = bool(data)
                        if not lines:
                            pace.begin()
                        lines += cutter.cut(data)
                    elif data:
                        self.log.warning("%s", data.decode(errors="replace").rstrip())
                    else:
                        selector.unregister(key.fileobj)
                if lines and (not running or len(lines) >= MAX_EVENTS or pace.due(quiet=not ready)):
                    pace.end()
                    yield Batch.of_columns(pa.array(lines, pa.binary()), {})
                    lines = []
        if lines:
            yield Batch.of_columns(pa.array(lines, pa.binary()), {})


class _Cutter:
    """Splitter of a byte stream into lines, which are converted to UTF-8."""

    def __init__(self, charset: str) -> None:
        # UTF-8 passes unchanged, even if it is invalid.
        unchanged = codecs.lookup(charset).name == "utf-8"
        self._decoder = None if unchanged else codecs.getincrementaldecoder(charset)("replace")
        self._held = b""

    def cut(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes. Empty `data` ends the stream and completes the last line."""
        text = self._decoder.decode(data, not data).encode() if self._decoder else data
        *lines, held = (self._held + text).split(b"\n")
        lines = [line.removesuffix(b"\r") for line in lines]
        while len(held) >= MAX_LINE or (held and not data):
            lines.append(held[:MAX_LINE])
            held = held[MAX_LINE:]
        self._held = held
        return lines

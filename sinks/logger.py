"""The logger sink."""

from __future__ import annotations

from flafka.plugins import Batch, CompatibilityNote, Config, Event, Sink, option


class LoggerConfig(Config):
    """Options of the logger sink."""

    max_bytes: int = option(
        16,
        name="maxBytesToLog",
        unit="bytes",
        ge=0,
        description="Maximum number of bytes of each body that are logged.",
    )


class LoggerSink(Sink[LoggerConfig]):
    """Writes every event into the agent's log, as hexadecimal and text: at least once, and no longer than the log."""

    type_name = "logger"
    aliases = ("org.apache.flume.sink.LoggerSink",)
    compatibility_notes = (
        CompatibilityNote(
            flume="`maxBytesToLog` has no effect in Flume 1.11: it logs 16 bytes of each body",
            here="as many as it says",
            option="maxBytesToLog",
        ),
    )

    def write(self, batch: Batch) -> None:
        """Log these events, one line and more each."""
        for event in batch:
            self.log.info("Event: %s", dump(event, self.config.max_bytes))


def dump(event: Event, max_bytes: int) -> str:
    """An event as Flume's logger sink writes it."""
    headers = ", ".join(f"{name}={value}" for name, value in event.headers.items())
    return f"{{ headers:{{{headers}}} body:{_hex_dump(event.body[:max_bytes])} }}"


def _hex_dump(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), 16):
        row = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        offset = f"{start:08X}" if start else ""  # Flume leaves the first one out
        lines.append(f"{offset} {row.hex(' ').upper():<47} {text}")
    return "\n".join(lines)

"""Logger sink."""

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
    """Logs events, in hexadecimal and as text, at least once. They are kept as long as the agent's log."""

    type_name = "logger"
    aliases = ("org.apache.flume.sink.LoggerSink",)
    compatibility_notes = (
        CompatibilityNote(
            flume="`maxBytesToLog` has no effect in Flume 1.11: it logs 16 bytes of each body",
            here="the option has the effect that Flume documents",
            option="maxBytesToLog",
        ),
    )

    def write(self, batch: Batch) -> None:
        """Log the events; each has one or more lines."""
        for event in batch:
            self.log.info("Event: %s", format_event(event, self.config.max_bytes))


def format_event(event: Event, max_bytes: int) -> str:
    """Return the text of an event, as of Flume's logger sink, with at most `max_bytes` of the body."""
    headers = ", ".join(f"{name}={value}" for name, value in event.headers.items())
    return f"{{ headers:{{{headers}}} body:{_hex_dump(event.body[:max_bytes])} }}"


def _hex_dump(body: bytes) -> str:
    """Return lines of 16 bytes in hexadecimal and as ASCII, where other characters are dots."""
    lines = []
    for start in range(0, len(body), 16):
        row = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        offset = f"{start:08X}" if start else ""  # Flume prints no offset in the first line
        lines.append(f"{offset} {row.hex(' ').upper():<47} {text}")
    return "\n".join(lines)

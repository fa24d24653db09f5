"""Interceptor `morphline`: transforms each event by a morphline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from flafka.plugins import Batch, CompatibilityNote, Event, Interceptor, Metric, cross_field_validator, option
from flafka.plugins.morphline.options import MORPHLINE_COMPATIBILITY, MorphlineConfig
from flafka.plugins.morphline.record import BODY, MorphlineRecord, MorphlineRuntimeError, to_java_string
from flafka.plugins.options import with_default

if TYPE_CHECKING:
    from flafka.plugins.morphline.morphline import Morphline


class MorphlineInterceptorConfig(MorphlineConfig):
    """Options of the interceptor `morphline`."""

    morphline_file: str = with_default(MorphlineConfig, "morphline_file")
    production: bool = option(
        False,
        name="isProductionMode",
        description="Drop events for which a command raises an error. If false, they pass unchanged; in Flume, the "
        "source then retries them forever.",
    )

    @cross_field_validator("morphline_file", "morphline_id", "variables")
    def _check_morphline(self) -> None:
        morphline = self.check_morphline()
        for location, _ in morphline.solr_locators if morphline else ():
            raise ValueError(f"{location}: only the sink solr can run commands of Solr: remove this one")


class MorphlineInterceptor(Interceptor[MorphlineInterceptorConfig]):
    """Runs a morphline of Kite's commands on each event; its output record becomes the event.

    Fields become headers. An event without output record is dropped; `MorphlineFailedCount` counts it if a command
    failed. If a command raises an error, or the output does not fit into one event, the event passes unchanged.
    `isProductionMode = true` drops such an event. `MorphlineExceptionCount` counts it in both cases. Not pure: some
    commands give another result each time.
    """

    type_name = "morphline"
    aliases = (
        "org.apache.flume.sink.solr.morphline.MorphlineInterceptor$Builder",
        "org.apache.flume.sink.solr.morphline.MorphlineInterceptor",
    )
    redacts = True
    compatibility_notes = (
        CompatibilityNote(
            flume="output that does not fit into one event (two values of a field, two records) stops the source",
            here="the event passes unchanged, counted as `MorphlineExceptionCount`; with `isProductionMode = true` "
            "it is dropped, as in Flume",
        ),
        CompatibilityNote(
            flume="a missing `morphlineFile` disables the source, and the other components start",
            here="`check` warns; the source waits for the file",
            option="morphlineFile",
        ),
        *MORPHLINE_COMPATIBILITY,
    )
    declared_metrics = (
        Metric("MorphlineFailedCount", "counter", "events", "Events for which a command of the morphline failed."),
        Metric("MorphlineExceptionCount", "counter", "events", "Events for which a command raised an error."),
    )
    pure = False

    def __init__(self, config: MorphlineInterceptorConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._morphline: Morphline | None = None
        self._output: list[MorphlineRecord] = []
        self._lock = threading.Lock()
        """Lock of the morphline, which runs in one thread at a time and is shared by the threads of a source."""

    def open(self) -> None:
        """Read and compile the morphline of `morphlineFile`.

        Raises Retry if the file cannot be read or has errors, MissingExtra if a command needs a missing library.
        """
        self._morphline = self.config.open_morphline(self._collect, self)

    def close(self) -> None:
        """Release the morphline. Idempotent."""
        self._morphline = None

    def intercept(self, batch: Batch) -> Batch:
        """Return the events that the morphline makes of these events, in order, without dropped ones. Thread-safe."""
        with self._lock:
            return batch.map(self._transform)

    def _collect(self, record: MorphlineRecord) -> bool:
        """Take an output record of the morphline; always return True, for success."""
        self._output.append(record)
        return True

    def _transform(self, event: Event) -> Event | None:
        """Return the event that the morphline makes of one event; None if it is dropped.

        After an error of a command, the event itself; None with `isProductionMode`. Failures and errors are counted.
        """
        assert self._morphline is not None
        self._output.clear()
        record = MorphlineRecord({name: [value] for name, value in event.headers.items()})
        if event.body:
            record[BODY] = [event.body]
        try:
            if not self._morphline.process(record):
                self.metrics.add("MorphlineFailedCount")
                self.warn_rate_limited("failed", "a command of the morphline fails for some events")
            return self._event()
        except MorphlineRuntimeError as e:
            self.metrics.add("MorphlineExceptionCount")
            self.warn_rate_limited("exception", "a command of the morphline raises an error for some events: %s", e)
            return None if self.config.production else event

    def _event(self) -> Event | None:
        """Return the output record as an event; None without one.

        Raises MorphlineRuntimeError for several records, several values of a field, or a body that is not bytes.
        """
        if len(self._output) > 1:
            count = len(self._output)
            raise MorphlineRuntimeError(f"the output of one event is {count} records, and an event can be only one")
        if not self._output:
            return None
        (record,) = self._output
        headers = {}
        body = b""
        for name in record:
            values = record[name]
            value = values[0]
            if len(values) > 1:
                raise MorphlineRuntimeError(
                    f"the field {name} has {len(values)} values, and a header can have only one"
                )
            if name != BODY:
                headers[_encodable(name)] = _encodable(to_java_string(value))
            elif isinstance(value, bytes):
                body = value
            else:
                raise MorphlineRuntimeError(f"{BODY} is not bytes: convert it with toByteArray")
        return Event(body, headers)


def _encodable(text: str) -> str:
    """Return the text with question marks for lone surrogates, which JSON can contain, as in Java."""
    return text.encode("utf-8", "replace").decode()

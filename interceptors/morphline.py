"""The interceptor `morphline`: a morphline makes another event of each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from flafka.plugins import Batch, CompatibilityNote, Event, Interceptor, Metric, cross_field_validator, option
from flafka.plugins.morphline.options import DIFFERENCES, MorphlineConfig
from flafka.plugins.morphline.record import BODY, Failed, MorphlineRecord, text
from flafka.plugins.options import with_default

if TYPE_CHECKING:
    from flafka.plugins.morphline.morphline import Morphline


class MorphlineInterceptorConfig(MorphlineConfig):
    """Options of the interceptor `morphline`."""

    morphline_file: str = with_default(MorphlineConfig, "morphline_file")
    production: bool = option(
        False,
        name="isProductionMode",
        description="Drop events with which a command raises an error. If false, they go on unchanged; in Flume, the "
        "source sends them again for ever.",
    )

    @cross_field_validator("morphline_file", "morphline_id", "variables")
    def _check_morphline(self) -> None:
        morphline = self.checked()
        for place, _ in morphline.locators if morphline else ():
            raise ValueError(f"{place}: only the sink solr can run commands of Solr: remove this one")


class MorphlineInterceptor(Interceptor[MorphlineInterceptorConfig]):
    """Runs a morphline of Kite's commands on each event: the record at its end is the event.

    Fields become headers. An event is dropped if no record reaches the end; if that is because a command fails,
    `MorphlineFailedCount` counts it. An event with which a command raises an error, or whose result is more than one
    event can hold, goes on unchanged, or is dropped with `isProductionMode = true`; `MorphlineExceptionCount` counts
    it. Not pure: some commands give another result each time.
    """

    type_name = "morphline"
    aliases = (
        "org.apache.flume.sink.solr.morphline.MorphlineInterceptor$Builder",
        "org.apache.flume.sink.solr.morphline.MorphlineInterceptor",
    )
    hides = True
    compatibility_notes = (
        CompatibilityNote(
            flume="a record that an event cannot hold (two values of a field, two records) stops the source",
            here="the event goes on unchanged, counted as `MorphlineExceptionCount`; with `isProductionMode = true` "
            "it is dropped, as in Flume",
        ),
        CompatibilityNote(
            flume="a `morphlineFile` that is not there drops the source, and the rest starts",
            here="`check` warns; the source waits until the file is there",
            option="morphlineFile",
        ),
        *DIFFERENCES,
    )
    declared_metrics = (
        Metric("MorphlineFailedCount", "counter", "events", "Events with which a command of the morphline failed."),
        Metric("MorphlineExceptionCount", "counter", "events", "Events with which a command raised an error."),
    )
    pure = False

    def __init__(self, config: MorphlineInterceptorConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._morphline: Morphline | None = None
        self._out: list[MorphlineRecord] = []
        self._lock = threading.Lock()
        """Sources with several threads share the morphline, which runs once at a time."""

    def open(self) -> None:
        """Read the morphline."""
        self._morphline = self.config.opened(self._keep, self)

    def close(self) -> None:
        """Forget it."""
        self._morphline = None

    def intercept(self, batch: Batch) -> Batch:
        """Run it on each event."""
        with self._lock:
            return batch.map(self._event)

    def _keep(self, record: MorphlineRecord) -> bool:
        self._out.append(record)
        return True

    def _event(self, event: Event) -> Event | None:
        assert self._morphline is not None
        self._out.clear()
        record = MorphlineRecord({name: [value] for name, value in event.headers.items()})
        if event.body:
            record[BODY] = [event.body]
        try:
            if not self._morphline.process(record):
                self.metrics.add("MorphlineFailedCount")
                self.warn_rate_limited("failed", "a command of the morphline fails with some events")
            return self._made()
        except Failed as e:
            self.metrics.add("MorphlineExceptionCount")
            self.warn_rate_limited("exception", "a command of the morphline raises an error with some events: %s", e)
            return None if self.config.production else event

    def _made(self) -> Event | None:
        if len(self._out) > 1:
            raise Failed(f"{len(self._out)} records come out of one event: an interceptor can make only one")
        if not self._out:
            return None
        (record,) = self._out
        headers = {}
        body = b""
        for name in record:
            value, *others = record[name]
            if others:
                raise Failed(f"the field {name} has {1 + len(others)} values, and a header can have only one")
            if name != BODY:
                headers[_encodable(name)] = _encodable(text(value))
            elif isinstance(value, bytes):
                body = value
            else:
                raise Failed(f"{BODY} is no bytes: toByteArray makes bytes of it")
        return Event(body, headers)


def _encodable(text: str) -> str:
    """Without half characters, which JSON can hold: a question mark each, as Java writes them."""
    return text.encode("utf-8", "replace").decode()

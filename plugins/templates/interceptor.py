"""An interceptor in Python for what the Java class com.example.Mine did, or a serializer or handler.

Save it as my_interceptor.py, beside a pyproject.toml with the lines below, and run `pip install .`.
Then a configuration may name it by either of its names: on a source, or on a sink where the same event always
becomes the same. `agent check` says whether it is found.

    [project]
    name = "my-interceptor"
    version = "1.0"
    [project.entry-points.flafka]
    my_interceptor = "my_interceptor"
"""

from __future__ import annotations

import json

from flafka import Batch, Component, Config, Event, Interceptor, Metric, hookimpl, option


class MyInterceptorConfig(Config):
    """Options of the Java class, by the same names."""

    field: str = option("type", name="field", description="Field of a JSON body that becomes a header.")


class MyInterceptor(Interceptor[MyInterceptorConfig]):
    """Copies a field of the body into a header; pure, and an event without that field passes as it is."""

    type_name = "my_interceptor"
    aliases = ("com.example.Mine",)
    declared_metrics = (
        Metric("FieldMissingCount", "counter", "events", "Events without the field that `field` names."),
    )

    def intercept(self, batch: Batch) -> Batch:
        """Return the events of the batch, each changed, in their order."""
        field = self.config.field
        values = [self._value(event, field) for event in batch]
        self.metrics.add("FieldMissingCount", values.count(None))
        kept = [
            event.headers.get(field) if value is None else value for event, value in zip(batch, values, strict=True)
        ]
        return batch.with_header(field, kept)

    def _value(self, event: Event, field: str) -> str | None:
        """Return the header of one event: the part to write anew. It must not raise, whatever the body is."""
        try:
            found = json.loads(event.body)
        except (ValueError, RecursionError):
            return None
        value = found.get(field) if isinstance(found, dict) else None
        return None if value is None else str(value)


@hookimpl
def components() -> list[type[Component]]:
    """Components of this module."""
    return [MyInterceptor]

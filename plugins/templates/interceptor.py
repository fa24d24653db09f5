"""An interceptor in Python that replaces the Java class com.example.Mine, or a serializer or handler.

Save it as my_interceptor.py, beside a pyproject.toml with the lines below, and run `pip install .`.
Then a configuration may use either of its names on a source, or on a sink if the interceptor is pure. `agent check`
reports an error if the plugin is not found.

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
    """Copies a field of the body into a header; pure. An event without that field passes unchanged."""

    type_name = "my_interceptor"
    aliases = ("com.example.Mine",)
    declared_metrics = (
        Metric("FieldMissingCount", "counter", "events", "Events without the field that `field` names."),
    )

    def intercept(self, batch: Batch) -> Batch:
        """Return the batch with the header set."""
        field = self.config.field
        values = [self._value(event, field) for event in batch]
        self.metrics.add("FieldMissingCount", values.count(None))
        headers = [
            event.headers.get(field) if value is None else value for event, value in zip(batch, values, strict=True)
        ]
        return batch.with_header(field, headers)

    def _value(self, event: Event, field: str) -> str | None:
        """Return the header of one event. Replace this method; it must not raise for any body."""
        try:
            fields = json.loads(event.body)
        except (ValueError, RecursionError):
            return None
        value = fields.get(field) if isinstance(fields, dict) else None
        return None if value is None else str(value)


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [MyInterceptor]

"""How events are made of JSON: options of all that read it."""

from __future__ import annotations

import pydantic

from flafka.plugins import option
from flafka.plugins.problems import suggestion
from flafka.sources.log4j.encoders import PARTS
from flafka.sources.log4j.reading import LogEventParser
from flafka.sources.timezone import TimeZoneConfig


class EncodingConfig(TimeZoneConfig):
    """Options of those that read what logging libraries write as JSON."""

    field: dict[str, str] = option(
        {},
        name="field.",
        description="Where encoders with names of their own put what becomes body and headers: `field.<part> = "
        "NAME …`. The first that is there counts, before the known names. A dot leads into an object: `event.level`. "
        f"Parts: {', '.join(f'`{part}`' for part in PARTS)}.",
    )

    @pydantic.field_validator("field")
    @classmethod
    def _known_parts(cls, value: dict[str, str]) -> dict[str, str]:
        for part in value:
            if part not in PARTS:
                raise ValueError(f"{part}: no such part{suggestion(part, list(PARTS))}; there are {' '.join(PARTS)}")
        return value

    def reader(self) -> LogEventParser:
        """What makes events of it."""
        return LogEventParser(self.field, self.zone)

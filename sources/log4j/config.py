"""Options of sources that parse the JSON of logging libraries."""

from __future__ import annotations

import pydantic

from flafka.plugins import option
from flafka.plugins.problems import suggest
from flafka.sources.log4j.encoders import PARTS
from flafka.sources.log4j.parser import LogEventParser
from flafka.sources.timezone import TimeZoneConfig


class EncodingConfig(TimeZoneConfig):
    """Options of sources that parse the JSON of logging libraries."""

    field: dict[str, str] = option(
        {},
        name="field.",
        description="Names of the fields that become body and headers, for custom encoders: `field.<part> = NAME …`. "
        "The first existing field counts, before the known names. A dot denotes a nested field: `event.level`. "
        f"Parts: {', '.join(f'`{part}`' for part in PARTS)}.",
    )

    @pydantic.field_validator("field")
    @classmethod
    def _known_parts(cls, value: dict[str, str]) -> dict[str, str]:
        for part in value:
            if part not in PARTS:
                raise ValueError(f"{part}: no such part{suggest(part, list(PARTS))}; there are {' '.join(PARTS)}")
        return value

    def parser(self) -> LogEventParser:
        """Return a parser with the field names and the time zone of these options."""
        return LogEventParser(self.field, self.zone)

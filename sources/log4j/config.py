"""How events are made of JSON: options of all that read it."""

from __future__ import annotations

import zoneinfo

import pydantic

from plugins import Config, option
from plugins.options import suggestion
from sources.log4j.encoders import PARTS
from sources.log4j.reading import Reader


class EncodingConfig(Config):
    """Options of those that read what logging libraries write as JSON."""

    field: dict[str, str] = option(
        {},
        name="field.",
        description="Where encoders with names of their own put what becomes body and headers: `field.<part> = "
        "NAME …`. The first that is there counts, before the known names. A dot leads into an object: `event.level`. "
        f"Parts: {', '.join(f'`{part}`' for part in PARTS)}.",
    )
    time_zone: str | None = option(
        None,
        name="timeZone",
        description="Time zone of times that name none, such as Europe/Berlin. If unset, the zone of this machine.",
    )

    @pydantic.field_validator("field")
    @classmethod
    def _known_parts(cls, value: dict[str, str]) -> dict[str, str]:
        for part in value:
            if part not in PARTS:
                raise ValueError(f"{part}: no such part{suggestion(part, list(PARTS))}; there are {' '.join(PARTS)}")
        return value

    @pydantic.field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        try:
            return value and zoneinfo.ZoneInfo(value).key
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"must be a time zone such as Europe/Berlin, not {value!r}") from None

    def reader(self) -> Reader:
        """What makes events of it."""
        return Reader(self.field, zoneinfo.ZoneInfo(self.time_zone) if self.time_zone else None)

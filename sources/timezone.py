"""The zone of times that name none."""

from __future__ import annotations

import zoneinfo

import pydantic

from flafka.plugins import Config, option


class TimeZoneConfig(Config):
    """The option of all that read times."""

    time_zone: str | None = option(
        None,
        name="timeZone",
        description="Time zone of times that name none, such as Europe/Berlin. If unset, the zone of this machine.",
    )

    @pydantic.field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        try:
            return value and zoneinfo.ZoneInfo(value).key
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"must be a time zone such as Europe/Berlin, not {value!r}") from None

    @property
    def zone(self) -> zoneinfo.ZoneInfo | None:
        """It; None for that of this machine."""
        return zoneinfo.ZoneInfo(self.time_zone) if self.time_zone else None

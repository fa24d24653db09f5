"""Option for the time zone of timestamps without one."""

from __future__ import annotations

import zoneinfo

import pydantic

from flafka.plugins import Config, option


class TimeZoneConfig(Config):
    """Option `timeZone` of sources that parse timestamps."""

    time_zone: str | None = option(
        None,
        name="timeZone",
        description="Time zone of timestamps without one, such as Europe/Berlin. If unset, the zone of this machine.",
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
        """Time zone; None for the zone of this machine."""
        return zoneinfo.ZoneInfo(self.time_zone) if self.time_zone else None

"""Options of channels inside the agent, whose capacity is limited."""

from __future__ import annotations

import re
from typing import Any

import pydantic

from flafka.plugins import Config, cross_field_validator, option

_DEFAULTED_OPTIONS = ("capacity", "overflowCapacity", "transactionCapacity")


class BoundedConfig(Config):
    """Capacity of the channel, and maximum size of a put."""

    capacity: int = option(
        10_000,
        name="capacity",
        unit="events",
        description="Maximum number of events in the channel. Sources wait while it is full. 0 or less is the "
        "default.",
    )
    transaction_capacity: int = option(
        10_000,
        name="transactionCapacity",
        unit="events",
        description="Maximum number of events in one put. A larger batch is split. 0 or less is the default.",
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _use_defaults(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {
            n: v
            for n, v in values.items()
            if not (n in _DEFAULTED_OPTIONS and re.fullmatch(r"[+-]?0+|-[0-9]+", str(v)))
        }

    @cross_field_validator("transaction_capacity", "capacity")
    def _fits(self) -> None:
        if "transaction_capacity" in self.model_fields_set and self.transaction_capacity > self.capacity:
            raise ValueError(f"must be at most capacity, {self.capacity}")

"""Options of channels inside the agent, which hold so many events at most."""

from __future__ import annotations

import re
from typing import Any

import pydantic

from flafka.plugins import Config, cross_field_validator, option

_BY_DEFAULT = ("capacity", "overflowCapacity", "transactionCapacity")


class BoundedConfig(Config):
    """How many events the channel holds, and how many are put at once."""

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
        description="Maximum number of events that are put at once. A larger batch is put in pieces. 0 or less is "
        "the default.",
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_default(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {
            n: v for n, v in values.items() if not (n in _BY_DEFAULT and re.fullmatch(r"[+-]?0+|-[0-9]+", str(v)))
        }

    @cross_field_validator("transaction_capacity", "capacity")
    def _fits(self) -> None:
        if "transaction_capacity" in self.model_fields_set and self.transaction_capacity > self.capacity:
            raise ValueError(f"must be at most capacity, {self.capacity}")

"""Interceptor `uuid`."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from flafka.interceptors.uuid import UUIDConfig, UUIDInterceptor, uuids
from flafka.plugins import Batch, Event


@given(st.binary(max_size=160).map(lambda drawn: drawn[: len(drawn) // 16 * 16]), st.text(max_size=5))
def test_uuids_agree_with_the_standard_library(random: bytes, prefix: str) -> None:
    expected = [
        prefix + str(uuid.UUID(bytes=random[start : start + 16], version=4)) for start in range(0, len(random), 16)
    ]
    assert uuids(random, prefix).to_pylist() == expected


def test_every_event_gets_its_own() -> None:
    batch = UUIDInterceptor(UUIDConfig()).intercept(Batch.of(Event(b"x") for _ in range(1000)))
    assert len({event.headers["id"] for event in batch}) == 1000

"""The interceptor `uuid`."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from flafka.interceptors.uuid import UUIDConfig, UUIDInterceptor, uuids
from flafka.plugins import Batch, Event


@given(st.binary(max_size=160).map(lambda drawn: drawn[: len(drawn) // 16 * 16]), st.text(max_size=5))
def test_they_are_what_the_standard_library_makes_of_the_same_bytes(random: bytes, prefix: str) -> None:
    expected = [prefix + str(uuid.UUID(bytes=random[at : at + 16], version=4)) for at in range(0, len(random), 16)]
    assert uuids(random, prefix).to_pylist() == expected


def test_every_event_gets_its_own_and_keeps_what_it_has() -> None:
    batch = Batch.of([Event(b"\xff", {"id": "mine"}), *(Event(b"x") for _ in range(1000))])
    kept, *others = [event.headers["id"] for event in UUIDInterceptor(UUIDConfig()).intercept(batch)]
    assert kept == "mine"
    assert len(set(others)) == 1000
    replacing = UUIDInterceptor(UUIDConfig(header_name="id", preserve_existing=False, prefix="p-"))
    assert all(event.headers["id"].startswith("p-") for event in replacing.intercept(batch))

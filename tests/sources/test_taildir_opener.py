"""The opener of the source `taildir`, given the kernel's events one by one."""

from __future__ import annotations

from flafka.sources.taildir.opener import InotifyEvent, Opener

CREATE, DELETE, IGNORED = 0x100, 0x200, 0x8000


def test_events_of_a_directory_that_was_gone_before_it_was_heard_of_are_told() -> None:
    opener = Opener()
    for event in (
        InotifyEvent(1, CREATE, 0, b"a"),
        InotifyEvent(1, DELETE, 0, b"a"),
        InotifyEvent(1, IGNORED, 0, b""),
    ):
        opener.handle(event)
    assert not opener.waiting
    opener.watch(1, {"/gone": None})
    assert [told[:2] for told, _ in opener.waiting] == [("created", "/gone/a"), ("deleted", "/gone/a")]
    opener.watch(1, {})
    assert len(opener.waiting) == 2


def test_patterns_of_one_directory_keep_their_own_flags() -> None:
    opener = Opener()
    opener.watch(1, {"/gone": [r"(?i).*\.log", r"(?s)b.*"]})
    for name in (b"A.LOG", b"b", b"B", b"c"):
        opener.handle(InotifyEvent(1, CREATE, 0, name))
    assert [told[1] for told, _ in opener.waiting] == ["/gone/A.LOG", "/gone/b"]

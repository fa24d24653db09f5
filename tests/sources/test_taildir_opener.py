"""Opener of the source `taildir`, given the kernel's events one by one."""

from __future__ import annotations

from flafka.sources.taildir.opener import InotifyEvent, Opener

CREATE, DELETE, IGNORED = 0x100, 0x200, 0x8000


def test_events_of_a_directory_deleted_before_its_watch_are_reported() -> None:
    opener = Opener()
    for event in (
        InotifyEvent(1, CREATE, 0, b"a"),
        InotifyEvent(1, DELETE, 0, b"a"),
        InotifyEvent(1, IGNORED, 0, b""),
    ):
        opener.handle(event)
    assert not opener.unsent
    opener.watch(1, {"/gone": None})
    assert [report[:2] for report, _ in opener.unsent] == [("created", "/gone/a"), ("deleted", "/gone/a")]
    opener.watch(1, {})
    assert len(opener.unsent) == 2


def test_patterns_of_one_directory_keep_their_own_flags() -> None:
    opener = Opener()
    opener.watch(1, {"/gone": [r"(?i).*\.log", r"(?s)b.*"]})
    for name in (b"A.LOG", b"b", b"B", b"c"):
        opener.handle(InotifyEvent(1, CREATE, 0, name))
    assert [report[1] for report, _ in opener.unsent] == ["/gone/A.LOG", "/gone/b"]

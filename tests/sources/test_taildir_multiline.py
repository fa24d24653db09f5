"""Events of several lines: stack traces arrive whole, wherever reading and writing were interrupted."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.sources.taildir import TaildirConfig, TaildirSource
from tests.fixtures.examples import examples
from tests.sources.taildir_running import append, bodies, kill, process, start

TRACE = b"""2024-05-01 10:00:00 ERROR request failed
java.lang.IllegalStateException: no
\tat a.b.C.run(C.java:1)

Caused by: java.io.IOException: \xe2\x82\xac \xff
\t... 2 more"""
PLAIN = b"2024-05-01 10:00:01 INFO fine"
BEGINS = {"multiline.pattern": r"^\d{4}-\d\d-\d\d ", "multiline.negate": "true"}
NEVER = {"multiline.timeout": "3600000"}


def multi(directory: Path, **options: str) -> TaildirSource:
    return start(directory, **{**BEGINS, **NEVER, **options})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "log"


def test_a_stack_trace_is_one_event(log: Path, tmp_path: Path) -> None:
    log.write_bytes(b"\n".join([TRACE, PLAIN, TRACE, TRACE, PLAIN, b""]))
    source = multi(tmp_path, byteOffsetHeader="true")
    events = process(source)
    assert [body for body, _ in events] == [TRACE, PLAIN, TRACE, TRACE], "the last one may go on"
    assert [int(headers["byteoffset"]) for _, headers in events] == [0, 152, 182, 334]
    append(log, b"goes on\n" + PLAIN + b"\n")
    assert bodies(source) == [PLAIN + b"\ngoes on"]
    source.close()


def test_an_event_is_complete_when_its_file_has_been_quiet(log: Path, tmp_path: Path) -> None:
    """No full scan comes in time: the timeout itself wakes the source."""
    log.write_bytes(TRACE + b"\nand unfin")
    source = multi(
        tmp_path, backoffSleepIncrement="3600000", maxBackoffSleep="3600000", **{"multiline.timeout": "300"}
    )
    arrived: list[bytes] = []
    news = threading.Condition()

    def run() -> None:
        for batch in source.batches():
            with news:
                arrived.extend(batch.bodies.to_pylist())
                news.notify()
            source.stored(batch)

    thread = threading.Thread(target=run)
    thread.start()
    with news:
        assert news.wait_for(lambda: arrived, timeout=10)
        append(log, b"ished\n" + PLAIN + b"\n")
        assert news.wait_for(lambda: len(arrived) == 3, timeout=10)
    assert arrived == [TRACE, b"and unfinished", PLAIN]
    source.stopping.set()
    thread.join(60)
    source.close()


@pytest.mark.parametrize("way", ["closed", "killed"])
def test_nothing_is_lost_at_a_restart_in_the_middle_of_an_event(way: str, log: Path, tmp_path: Path) -> None:
    text = b"\n".join([PLAIN, TRACE, PLAIN, b""])
    events: list[bytes] = []
    step = 3 * 100 // examples(100)
    for cut in range(0, len(text), step):
        source = multi(tmp_path)
        append(log, text[cut : cut + step])
        events += bodies(source)
        (source.close if way == "closed" else lambda s=source: kill(s))()
    source = multi(tmp_path, **{"multiline.timeout": "1"})
    assert events + bodies(source) == [PLAIN, TRACE, PLAIN]
    source.close()


@pytest.mark.parametrize("fate", ["renamed", "renamed out of the pattern", "deleted", "copytruncate"])
def test_an_unfinished_event_survives_a_rotation(fate: str, log: Path, tmp_path: Path) -> None:
    log.write_bytes(TRACE + b"\n")
    source = multi(tmp_path, **({} if fate == "copytruncate" else {"multiline.timeout": "300"}))
    assert bodies(source) == []
    if fate == "copytruncate":
        shutil.copy(log, tmp_path / "copy")
        log.write_bytes(PLAIN + b"\n" + PLAIN + b"\n")
    elif fate == "deleted":
        log.unlink()
    else:
        log.rename(log.with_name("log.1" if fate == "renamed" else "old"))
    events: list[bytes] = []
    while len(events) < (2 if fate == "copytruncate" else 1):
        events += bodies(source)
    assert events == [TRACE, PLAIN][: len(events)]
    source.close()


def test_events_longer_than_a_batch(log: Path, tmp_path: Path) -> None:
    huge = b"2024-05-01 x" + b"\n y" * 300_000
    log.write_bytes(b"\n".join([PLAIN, huge, huge, PLAIN, b""]))
    source = multi(tmp_path, **{"multiline.maxLines": "1000000"})
    assert bodies(source) == [PLAIN, huge, huge]
    source.close()


def test_unfinished_lines_do_not_wait_for_ever(log: Path, tmp_path: Path) -> None:
    line = b" " + b"z" * 999 + b"\n"
    log.write_bytes(b"2024-05-01 x\n" + line * 9000)
    options = {"multiline.maxLines": "1000000", "multiline.maxBytes": str(4 << 20)}
    source = multi(tmp_path, **options)
    events = bodies(source)
    assert len(events) == 2
    assert b"\n".join(events) == b"2024-05-01 x\n" + b"\n".join([line[:-1]] * (b"\n".join(events).count(b"\n")))
    source.close()


def expected_events(lines: list[bytes], *, negate: bool, after: bool, most: int) -> list[bytes]:
    """Return the events by Filebeat's documentation, line by line."""
    events: list[list[bytes]] = []
    open_ = False
    for line in lines:
        goes_on = line.startswith((b" ", "é".encode())) != negate
        joined = open_ and (goes_on or not after)
        if joined and len(events[-1]) < most:
            events[-1].append(line)
        else:
            events.append([line])
        open_ = (goes_on or after) and len(events[-1]) < most
    return [b"\n".join(event) for event in events]


@settings(max_examples=examples(30))
@given(
    lines=st.lists(st.sampled_from([b"a", b" b", b"", "é".encode(), b"\xff", b" " * 50]), min_size=1, max_size=40),
    negate=st.booleans(),
    after=st.booleans(),
    most=st.integers(1, 6),
    seed=st.integers(0, 1 << 20),
)
def test_any_lines_in_any_pieces(
    lines: list[bytes], negate: bool, after: bool, most: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("pieces")
    chance = random.Random(seed)
    options = {
        "multiline.pattern": "^[ é]",
        "multiline.negate": str(negate).lower(),
        "multiline.match": "after" if after else "before",
        "multiline.maxLines": str(most),
        "batchSize": "3",
    }
    source = start(directory, **options, **NEVER)
    text, events = b"\n".join([*lines, b""]), []
    while text:
        size = chance.randint(1, len(text))
        append(directory / "logs" / "log", text[:size])
        text = text[size:]
        events += bodies(source)
        if chance.random() < 0.3:
            kill(source)
            source = start(directory, **options, **NEVER)
    source.close()
    source = start(directory, **{**options, "multiline.timeout": "1"})
    events += bodies(source)
    source.close()
    assert events == expected_events(lines, negate=negate, after=after, most=most)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"multiline.negate": "true"}, "is required, as without it no lines are joined"),
        ({"multiline.pattern": "("}, "cannot be read"),
        ({"multiline.pattern": "^(?! )"}, r"write it without (multiline.negate reverses the match)"),
        ({"multiline.pattern": "x", "multiline.match": "behind"}, "must be 'after' or 'before'"),
        ({"multiline.pattern": "x", "multiline.max_lines": "7"}, "did you mean 'multiline.maxLines'?"),
        ({"multiline.pattern": "x", "multiline.maxLines": "0"}, "at least 1"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], problem: str) -> None:
    _, problems = TaildirConfig.parse({"filegroups": "g", "filegroups.g": "/d/x", **options})
    assert problem in "\n".join(mistake.message for mistake in problems)


def test_nuls_left_by_a_truncation_are_no_part_of_an_event(log: Path, tmp_path: Path) -> None:
    texts = [b"2026-11-22 %s" % text for text in (b"one\n  more", b"two", b"three\n  more", b"four")]
    with log.open("wb", buffering=0) as writer:
        writer.write(b"\n".join([*texts[:2], b""]))
        source = multi(tmp_path)
        events = bodies(source)
        os.truncate(log, 0)
        writer.write(b"\n".join([*texts[2:], b""]))
        while len(events) < 3:
            events += bodies(source)
    assert events == texts[:3], "the last one may go on"
    source.close()

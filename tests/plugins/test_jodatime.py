"""Times in patterns of Joda-Time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins.java.jodatime import TimePattern


def millis(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("yyyy-MM-dd HH:mm", "2012-10-17 14:34", millis(2012, 10, 17, 14, 34)),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSZ", "2012-10-17T14:34:05.07+0130", millis(2012, 10, 17, 13, 4, 5) + 70),
        ("yyyy-MM-dd'T'HH:mm:ssZZ", "2012-10-17T14:34:05Z", millis(2012, 10, 17, 14, 34, 5)),
        ("yyyy-MM-dd'T'HH:mm:ssZZ", "2012-10-17T14:34:05-05:00", millis(2012, 10, 17, 19, 34, 5)),
        ("yyyyMMddHHmmssSSS", "20121017143405338", millis(2012, 10, 17, 14, 34, 5) + 338),
        ("dd/MMM/yyyy:HH:mm:ss", "7/oct/2012:01:02:03", millis(2012, 10, 7, 1, 2, 3)),
        ("EEE MMMM d h:m a yyyy", "Wed October 17 12:05 AM 2012", millis(2012, 10, 17, 0, 5)),
        ("d MMM", "29 Feb", millis(2000, 2, 29)),
        ("HH:mm", "01:02", millis(1970, 1, 1, 1, 2)),
        ("yyyy-DDD", "2012-366", millis(2012, 12, 31)),
        ("kk:mm", "24:05", millis(1970, 1, 1, 0, 5)),
        ("yyyy 'o''clock'", "2012 o'clock", millis(2012, 1, 1)),
        ("dd.MM.yy", "17.10.12", millis(2012, 10, 17)),
        ("dd.MM.yy", "17.10.85", millis(1985, 10, 17) if datetime.now(UTC).year < 2066 else millis(2085, 10, 17)),
        ("yyyy-MM-dd'T'HH:mm:ssZ", "2012-10-17T14:34:05+01", millis(2012, 10, 17, 13, 34, 5)),
        ("yyyy-MM-dd'T'HH:mm:ssZ", "2012-10-17T14:34:05-01:00:01.5", millis(2012, 10, 17, 15, 34, 6) + 500),
        ("yyyy-MM-dd'T'HH:mm:ssZ", "2012-10-17T14:34:05+0099", None),
        ("yyyy-MM-dd'T'HH:mm:ssZ", "2012-10-17T14:34:05+2400", None),
        ("yyyy", "+2012", millis(2012, 1, 1)),
        ("EEE, d MMM yyyy", "Sun, 17 Oct 2012", millis(2012, 10, 21)),
        ("EEE, d MMM yyyy", "Monday, 17 Oct 2012", millis(2012, 10, 15)),
        ("hh:mm a", "12:05 pm", millis(1970, 1, 1, 12, 5)),
        ("hh:mm a", "00:05 pm", None),
        ("KK:mm a", "00:05 pm", millis(1970, 1, 1, 12, 5)),
        ("KK:mm a", "12:05 pm", None),
        ("kk:mm", "00:05", None),
        ("yyyy-MM-dd", "2012-02-30", None),
        ("yyyy-MM-dd", "2012-13-01", None),
        ("yyyy-MM-dd", "2012-10-17 ", None),
        ("yyyy-DDD", "2013-366", None),
        ("HH:mm", "24:00", None),
        ("HH:mm", "٠١:٠٢", None),
        ("yyyy", "", None),
        ("yyyy", "999999999", None),
    ],
)
def test_reads(pattern: str, text: str, expected: int | None) -> None:
    assert TimePattern(pattern, UTC).millis(text) == expected


def test_a_time_without_an_offset_is_in_the_zone() -> None:
    pattern = TimePattern("yyyy-MM-dd HH:mm", ZoneInfo("Europe/Berlin"))
    assert pattern.millis("2012-07-01 14:00") == millis(2012, 7, 1, 12)


@pytest.mark.parametrize("pattern", ["ABCDEFG", "yyyy-MM-dd'T", "HH kk", "yyyy ZZZ", "w"])
def test_unsupported_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="the time"):
        TimePattern(pattern)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)), st.text(max_size=20))
def test_it_reads_what_was_written_and_never_fails(time: datetime, noise: str) -> None:
    pattern = TimePattern("yyyy-MM-dd HH:mm:ss.SSS", UTC)
    text = f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03}"
    rounded = time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=UTC)
    assert pattern.millis(text) == round(rounded.timestamp() * 1000)
    pattern.millis(noise)

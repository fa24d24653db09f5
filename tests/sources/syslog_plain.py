"""Plain parser of syslog, frame by frame, from the grammar of Flume's documentation."""

import calendar
import re
from datetime import datetime, timedelta

from flafka.plugins import Event
from flafka.sources.syslog.parser import CONTINUATION, CUT, STATUS

SPACE = rb"[ \t\n\x0b\f\r]"
PRIORITY = re.compile(rb"<(\d{1,3})>")
ISO = rb"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[+-]\d{2}:\d{2}|Z)?"
RFC5424 = re.compile(
    rb"<(\d{1,3})>(\d?)"
    + SPACE
    + rb"?(?:("
    + ISO
    + rb")|-)"
    + SPACE
    + rb"([^\x00-\x20]{1,255})"
    + SPACE
    + rb"(.*)\Z",
    re.DOTALL | re.ASCII,
)
RFC3164 = re.compile(
    rb"<(\d{1,3})>(\d?)" + SPACE + rb"?"
    rb"([A-Z][a-z][a-z]" + SPACE + rb"{1,2}\d{1,2}" + SPACE + rb"\d{2}:\d{2}:\d{2})"
    + SPACE + rb"([^\x00-\x20]{1,255})" + SPACE + rb"(.*)\Z",
    re.DOTALL | re.ASCII,
)  # fmt: skip


def is_host(host, sure):
    """Return True for a host; `sure` where RFC 5424 has one there, whatever its form."""
    try:
        text = host.decode()
    except UnicodeDecodeError:
        return False
    if sure:
        return all(c > "\x7f" or "!" <= c <= "~" for c in text)
    if re.fullmatch(r"(?:[\w]|[^\x00-\x7f])(?:[\w.@-]|[^\x00-\x7f])*", text, re.ASCII):
        return True
    address = re.fullmatch(r"\[?([\da-fA-F:.]+)(?:%[\w.-]+)?\]?", text, re.ASCII)
    if address is None:
        return False
    before, short, _ = address[1].partition("::")
    return (bool(short) and "." not in before) or bool(re.match(r"([\da-fA-F]{1,4}:){6}.", address[1]))


EPOCH = datetime(1970, 1, 1)


def lenient(year, month, day, hour, minute, second):
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    days = (datetime(year % 400 + 400, month, 1) - EPOCH).days + (year // 400 - 1) * 146097 + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def to_utc(seconds, zone):
    first, last = (int((datetime(year, 1, 1) - EPOCH).total_seconds()) for year in (1900, 2200))
    minute = min(max(seconds // 60 * 60, first), last)
    wall = (EPOCH + timedelta(seconds=minute)).replace(tzinfo=zone)
    return seconds - minute + max(int(wall.replace(fold=fold).timestamp()) for fold in (0, 1))


def month_later(moment, months):
    index = moment.year * 12 + moment.month - 1 + months
    year, month = index // 12, index % 12 + 1
    return moment.replace(year=year, month=month, day=min(moment.day, calendar.monthrange(year, month)[1]))


def reference_time(stamp, now, zone):
    text = stamp.decode("ascii")
    if text[0].isdigit():
        fields = [int(n) for n in re.findall(r"\d+", text[:19])]
        fraction, sign, hours, minutes = re.fullmatch(r"(?:\.(\d+))?(?:([+-])(\d\d):(\d\d)|Z)?", text[19:]).groups(
            default=""
        )
        seconds = lenient(*fields)
        if sign:
            seconds -= int(sign + "1") * (int(hours) * 3600 + int(minutes) * 60)
        elif not text.endswith("Z"):
            seconds = to_utc(seconds, zone)
        return seconds * 1000 + int((fraction + "000")[:3])
    month, day, clock = re.split(r"\s+", text)
    if month not in calendar.month_abbr[1:]:
        return None
    local = datetime.fromtimestamp(now, zone).replace(tzinfo=None)
    fields = list(calendar.month_abbr).index(month), int(day), *map(int, clock.split(":"))
    seconds = lenient(local.year, *fields)
    if seconds > (month_later(local, 1) - EPOCH).total_seconds():
        seconds = lenient(local.year - 1, *fields)
    elif seconds < (month_later(local, -11) - EPOCH).total_seconds():
        seconds = lenient(local.year + 1, *fields)
    return to_utc(seconds, zone) * 1000


def reference(frame, mark, now, options):
    if not mark & CUT:
        frame = frame.removesuffix(b"\0").removesuffix(b"\n")
    priority = PRIORITY.match(frame)
    if priority is None or int(priority[1]) > 191 or mark & CONTINUATION:
        return Event(frame, {"Facility": "0", "Severity": "0", STATUS: "Invalid"})
    number = int(priority[1])
    headers = {"Facility": str(number // 8), "Severity": str(number % 8)}
    if mark & CUT:
        headers[STATUS] = "Incomplete"
    old = RFC3164.match(frame)
    head = old or RFC5424.match(frame)
    if head is not None:
        _, version, stamp, host, body = head.groups()
        sure = old is None and version and frame[head.end(2) : head.end(2) + 1].isspace()
        if not is_host(host, sure) and (old or host != b"-"):
            head = None
        elif host == b"-":
            host = b""
    if head is None:
        headers.setdefault(STATUS, "Invalid")
        return Event(frame, headers)
    headers["priority"] = priority[1].decode()
    if version:
        headers["version"] = version.decode()
    if stamp and (time := reference_time(stamp, now, options.zone)) is not None:
        headers["timestamp"] = str(time)
    if host:
        headers["host"] = host.decode()
    prefix = b""
    if "priority" in options.keep:
        prefix += b"<%s>" % priority[1]
    if "version" in options.keep and version:
        prefix += version + b" "
    if "timestamp" in options.keep:
        prefix += (stamp or b"-") + b" "
    if "hostname" in options.keep:
        prefix += (host or b"-") + b" "
    is_unchanged = options.keep_all or not prefix + body
    return Event(frame if is_unchanged else prefix + body, headers)

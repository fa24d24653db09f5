"""Compatibility notes of the syslog sources."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

SYSLOG = (
    CompatibilityNote(
        flume="a full channel makes the source drop events",
        here="the source applies backpressure to TCP senders, and counts dropped datagrams",
    ),
    CompatibilityNote(
        flume="a priority above 191 is accepted; an Invalid event has the headers of the previous event",
        here="such a message is Invalid; an Invalid event has no headers of other events",
    ),
    CompatibilityNote(
        flume="an unknown word in `keepFields` is ignored",
        here="an error that names it",
        option="keepFields",
    ),
    CompatibilityNote(
        flume="TLS takes Java keystores, TLSv1 and later, and no client certificates",
        here="TLSv1.2 and 1.3 unless `include-protocols` says otherwise, PEM files too; `truststore` requires "
        "certificates of senders",
        option="ssl",
    ),
)

PORTS = (
    CompatibilityNote(
        flume="`format.dateFormat` without a year yields times in 1970",
        here="the nearest year",
        option="format.dateFormat",
    ),
    CompatibilityNote(
        flume="`format.dateFormat` may have the letters `G`, `Y`, `w`, `W`, `F` and `u`, month names in the "
        "machine's language, and all zone names of Java",
        here="these letters are errors, month names are English, and there are about 40 zone names: `CET`, `EST`, "
        "`JST`, …",
        option="format.dateFormat",
    ),
    CompatibilityNote(
        flume="the zone of a timestamp with a fraction is ignored, as is an impossible one, `-07:90`; `.1` is 1 ms",
        here="zones apply as written, `.1` is 100 ms",
    ),
    CompatibilityNote(
        flume="a line that ends in CR LF matches no pattern; only the first line of a datagram is read",
        here="CR is part of the message; a datagram is one message",
    ),
    CompatibilityNote(
        flume="a NUL that ends a message, as Python's `SysLogHandler` sends it, is part of its body; over TCP the "
        "body continues to the next newline",
        here="it ends the message (RFC 6587, 3.4.2)",
    ),
    CompatibilityNote(
        flume="with an IPv6 address, a host name outside ASCII or a timestamp with more than six digits of a second, "
        "only the priority is read",
        here="all fields are read; after a version, as in RFC 5424, any host is valid",
    ),
    CompatibilityNote(
        flume="a message whose head is unreadable but for the priority has no status",
        here="it is Invalid, as in `multiport_syslogtcp`, and counted",
    ),
    CompatibilityNote(
        flume="bytes that are not UTF-8 become U+FFFD in a well-formed message",
        here="the body has the bytes that were sent",
    ),
    CompatibilityNote(
        flume="a host or a timestamp `-` that `keepFields` keeps is `null` in the body",
        here="it is `-`, as it was sent",
        option="keepFields",
    ),
    CompatibilityNote(
        flume="a date without a year gets one by month arithmetic, which may merge the days 29, 30 and 31; 29 "
        "February becomes another day if its first candidate is no leap year",
        here="it gets the year that puts it between 11 months ago and a month ahead",
    ),
    CompatibilityNote(
        flume="a date with other whitespace than spaces is no timestamp",
        here="it is read",
    ),
    CompatibilityNote(
        flume="years before 1583 follow the Julian calendar",
        here="they follow the Gregorian calendar, as in ISO 8601",
    ),
)

STREAMS = (
    CompatibilityNote(
        flume="each line is a message",
        here="octet-counted messages (RFC 6587) too; a count requires a priority such as `<13>` behind it, so that a "
        "line `22 Nov 2026 …` stays a line",
    ),
    CompatibilityNote(
        flume="after a line that ends within `<13`, TCP waits for the next line",
        here="the line is one message, Invalid",
    ),
)

DATAGRAMS = (
    CompatibilityNote(
        flume="empty lines before the message in a datagram are skipped",
        here="the datagram is one message, which is Invalid",
    ),
    CompatibilityNote(
        flume="a datagram that ends within `<13` is dropped",
        here="it is one message, Invalid",
    ),
)

MULTIPORT = (
    CompatibilityNote(
        flume="an impossible date or time without a year, such as Feb 30 or 25:00, gets the timestamp 0, so that "
        "`hdfs.path` puts the event into 1970",
        here="the time of arrival, as for a message without a timestamp",
    ),
    CompatibilityNote(
        flume="dates without a year get the year 1999 or 2001",
        here="the nearest year, as in `syslogtcp`",
    ),
    CompatibilityNote(
        flume="any letter counts as a zone, a host name may be empty, `Jun 7` shifts all fields by one column, and a "
        "message without a timestamp loses its first words",
        here="a malformed head makes the event Invalid, and its body is the complete message; `Jun 7` is a date",
    ),
    CompatibilityNote(
        flume="a timestamp without a zone makes the event Invalid; with a fraction, all events of the same read are "
        "lost",
        here="it is read in `timeZone`, as in `syslogtcp`",
    ),
    CompatibilityNote(
        flume="an empty line, a line that begins with a NUL, or an invalid timestamp loses all events of the same "
        "read; a message ends at a NUL",
        here="nothing is lost: an empty line is no message, the others are Invalid, and a message ends at a NUL",
    ),
)

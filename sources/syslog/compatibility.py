"""Differences between the syslog sources and Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

SYSLOG = (
    CompatibilityNote(
        flume="a full channel makes the source drop events",
        here="the source waits, and TCP senders with it; UDP drops are counted",
    ),
    CompatibilityNote(
        flume="a priority above 191 is accepted; an Invalid event has the headers of the one before",
        here="such a message is Invalid; an Invalid event has no headers of another",
    ),
    CompatibilityNote(
        flume="an unknown word in `keepFields` is ignored",
        here="an error that names it",
        option="keepFields",
    ),
    CompatibilityNote(
        flume="TLS has Java keystores, TLSv1 and up, and no client certificates",
        here="TLSv1.2 and 1.3 unless `include-protocols` says otherwise, PEM files too; `truststore` asks "
        "senders for certificates",
        option="ssl",
    ),
)

PORTS = (
    CompatibilityNote(
        flume="`format.dateFormat` without a year reads times of 1970",
        here="the nearest year",
        option="format.dateFormat",
    ),
    CompatibilityNote(
        flume="`format.dateFormat` may have the letters `G`, `Y`, `w`, `W`, `F` and `u`, names of months in the "
        "machine's language, and of zones all that Java knows",
        here="these letters are errors, names of months are English, of zones some 40: `CET`, `EST`, `JST`, …",
        option="format.dateFormat",
    ),
    CompatibilityNote(
        flume="the zone of a timestamp with a fraction is ignored, and one that cannot be, `-07:90`; `.1` is 1 ms",
        here="zones count as they are written, `.1` is 100 ms",
    ),
    CompatibilityNote(
        flume="a line that ends in CR LF matches no pattern; of a datagram only the first line is taken",
        here="CR is part of the message; a datagram is one message",
    ),
    CompatibilityNote(
        flume="a NUL that ends a message, as Python's `SysLogHandler` sends it, is part of its body, over TCP with "
        "all that follows up to a newline",
        here="it ends the message (RFC 6587, 3.4.2)",
    ),
    CompatibilityNote(
        flume="an IPv6 address, a name beyond ASCII or a timestamp with more than six digits of a second keeps"
        " all but the priority from being read",
        here="they are read; after a version, as in RFC 5424, any host is",
    ),
    CompatibilityNote(
        flume="a message of whose head only the priority can be read has no status",
        here="it is Invalid, as in `multiport_syslogtcp`, and counted",
    ),
    CompatibilityNote(
        flume="bytes that are not UTF-8 become U+FFFD in what could be read",
        here="the body has the bytes that were sent",
    ),
    CompatibilityNote(
        flume="a host or a timestamp that is `-` is `null` in a body that keeps it",
        here="it is `-` there, as it was sent",
        option="keepFields",
    ),
    CompatibilityNote(
        flume="a date without a year gets one by counting months, for which 29, 30 and 31 may be the same day; 29 "
        "February is another day where it was first put into a year that has none",
        here="the year that puts it between 11 months ago and a month ahead",
    ),
    CompatibilityNote(
        flume="a date with other blanks in it than spaces is no timestamp",
        here="it is read",
    ),
    CompatibilityNote(
        flume="a year before 1583 is one of the Julian calendar",
        here="of the Gregorian, as ISO 8601 has it",
    ),
)

STREAMS = (
    CompatibilityNote(
        flume="each line is a message",
        here="octet-counted messages (RFC 6587) too; a count is believed only where a priority such as `<13>`"
        " follows it, so that a line `22 Nov 2026 …` stays a line",
    ),
    CompatibilityNote(
        flume="of a line that ends within `<13` TCP waits for the next",
        here="the line is one message, Invalid",
    ),
)

DATAGRAMS = (
    CompatibilityNote(
        flume="empty lines before the message in a datagram are skipped",
        here="the datagram is one message, Invalid as it begins so",
    ),
    CompatibilityNote(
        flume="a datagram that ends within `<13` is dropped",
        here="it is one message, Invalid",
    ),
)

MULTIPORT = (
    CompatibilityNote(
        flume="a date without a year that there is not, such as Feb 30 or 25:00, gets the timestamp 0, so that "
        "`hdfs.path` puts it into 1970",
        here="the time of arrival, as where a message has none",
    ),
    CompatibilityNote(
        flume="dates without a year are put into 1999 or 2001",
        here="the nearest year, as in `syslogtcp`",
    ),
    CompatibilityNote(
        flume="any letter is taken for a zone, a host name may be empty, `Jun 7` is read as one column short, "
        "and a message without a timestamp loses its first words",
        here="a head that is not well formed makes the event Invalid, and its body is all that was sent; `Jun"
        " 7` is a date",
    ),
    CompatibilityNote(
        flume="a timestamp without a zone makes the event Invalid, and one with a fraction loses what was read with "
        "it",
        here="it is read in `timeZone`, as in `syslogtcp`",
    ),
    CompatibilityNote(
        flume="an empty line, one that begins with a NUL, or a timestamp that is no time makes the source lose what "
        "was read with it; a message ends at a NUL",
        here="nothing is lost: an empty line is no message, the others are Invalid, and a message ends at a NUL",
    ),
)

"""Compatibility notes of the HDFS sink."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

HDFS = (
    CompatibilityNote(
        flume="files are named by prefix, time and counter, and end in `.tmp` while they grow, some forever",
        here="by prefix, topic, partition, first and last offset, which are the same after a crash; files appear "
        "when they are complete, and are hidden below `.flafka` until then",
        is_common=True,
    ),
    CompatibilityNote(
        flume="each batch is committed to the channel, and what a killed agent had written stays in a `.tmp` file",
        here="it commits when a file is closed: until then its events stay in the channel. They take none of "
        "`capacity`, so a file may be larger than that. A `memory` channel loses them with the process (`file` and "
        "`kafka` lose nothing), and closes files early once they have 256 MiB of events together",
    ),
    CompatibilityNote(
        flume="a missing timestamp blocks the sink forever",
        here="the event goes to the dead letters, with the reason",
    ),
    CompatibilityNote(
        flume="an incomplete escape such as `%{host` becomes a directory of that name, an unknown one such as `%Q` "
        "nothing",
        here="both are errors of `check`, with their line; a percent sign is `%%`, which needs no timestamp",
    ),
    CompatibilityNote(
        flume="times before 15 October 1582 are formatted in the Julian calendar",
        here="such an event goes to the dead letters",
    ),
    CompatibilityNote(
        flume="an escape of a header that nothing sets becomes an empty text",
        here="the same, with a warning of `check` if sources and interceptors are known not to set it; a "
        "time that no event can have is an error",
    ),
    CompatibilityNote(
        flume="a header that is inserted into a path may contain `..`",
        here="such an event goes to the dead letters",
    ),
    CompatibilityNote(
        flume="beyond `maxOpenFiles` the oldest file is closed",
        here="all files of one Kafka partition are closed",
    ),
    CompatibilityNote(
        flume="`rollCount` and `rollSize` are checked before every event",
        here="after every batch, so that a file may exceed them by one batch: a cut within a batch would "
        "leave a small file with the remainder in every commit",
    ),
    CompatibilityNote(
        flume="each file is closed by its own age",
        here="all open files of a Kafka partition are closed together, so that a commit covers a contiguous range",
    ),
    CompatibilityNote(
        flume="with 0 for all roll options a file stays open until the agent stops",
        here="it is closed after at most a day, as its events stay in the channel until then: the `retention` of a "
        "channel `kafka` has to be longer than a file may be open",
    ),
    CompatibilityNote(
        flume="a file is created in its directory, with the group and default ACL of that",
        here="it is created below `.flafka`, which only the user of the sink may read, and gets them before it is "
        "renamed. HDFS lets only a superuser give a file a group of which the user is no member: otherwise a warning "
        "is logged, and the file keeps the group of `.flafka`",
    ),
    CompatibilityNote(
        flume="a serializer that `fileType` (`SequenceFile` by default) does not use is ignored silently",
        here="it is ignored with a warning from `check`",
        option="serializer",
    ),
    CompatibilityNote(
        flume="a SequenceFile's key is the time of writing if an event has no `timestamp`",
        here="the time of arrival in the channel, which is the same after a crash",
    ),
    CompatibilityNote(
        flume="files are written with Hadoop's libraries, by RPC",
        here="WebHDFS; `hdfs://nameservice1/…`, `hdfs://host:8020/…` and `/…` are looked up in core-site.xml "
        "and hdfs-site.xml of `-c DIR` or `HADOOP_CONF_DIR`. If these have no HTTP port of "
        "that host, Hadoop's defaults 9870 and 50070 are tried; `hdfs.webhdfs = host:port` names another",
    ),
    CompatibilityNote(
        flume="with Kerberos, all sinks of an agent share one principal, which logs in when the agent starts",
        here="each sink has its own principal, and a refused login is retried while events wait in the channel",
        option="hdfs.kerberosPrincipal",
    ),
    CompatibilityNote(
        flume="`/…`, `hdfs:///…` and relative paths are on the local disk if Hadoop's configuration names no "
        "NameNode",
        here="they are on HDFS of this host, with a warning, so that they never depend on a missing file. "
        "`file:///…` is the local disk, as in Flume, without Hadoop's checksums beside the files",
    ),
)

"""Differences of the sink `hdfs` from Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

HDFS = (
    CompatibilityNote(
        flume="files are named by prefix, time and counter, and end in `.tmp` while they grow, some for ever",
        here="by prefix, topic, partition, first and last offset: the same after a crash; files appear "
        "finished, unfinished ones lie hidden below `.flafka`",
        seen=True,
    ),
    CompatibilityNote(
        flume="each batch is committed to the channel, and what a killed agent had written stays in a `.tmp` file",
        here="it commits when a file is rolled: until then its events stay in the channel. They take none of "
        "`capacity`, so a file may be larger than that; a `memory` channel loses them with the process (`file` and "
        "`kafka` lose nothing), and has files closed early once they hold 256 MiB of events together",
    ),
    CompatibilityNote(
        flume="a missing timestamp blocks the hdfs sink for ever",
        here="the event goes to the dead letters, with the reason",
    ),
    CompatibilityNote(
        flume="what begins like an escape and is none: `%{host` becomes a directory of that name, `%Q` nothing",
        here="an error of `check` at its line; a percent sign is `%%`, which needs no timestamp",
    ),
    CompatibilityNote(
        flume="times before 15 October 1582 are told in the Julian calendar",
        here="such an event goes to the dead letters",
    ),
    CompatibilityNote(
        flume="a header that nothing sets leaves its place in a path empty",
        here="the same, with a warning of `check` where sources and interceptors are known not to set it; a "
        "time that no event can have is an error",
    ),
    CompatibilityNote(
        flume="`%{header}` in a path may hold `..`",
        here="such an event goes to the dead letters",
    ),
    CompatibilityNote(
        flume="more than `maxOpenFiles`: the oldest file is closed",
        here="all files of one Kafka partition are",
    ),
    CompatibilityNote(
        flume="`rollCount` and `rollSize` are looked at before every event",
        here="after every batch: a file may hold more by what arrived at once, as a cut within a batch would "
        "leave a small file with the rest in every commit",
    ),
    CompatibilityNote(
        flume="a file's open time decides when it rolls",
        here="any trigger cuts all open files of a Kafka partition, so that a commit covers an unbroken range",
    ),
    CompatibilityNote(
        flume="with 0 for all roll options a file stays open until the agent stops",
        here="it is closed after a day at the latest, as its events are in the channel until then: keep the "
        "`retention` of a channel `kafka` longer than a file may be open",
    ),
    CompatibilityNote(
        flume="a file is made in its directory, with that one's group and default ACL",
        here="it is made below `.flafka`, which its user alone may look into, and gets them before it is renamed. A "
        "group that the user is not in, HDFS lets only a superuser give: a warning of the log, and the file keeps "
        "the group of `.flafka`",
    ),
    CompatibilityNote(
        flume="a serializer that `fileType` (`SequenceFile` by default) does not use is ignored silently",
        here="it is ignored with a warning from `check`",
        option="serializer",
    ),
    CompatibilityNote(
        flume="a SequenceFile's key is the time of writing where an event has no `timestamp`",
        here="the time of arrival in the channel: the same after a crash",
    ),
    CompatibilityNote(
        flume="files are written with Hadoop's libraries, by RPC",
        here="WebHDFS; `hdfs://nameservice1/…`, `hdfs://host:8020/…` and `/…` are looked up in core-site.xml "
        "and hdfs-site.xml of `-c DIR` or `HADOOP_CONF_DIR`. Where these do not tell the HTTP port of "
        "that host, Hadoop's defaults 9870 and 50070 are tried; `hdfs.webhdfs = host:port` names another",
    ),
    CompatibilityNote(
        flume="`/…`, `hdfs:///…` and relative paths write to the local disk where Hadoop's configuration names"
        " no NameNode",
        here="HDFS on this host, with a warning: the same place whether the configuration is found or not. "
        "`file:///…` is the local disk, as in Flume, without Hadoop's checksums beside the files",
    ),
)

"""What the source `kafka` does otherwise than Flume's."""

from __future__ import annotations

from plugins import Difference

KAFKA = (
    Difference(
        flume="the brokers may come from ZooKeeper, which `zookeeperConnect` names",
        here="they are looked for on ZooKeeper's hosts at port 9092, with a warning; "
        "`kafka.bootstrap.servers` names them",
        option="zookeeperConnect",
    ),
    Difference(
        flume="a record that is no Flume event stops the source for ever",
        here="it is kept, with the header `kafka.status = Invalid`",
        option="useFlumeEventFormat",
    ),
)
